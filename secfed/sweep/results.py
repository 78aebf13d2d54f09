"""Rows of results.csv, and mean and spread over seeds."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from secfed.algorithms.metrics.noise_error import ERROR_95, error_of, is_error, is_withheld, mean_error
from secfed.runs.run_report import ordered_metrics
from secfed.sweep.file import SweepFile, Value
from secfed.sweep.plan import SweepPlan, SweepRun, show_value

Status: TypeAlias = Literal["waiting", "running", "done", "failed", "aborted", "unavailable"]

_ABOUT: Final = ("seed", "status", "seconds", "epsilon_spent")
_LOST: Final = ("aborted_rounds", "zeroed_contributions")
_LAST: Final = ("error", "message", "note", "folder", "study_digest")


@dataclass(frozen=True)
class Row:
    """What is known of one run."""

    run: SweepRun
    # ``aborted``: every round was given up; ``unavailable``: an optional variant that this version refuses
    status: Status = "waiting"
    seconds: float | None = None
    # of its final model; an undefined one is left out
    metrics: Mapping[str, float] = field(default_factory=dict)
    epsilon_spent: float | None = None  # the most that a site spent; None without differential privacy
    error: str = ""  # error, message: class and text of the error of a failed run
    message: str = ""
    folder: str = ""
    aborted_rounds: int = 0  # of a finished run: rounds that were given up
    zeroed: int = 0  # of a finished run: contributions of which something failed and added zeros

    @property
    def lost(self) -> bool:
        """Whether there is no result because it failed or came to nothing."""
        return self.status in ("failed", "aborted")


@dataclass(frozen=True)
class Cell:
    """A metric over the ``n`` seeds of one point; ``std`` has the divisor n - 1, and is None for one seed."""

    mean: float
    std: float | None
    n: int
    error: float | None = None  # at 95 %, of the mean, by the noise of private metrics; None without noise
    withheld: bool = False  # in one run at least, so that a mean would be over a selection


@dataclass(frozen=True)
class Group:
    """The runs of one point, of which everything but the seed is equal; ``cells`` are its metrics."""

    at: Mapping[str, Value]
    cells: Mapping[str, Cell]
    planned: int
    statuses: tuple[Status, ...]

    def count(self, status: Status) -> int:
        """Runs with this status."""
        return self.statuses.count(status)


def groups(rows: Iterable[Row]) -> list[Group]:
    """Rows gathered by point, in the order of the plan."""
    by_point: dict[tuple[tuple[str, Value], ...], list[Row]] = {}
    for row in rows:
        by_point.setdefault(tuple(row.run.at.items()), []).append(row)
    gathered = []
    for at, members in by_point.items():
        errors = (name.removesuffix(ERROR_95) for row in members for name in row.metrics if is_error(name))
        names = dict.fromkeys([*(n for row in members for n in row.metrics if not is_error(n)), *errors])
        cells = {name: _cell(name, members) for name in names}
        gathered.append(Group(dict(at), cells, len(members), tuple(row.status for row in members)))
    return gathered


def metric_names(rows: Iterable[Row], first: Sequence[str] = ()) -> list[str]:
    """Every metric of the finished runs: those named first, then in the order that people look at them."""
    names = ordered_metrics(_with_withheld(row.metrics) for row in rows)
    return [*(name for name in first if name in names), *(name for name in names if name not in first)]


def results_csv(plan: SweepPlan, rows: Sequence[Row]) -> str:
    """Text of results.csv: a header, then a row per run in the order of the plan."""
    sweep, metrics = plan.sweep, metric_names(rows)
    noisy = {name for row in rows for name in row.metrics if is_error(name)}
    metrics += [name + ERROR_95 for name in metrics if name + ERROR_95 in noisy]
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([*sweep.dimensions, *_ABOUT, *metrics, *_LOST, *_LAST])
    for row in rows:
        numbers = [row.metrics.get(name) for name in metrics]
        out.writerow(
            [
                *(show_value(value) for value in row.run.at.values()),
                row.run.seed,
                row.status,
                "" if row.seconds is None else f"{row.seconds:.3f}",
                "" if row.epsilon_spent is None else repr(row.epsilon_spent),
                *("" if number is None else repr(number) for number in numbers),
                *(str(count) if row.status == "done" else "" for count in (row.aborted_rounds, row.zeroed)),
                row.error,
                row.message or row.run.unavailable,
                " ".join(note_of(sweep, row.run.at)),
                row.folder,
                row.run.digest,
            ]
        )
    return text.getvalue()


def note_of(sweep: SweepFile, at: Mapping[str, Value]) -> list[str]:
    """Notes of the panel and variant of a point."""
    changes = [sweep.change(dimension, value) for dimension, value in at.items()]
    return [change.note for change in changes if change is not None and change.note]


def _with_withheld(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics, and as undefined those that only an error is known of."""
    return {name.removesuffix(ERROR_95): math.nan for name in metrics if is_error(name)} | dict(metrics)


def _cell(name: str, rows: Sequence[Row]) -> Cell:
    values = [row.metrics[name] for row in rows if name in row.metrics]
    errors = [found for row in rows if (found := error_of(row.metrics, name)) is not None]
    if any(is_withheld(row.metrics, name) for row in rows):
        return Cell(math.nan, None, len(values), mean_error(errors), withheld=True)
    std = statistics.stdev(values) if len(values) > 1 else None
    error = mean_error(errors) if errors else None
    return Cell(statistics.fmean(values), std, len(values), error)
