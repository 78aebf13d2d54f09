"""Carrying out a plan: what is finished is kept, the rest runs, and results.csv is true at every moment."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from secfed.errors import ConfigError
from secfed.storage.atomic import PART, write_atomic
from secfed.sweep.plan import SweepPlan, SweepRun
from secfed.sweep.processes import Runner, Running
from secfed.sweep.results import Row, Status, results_csv
from secfed.sweep.store import RESULTS_FILE, FinishedRun, Store, opened

_POLL_S: Final = 0.1


@dataclass(frozen=True)
class Progress:
    """How far a sweep is. Runs with one and the same study count once.

    Attributes:
        total: runs of the plan that can be run.
        done: finished, in this or an earlier sweep.
        failed: ended without a result.
        running: title to what the run is doing.
        left_s: estimate of the seconds left; None while no run has finished.
    """

    total: int
    done: int
    failed: int
    running: Mapping[str, str]
    left_s: float | None


class SweepObserver(Protocol):
    """Listens to a sweep; called in its thread, must be quick and must not raise."""

    def progress(self, now: Progress) -> None:
        """Called several times a second."""
        ...

    def ended(self, row: Row) -> None:
        """A run of this sweep is over."""
        ...


class SilentSweepObserver:
    """Says nothing."""

    def progress(self, now: Progress) -> None:
        """Ignore it."""

    def ended(self, row: Row) -> None:
        """Ignore it."""


@dataclass
class _Started:
    run: SweepRun
    running: Running
    clock: float


def run_sweep(
    plan: SweepPlan,
    out: Path,
    *,
    jobs: int,
    runner: Runner,
    observer: SweepObserver | None = None,
    panels: Collection[str] = (),
) -> list[Row]:
    """Carry out every run that is not finished yet.

    Args:
        plan: the runs.
        out: folder of the sweep; an earlier sweep's finished runs in it are kept.
        jobs: most runs at the same time.
        runner: starts them.
        observer: told of progress.
        panels: names of those whose runs are started; all by default.

    Returns:
        A row per run of the plan, in its order. A failed run is a row, not an exception.

    Raises:
        ConfigError: the folder belongs to something else or is in use, or the plan has no such panel.
    """
    wanted = chosen(plan, panels)
    with opened(out, plan.sweep.text) as store:
        return _Sweep(plan, store, runner, observer or SilentSweepObserver(), wanted).carry_out(jobs)


def rows_so_far(plan: SweepPlan, out: Path) -> list[Row]:
    """A row per run of the plan, from what is finished in the folder."""
    store = Store(out)
    return [_first_row(run, store) for run in plan.runs]


def chosen(plan: SweepPlan, panels: Collection[str]) -> tuple[SweepRun, ...]:
    """The runs of some panels; of all if none is named.

    Raises:
        ConfigError: the plan has no such panel.
    """
    known = [panel.name for panel in plan.sweep.panels]
    for name in panels:
        if name not in known:
            remedy = f"use: {', '.join(known)}" if known else "leave it out: the sweep has no panels"
            raise ConfigError(f"--panel {name}: no panel of the sweep has this name", remedy=remedy)
    return tuple(run for run in plan.runs if not panels or run.at["panel"] in panels)


class _Sweep:
    def __init__(
        self,
        plan: SweepPlan,
        store: Store,
        runner: Runner,
        observer: SweepObserver,
        wanted: Sequence[SweepRun],
    ) -> None:
        self._plan = plan
        self._store = store
        self._runner = runner
        self._observer = observer
        self._wanted = wanted
        self._rows = {id(run): _first_row(run, store) for run in plan.runs}
        self._seconds: list[float] = []  # of the runs that finished here

    def carry_out(self, jobs: int) -> list[Row]:
        # Points that describe one and the same study (no noise is no noise) are run once.
        once = {run.digest: run for run in reversed(self._wanted) if run.digest}
        waiting = [run for run in self._wanted if once.get(run.digest) is run and self._is_waiting(run)]
        started: list[_Started] = []
        self._write()
        try:
            while waiting or started:
                while waiting and len(started) < jobs:
                    started.append(self._start(waiting.pop(0)))
                self._tell(len(once), waiting, started, jobs)
                for item in [item for item in started if item.running.over()]:
                    started.remove(item)
                    self._end(item)
                if started:
                    time.sleep(_POLL_S)
        finally:
            for item in started:  # interrupted: nothing may go on writing into the folder
                item.running.stop()
                self._set(item.run, "waiting")
            self._write()
        self._tell(len(once), waiting, started, jobs)
        return list(self._rows.values())

    def _is_waiting(self, run: SweepRun) -> bool:
        return self._rows[id(run)].status == "waiting"

    def _start(self, run: SweepRun) -> _Started:
        part = self._store.begin(run.folder, run.text)
        running = self._runner.start(run, part)
        self._set(run, "running")
        self._write()
        return _Started(run, running, time.monotonic())

    def _set(self, run: SweepRun, status: Status) -> None:
        for row in self._same(run):
            self._rows[id(row.run)] = replace(row, status=status)

    def _same(self, run: SweepRun) -> list[Row]:
        return [row for row in self._rows.values() if row.run.digest == run.digest]

    def _end(self, item: _Started) -> None:
        found = self._store.collect(item.run.folder, item.run.digest)
        self._seconds.append(time.monotonic() - item.clock)
        for row in self._same(item.run):
            self._rows[id(row.run)] = self._failed(row, item) if found is None else _done(row.run, found)
        self._write()
        self._observer.ended(self._rows[id(item.run)])

    def _failed(self, row: Row, item: _Started) -> Row:
        error, message = self._store.failure(item.run.folder)
        if not error:
            error, message = self._ended_without_a_word(item)
        status: Status = "unavailable" if row.run.optional and error == "ConfigError" else "failed"
        folder = f"{item.run.folder}{PART}"
        return replace(row, status=status, error=error, message=message, folder=folder)

    def _ended_without_a_word(self, item: _Started) -> tuple[str, str]:
        signal = item.running.signal()
        if signal == "SIGKILL":
            return signal, "the process was killed; if that was for want of memory, use fewer --jobs"
        if signal:
            return signal, "the process was ended by this signal; its log.txt may say why"
        if (self._store.runs / item.run.folder).exists():
            return "changed", "the code changed while the sweep was running; run the same command again"
        return "unknown", "the process ended without a result; its log.txt may say why"

    def _write(self) -> None:
        table = results_csv(self._plan, list(self._rows.values()))
        write_atomic(self._store.out / RESULTS_FILE, table.encode())

    def _tell(self, total: int, waiting: Sequence[SweepRun], started: Sequence[_Started], jobs: int) -> None:
        by_digest = {run.digest: self._rows[id(run)].status for run in self._wanted if run.digest}
        statuses = list(by_digest.values())
        elapsed = [time.monotonic() - item.clock for item in started]
        self._observer.progress(
            Progress(
                total=total,
                done=statuses.count("done"),
                failed=statuses.count("failed") + statuses.count("unavailable"),
                running={item.run.title: item.running.now() for item in started},
                left_s=seconds_left(self._seconds, elapsed, len(waiting), jobs),
            )
        )


def seconds_left(
    finished_s: Sequence[float], running_s: Sequence[float], waiting: int, jobs: int
) -> float | None:
    """Estimate how long the rest takes, as if every run took the mean of the finished ones.

    Args:
        finished_s: seconds of the runs that are over.
        running_s: how long each of the others has been running.
        waiting: runs not started.
        jobs: most runs at the same time.
    """
    if not finished_s:
        return None
    mean = sum(finished_s) / len(finished_s)
    rest = [max(0.0, mean - elapsed) for elapsed in running_s]
    return max((sum(rest) + waiting * mean) / jobs, max(rest, default=0.0))


def _first_row(run: SweepRun, store: Store) -> Row:
    if run.unavailable:
        return Row(run, "unavailable")
    found = store.finished(run.digest)
    return Row(run) if found is None else _done(run, found)


def _done(run: SweepRun, found: FinishedRun) -> Row:
    metrics = {name: float(value) for name, value in found.metrics.items() if value is not None}
    return Row(run, "done", found.seconds, metrics, found.epsilon_spent, folder=found.folder)
