"""A run as experiment trackers show it: per round who took part, and the metrics of sums.

What is written is decided here, for every tracker: counts of hospitals, never their names, and metrics with
the errors that noise gave them. A withheld or undefined metric is not written. An aggregator that cannot read
the sums has counts only. What needs single hospitals (``oracle``, ``compare``, budgets) is never written.

Writing happens on a thread of its own: a tracker that is slow or gone costs a warning, never a round. What
could not be written is tried again with the next round, and once more at the end.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol

from secfed.algorithms.metrics.noise_error import ERROR_95, is_error, is_withheld
from secfed.runs.run_report import Metrics, Observer, RoundReport, RunReport

PATIENCE_S = 30.0  # how long the end of a run waits for a tracker
_UNUSUAL = re.compile(r"[^\w./ -]", re.ASCII)  # what MLflow takes in no name


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before it begins."""

    identity: str  # the same for every start of one run
    study: str  # the study's name
    study_id: str
    algorithm: str
    protection: str
    rounds: int
    hospitals: int = 0  # how many; 0 until the run begins
    simulated: bool = False
    reads_sums: bool = True  # whether who writes this can read the sums

    @property
    def name(self) -> str:
        """How people find it."""
        return f"{self.study} (simulated)" if self.simulated else self.study

    def facts(self) -> dict[str, str]:
        """What it is, as text."""
        names = ("study", "study_id", "algorithm", "protection", "rounds", "hospitals")
        return {name: str(getattr(self, name)) for name in names} | {"simulated": str(self.simulated).lower()}


def identity_of(study_id: str, out: Path | None) -> str:
    """The same for every start with the same study and folder; a new one where no folder is written."""
    if out is None:
        return secrets.token_hex(8)
    return hashlib.sha256(f"{study_id}\0{out.resolve()}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Point:
    """What is written of one round."""

    step: int  # the round; 0 for the model before training
    values: Mapping[str, float]
    time_s: float = field(default_factory=time.time)  # seconds since 1970


class Writer(Protocol):
    """One tracker. Called from a single thread; whatever goes wrong is raised."""

    def begin(self, run: TrackedRun, *, resumed: bool) -> set[tuple[str, int]]:
        """Begin the run, or go on with it: what is written of it already, as name and step."""
        ...

    def write(self, point: Point) -> None:
        """Write it, so that others can see it."""
        ...

    def end(self, facts: Mapping[str, str]) -> None:
        """The run is over; what is now known of it."""
        ...

    def close(self) -> None:
        """Nothing more is written by this process."""
        ...


class Tracker(Observer):
    """An observer that gives a run to a tracker.

    Args:
        warn: called at most once while the run goes on, with what went wrong, and once at its end if
            anything is missing in the tracker; on any thread.
    """

    def __init__(self, writer: Writer, run: TrackedRun, warn: Callable[[str], None]) -> None:
        self._writer, self._run, self._warn = writer, run, warn
        self._resumed = self._begun = self._warned = False
        self._waiting: deque[Point | Mapping[str, str]] = deque()  # the last may be the facts of the end
        self._written: set[tuple[str, int]] = set()
        self._news: SimpleQueue[Point | Mapping[str, str] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.ident is None:
            return
        self._news.put(None)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive() or self._waiting:
            self._warn("the tracker does not have the whole run; run.json does")

    def started(self, study: str, sites: Sequence[str], rounds: int) -> None:  # noqa: ARG002
        """Count the hospitals."""
        self._run = replace(self._run, hospitals=len(sites))

    def round_finished(self, report: RoundReport) -> None:
        """Write it, or what is known of it since."""
        self._put(Point(report.round, values_of(report, reads_sums=self._run.reads_sums)))

    def round_kept(self, report: RoundReport) -> None:
        """Write what an earlier start of the run did not."""
        self._resumed = True
        self.round_finished(report)

    def finished(self, report: RunReport) -> None:
        """Write the metrics of the model before training, and end the run."""
        if self._run.reads_sums and report.initial:
            self._put(Point(0, metrics_of(report.initial)))
        more = {"kept_round": report.kept_round, "stopped_after": report.stopped_after}
        ended = {name: str(value) for name, value in more.items() if value is not None}
        self._put({"aggregator_saw": report.saw, **ended})

    def _put(self, news: Point | Mapping[str, str]) -> None:
        if self._thread.ident is None:  # not before: an engine forks its workers when a run begins
            self._thread.start()
        self._news.put(news)

    def _work(self) -> None:
        while (news := self._news.get()) is not None:
            self._waiting.append(news)
            self._try()
        if self._waiting:
            self._try()
        try:
            self._writer.close()
        except Exception as error:  # noqa: BLE001 - as below
            self._failed(error)

    def _try(self) -> None:
        try:
            if not self._begun:
                self._written = self._writer.begin(self._run, resumed=self._resumed)
                self._begun = True
            while self._waiting:
                self._write(self._waiting[0])
                self._waiting.popleft()
        except Exception as error:  # noqa: BLE001 - a tracker is somebody else's code: no error of it may end a run
            self._failed(error)

    def _write(self, news: Point | Mapping[str, str]) -> None:
        if not isinstance(news, Point):
            self._writer.end(news)
            return
        new = {key: value for key, value in news.values.items() if (key, news.step) not in self._written}
        if new:
            self._writer.write(replace(news, values=new))
            self._written |= {(key, news.step) for key in new}

    def _failed(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            said = next(iter(str(error).splitlines()), "")[:300]
            self._warn(f"the tracker cannot be written, and the run goes on: {type(error).__name__}: {said}")


def values_of(report: RoundReport, *, reads_sums: bool) -> dict[str, float]:
    """A round as numbers by name; counts only, where the sums cannot be read."""
    counts = {
        "rounds/survivors": float(len(report.survivors)),
        "rounds/asked": float(len(report.asked)),
        "rounds/aborted": float(report.aborted is not None),
    }
    return counts | (metrics_of(report.metrics or {}) if reads_sums else {})


def metrics_of(metrics: Metrics) -> dict[str, float]:
    """Metrics and their errors; none that is withheld or undefined, and no error without its metric."""
    known = {name for name, value in metrics.items() if math.isfinite(value) and not is_error(name)}
    given = {name for name in known if not is_withheld(metrics, name)}
    given |= {name + ERROR_95 for name in given if name + ERROR_95 in metrics}
    return {f"metrics/{_UNUSUAL.sub('_', name)}": float(metrics[name]) for name in metrics if name in given}
