"""Carrying out a plan: what is finished stays, the rest runs, and results.csv is true at every moment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from secfed.errors import ConfigError, RoundAborted
from secfed.storage.atomic import PART, write_atomic
from secfed.sweep.clusters import Runner, Running
from secfed.sweep.jobs import Job, Progress, run_jobs
from secfed.sweep.plan import SweepPlan, SweepRun
from secfed.sweep.results import Row, Status, results_csv
from secfed.sweep.store import RESULTS_FILE, FinishedRun, Store, opened


class SweepObserver:
    """Listens to a sweep; called in its thread, must be quick and must not raise. This one ignores it."""

    def progress(self, now: Progress) -> None:
        """Called several times a second. Runs with one and the same study count once."""

    def ended(self, row: Row) -> None:
        """A run of this sweep is over."""


def run_sweep(
    plan: SweepPlan,
    out: Path,
    *,
    jobs: int,
    runner: Runner,
    observer: SweepObserver | None = None,
    panels: Collection[str] = (),
) -> list[Row]:
    """Carry out every run that is not finished yet, those of ``panels`` if some are named; a row per run.

    A failed run is a row, not an exception. ``ConfigError``: the folder belongs to something else or is in
    use, or the plan has no such panel.
    """
    wanted = runs_of(plan, panels)
    with opened(out, plan.sweep.text) as store:
        return _Sweep(plan, store, runner, observer or SweepObserver()).carry_out(wanted, jobs)


def rows_so_far(plan: SweepPlan, out: Path) -> list[Row]:
    """A row per run of the plan, from what is finished in the folder."""
    store = Store(out)
    return [_first_row(run, store) for run in plan.runs]


def runs_of(plan: SweepPlan, panels: Collection[str]) -> tuple[SweepRun, ...]:
    """The runs of some panels, all if none is named; ConfigError if the plan has no such panel."""
    known = [panel.name for panel in plan.sweep.panels]
    for name in panels:
        if name not in known:
            remedy = f"use: {', '.join(known)}" if known else "leave it out: the sweep has no panels"
            raise ConfigError(f"--panel {name}: no panel of the sweep has this name", remedy=remedy)
    return tuple(run for run in plan.runs if not panels or run.at["panel"] in panels)


class _Sweep:
    def __init__(self, plan: SweepPlan, store: Store, runner: Runner, observer: SweepObserver) -> None:
        self._plan, self._store, self._runner, self._observer = plan, store, runner, observer
        self._rows = {id(run): _first_row(run, store) for run in plan.runs}

    def carry_out(self, wanted: Sequence[SweepRun], at_a_time: int) -> list[Row]:
        # Points that describe one and the same study (no noise is no noise) are run once.
        once = {run.digest: run for run in reversed(wanted) if run.digest}
        first = [run for run in wanted if once.get(run.digest) is run]
        waiting = [
            Job(
                run.title,
                partial(self._start, run),
                partial(self._end, run),
                partial(self._set, run, "waiting"),
            )
            for run in first
            if self._rows[id(run)].status == "waiting"
        ]
        self._write()
        try:
            run_jobs(waiting, at_a_time, self._observer.progress, done=len(once) - len(waiting))
        finally:
            self._write()
        return list(self._rows.values())

    def _start(self, run: SweepRun) -> Running:
        running = self._runner.start(run, self._store.begin(run.folder, run.text))
        self._set(run, "running")
        self._write()
        return running

    def _set(self, run: SweepRun, status: Status) -> None:
        for row in self._same(run):
            self._rows[id(row.run)] = replace(row, status=status)

    def _same(self, run: SweepRun) -> list[Row]:
        return [row for row in self._rows.values() if row.run.digest == run.digest]

    def _end(self, run: SweepRun, running: Running) -> bool:
        finished = self._store.collect(run.folder, run.digest)
        for row in self._same(run):
            ended = self._failed(row, run, running) if finished is None else _done(row.run, finished)
            self._rows[id(row.run)] = ended
        self._write()
        self._observer.ended(self._rows[id(run)])
        return finished is not None

    def _failed(self, row: Row, run: SweepRun, running: Running) -> Row:
        error, message = self._store.failure(run.folder)
        if not error:
            error, message = self._silent_end(run, running)
        status: Status = "aborted" if error == RoundAborted.__name__ else "failed"
        if row.run.optional and error == "ConfigError":
            status = "unavailable"
        return replace(row, status=status, error=error, message=message, folder=f"{run.folder}{PART}")

    def _silent_end(self, run: SweepRun, running: Running) -> tuple[str, str]:
        signal = running.signal()
        if signal == "SIGKILL":
            return signal, "the process was killed; if that was for want of memory, use fewer --jobs"
        if signal:
            return signal, "the process was ended by this signal; its log.txt may say why"
        if (self._store.runs / run.folder).exists():
            return "changed", "the code changed while the sweep was running; run the same command again"
        return "unknown", "the process ended without a result; its log.txt may say why"

    def _write(self) -> None:
        table = results_csv(self._plan, list(self._rows.values()))
        write_atomic(self._store.out / RESULTS_FILE, table.encode())


def _first_row(run: SweepRun, store: Store) -> Row:
    if run.unavailable:
        return Row(run, "unavailable")
    finished = store.finished(run.digest)
    return Row(run) if finished is None else _done(run, finished)


def _done(run: SweepRun, finished: FinishedRun) -> Row:
    metrics = {name: float(value) for name, value in finished.metrics.items() if value is not None}
    return Row(
        run,
        "done",
        finished.seconds,
        metrics,
        finished.epsilon_spent,
        folder=finished.folder,
        aborted_rounds=finished.aborted_rounds,
        zeroed=finished.zeroed,
    )
