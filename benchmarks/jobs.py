"""Many runs as processes of one thread each, a few at a time, with progress."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Job:
    """One process.

    Attributes:
        name: for people.
        command: what is run.
        result: the file that it leaves; its log is beside it until it has succeeded.
    """

    name: str
    command: Sequence[str]
    result: Path

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.result.with_suffix(".log")


class _Show(Protocol):
    """Told of a job's state: "started", "done" or "failed"."""

    def __call__(self, name: str, *, state: str) -> None: ...


def run_all(jobs: Sequence[Job], at_a_time: int) -> list[Job]:
    """Run all; returns those that failed, whose logs are kept."""
    failed = []
    with _progress(len(jobs)) as show, ThreadPoolExecutor(at_a_time) as pool:
        waiting = {pool.submit(_run, job, show): job for job in jobs}
        try:
            for finished in as_completed(waiting):
                if finished.result():
                    failed.append(waiting[finished])
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _run(job: Job, show: _Show) -> int:
    job.result.parent.mkdir(parents=True, exist_ok=True)
    show(job.name, state="started")
    with job.log.open("wb") as log:
        environment = {**os.environ, **_THREADS}
        done = subprocess.run(job.command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False)
    if not done.returncode:
        job.log.unlink()
    show(job.name, state="failed" if done.returncode else "done")
    return done.returncode


@contextmanager
def _progress(total: int) -> Iterator[_Show]:
    """A bar, and below it what runs now."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        overall, running = bar.add_task("runs", total=total), {}

        def show(name: str, *, state: str) -> None:
            if state == "started":
                running[name] = bar.add_task(name, total=None)
                return
            bar.remove_task(running.pop(name))
            bar.advance(overall)
            bar.console.print(f"{name}: {state}")

        yield show
