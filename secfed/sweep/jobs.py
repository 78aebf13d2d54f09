"""The job engine: so many at a time, with progress, and none that outlives an error or an interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secfed.sweep.clusters import Running
from secfed.sweep.processes import ChildProcess

_POLL_S: Final = 0.1


@dataclass(frozen=True)
class Job:
    """One piece of work: ``end`` says whether it succeeded, ``stopped`` is called if it was cut short."""

    title: str
    start: Callable[[], Running]
    end: Callable[[Running], bool]
    stopped: Callable[[], None] = lambda: None

    @classmethod
    def of_command(cls, title: str, command: Sequence[str], log: Path) -> Job:
        """A job that runs a command; its log stays only if the command fails."""

        def end(running: Running) -> bool:
            succeeded = isinstance(running, ChildProcess) and running.process.returncode == 0
            if succeeded:
                log.unlink()
            return succeeded

        return cls(title, lambda: ChildProcess.start(command, log), end)


@dataclass(frozen=True)
class Progress:
    """How far a number of jobs is; ``left_s`` estimates the rest, None while no job has ended."""

    total: int
    done: int
    failed: int
    running: Mapping[str, str]  # title to what it is doing
    left_s: float | None


def run_jobs(
    jobs: Sequence[Job],
    at_a_time: int,
    progress: Callable[[Progress], None] = lambda _: None,
    *,
    done: int = 0,
) -> list[Job]:
    """Carry out all jobs in their order; returns those that failed. ``done`` more were finished before."""
    waiting, started = list(jobs), list[tuple[Job, Running, float]]()
    seconds: list[float] = []
    failed: list[Job] = []

    def tell() -> None:
        elapsed = [time.monotonic() - clock for _, _, clock in started]
        progress(
            Progress(
                total=len(jobs) + done,
                done=done + len(seconds) - len(failed),
                failed=len(failed),
                running={job.title: running.now() for job, running, _ in started},
                left_s=seconds_left(seconds, elapsed, len(waiting), at_a_time),
            )
        )

    try:
        while waiting or started:
            while waiting and len(started) < at_a_time:
                job = waiting.pop(0)
                started.append((job, job.start(), time.monotonic()))
            tell()
            for item in [item for item in started if item[1].over()]:
                started.remove(item)
                job, running, clock = item
                seconds.append(time.monotonic() - clock)
                if not job.end(running):
                    failed.append(job)
            if started:
                time.sleep(_POLL_S)
    finally:
        for job, running, _ in started:
            running.stop()
            job.stopped()
    tell()
    return failed


def seconds_left(
    finished_s: Sequence[float], running_s: Sequence[float], waiting: int, jobs: int
) -> float | None:
    """How long the rest takes, ``jobs`` at a time, if every job takes the mean of the finished ones."""
    if not finished_s:
        return None
    mean = sum(finished_s) / len(finished_s)
    rest = [max(0.0, mean - elapsed) for elapsed in running_s]
    return max((sum(rest) + waiting * mean) / jobs, max(rest, default=0.0))
