"""What a sweep found, in words: the table of means and spreads, its notes, and summary.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from secfed.algorithms.metrics.noise_error import WITHHELD_ABOVE, is_error
from secfed.sweep.file import SweepFile, Value
from secfed.sweep.plan import SweepPlan, is_inf, show_value
from secfed.sweep.results import Cell, Row, groups, metric_names
from secfed.sweep.sections import Change
from secfed.sweep.store import FIGURE_FILES, RESULTS_FILE
from secfed.terminal.consoles import plural, show_number
from secfed.terminal.text_table import TextTable, escaped

NO_VALUE: Final = "–"
_MOST_FAILURES = 10  # shown one by one; all are in results.csv


class Labels:
    """What to call the dimensions of a sweep and their values, with marks that lead to the notes."""

    def __init__(self, plan: SweepPlan, rows: Sequence[Row]) -> None:
        self._sweep = plan.sweep
        self.missing = dict(plan.missing)
        self._gaps: dict[str, list[Row]] = {}  # found only when a run started
        for row in rows:
            if row.status == "unavailable" and row.message:
                self._gaps.setdefault(row.run.at["variant"], []).append(row)
        noted = [change for change in (*plan.sweep.panels, *plan.sweep.variants) if self._text(change)]
        self._marks = {id(change): number for number, change in enumerate(noted, 1)}
        self.notes = tuple(f"[{number}] {self._text(change)}" for number, change in enumerate(noted, 1))

    def value(self, dimension: str, value: Value) -> str:
        """A panel or variant by its label and mark, the value of an axis as it is."""
        change = self._sweep.change(dimension, value)
        if change is None:
            return "∞" if is_inf(value) else show_value(value)
        mark = self._marks.get(id(change))
        return change.title if mark is None else f"{change.title} [{mark}]"

    def dimension(self, name: str) -> str:
        """A study key by its last part, unless two end alike."""
        short = name.rpartition(".")[2]
        alike = sum(other.rpartition(".")[2] == short for other in self._sweep.dimensions)
        return short if alike == 1 else name

    def _text(self, change: Change) -> str:
        parts = []
        if change in self._sweep.variants:
            if why := self.missing.get(change.name):
                parts.append(f"Missing here, because {why.rstrip('.')}.")
            if gaps := self._gaps.get(change.name):
                where = gaps[0].run.title + (f" and {len(gaps) - 1} more" if len(gaps) > 1 else "")
                parts.append(f"Missing at {where}, because {gaps[0].message.rstrip('.')}.")
        parts += [change.note] if change.note else []
        return f"{change.title}: {' '.join(parts)}" if parts else ""


def summary_table(plan: SweepPlan, rows: Sequence[Row], *, most_metrics: int | None = None) -> TextTable:
    """Mean and spread of every metric, or the first ``most_metrics``, over the seeds of every point."""
    sweep, labels = plan.sweep, Labels(plan, rows)
    metrics = metric_names(rows, sweep.figure.metrics)[:most_metrics]
    several = len(sweep.seeds) > 1
    headers = [labels.dimension(name) for name in sweep.dimensions]
    cells: list[tuple[str, ...]] = []
    listed: set[str] = set()
    for group in groups(rows):
        variant = str(group.at.get("variant", ""))
        if variant in labels.missing and group.count("unavailable") == group.planned:
            if variant not in listed:  # one line for the whole curve
                listed.add(variant)
                shown = [labels.value(d, v) if d == "variant" else NO_VALUE for d, v in group.at.items()]
                cells.append((*shown, "0", *("missing" if metrics else "" for _ in metrics)))
            continue
        shown = [labels.value(dimension, value) for dimension, value in group.at.items()]
        numbers = (_cell(group.cells.get(name), percent=_in_percent(sweep, name)) for name in metrics)
        done, aborted = group.count("done"), group.count("aborted")
        count = str(done) if done == group.planned else f"{done}/{group.planned}"
        count += f", {aborted} aborted" if aborted else ""
        cells.append((*shown, count, *numbers))
    titles = (*headers, "runs" if several else "run", *(metric_title(sweep, name) for name in metrics))
    return TextTable(titles, tuple(cells), numbers_from=len(headers))


def metric_title(sweep: SweepFile, name: str) -> str:
    """What stands above or beside a metric's numbers: its name, and that they are percent."""
    return f"{name} (%)" if _in_percent(sweep, name) else name


def _in_percent(sweep: SweepFile, name: str) -> bool:
    return sweep.figure.percent and name in sweep.figure.metrics


def failures(rows: Sequence[Row]) -> list[str]:
    """One sentence per failed or aborted run, the first of them only."""
    failed = [row for row in rows if row.lost]
    lines = [f"{row.run.title}: {row.error}: {row.message}" for row in failed[:_MOST_FAILURES]]
    if len(failed) > _MOST_FAILURES:
        lines.append(f"and {len(failed) - _MOST_FAILURES} more; see {RESULTS_FILE}")
    return lines


def losses(rows: Sequence[Row]) -> list[str]:
    """What is missing in numbers that look like any other: one sentence per kind."""
    done = [row for row in rows if row.status == "done"]
    found = []
    if zeroed := [row for row in done if row.zeroed]:
        found.append(
            f"{_of(zeroed, done)} diverged: at some hospitals local work failed (NaN or Inf, mostly), and "
            f"{plural(sum(row.zeroed for row in zeroed), 'contribution')} added zeros: {_named(zeroed)}."
        )
    if aborted := [row for row in done if row.aborted_rounds]:
        rounds = plural(sum(row.aborted_rounds for row in aborted), "round")
        found.append(f"{_of(aborted, done)} gave up {rounds}: {_named(aborted)}.")
    return found


def _of(some: Sequence[Row], rows: Sequence[Row]) -> str:
    return f"{len(some)} of {plural(len(rows), 'finished run')}"


def _named(rows: Sequence[Row]) -> str:
    more = f" and {len(rows) - 3} more (see {RESULTS_FILE})" if len(rows) > 3 else ""
    return "; ".join(row.run.title for row in rows[:3]) + more


def spread_sentence(sweep: SweepFile, rows: Sequence[Row] = ()) -> str:
    """What a number of the table means."""
    noise = ""
    if any(is_error(name) for row in rows for name in row.metrics):
        noise = " Noise ±: the error at 95 % that privacy gives a metric"
        noise += f"; withheld: error above {WITHHELD_ABOVE:g}."
    if len(sweep.seeds) == 1:
        return f"One seed: a number is one run and has no spread.{noise}"
    return f"Mean ± sample standard deviation over up to {plural(len(sweep.seeds), 'seed')}.{noise}"


def summary_markdown(plan: SweepPlan, rows: Sequence[Row], *, figure: bool) -> str:
    """Text of summary.md; ``figure`` says whether one was drawn."""
    sweep, labels = plan.sweep, Labels(plan, rows)
    table = summary_table(plan, rows)
    done = sum(row.status == "done" for row in rows)
    lines = [f"# {sweep.figure.title or sweep.name}", ""]
    lines += [f"{done} of {plural(len(rows), 'run')} done. {spread_sentence(sweep, rows)}", ""]
    lines += [table.markdown()]
    lines += [line for note in labels.notes for line in ("", escaped(note))]
    lines += [line for note in losses(rows) for line in ("", escaped(note))]
    if failed := failures(rows):
        lines += ["", "Failed:", "", *(f"- {escaped(line)}" for line in failed)]
    if figure:
        lines += ["", f"![{escaped(sweep.figure.title or sweep.name)}]({FIGURE_FILES[0]})"]
    return "\n".join(lines) + "\n"


def _cell(cell: Cell | None, *, percent: bool) -> str:
    if cell is None:
        return NO_VALUE
    if cell.withheld:
        return "withheld"

    def show(number: float) -> str:
        return f"{100 * number:.1f}" if percent else show_number(number)

    text = show(cell.mean) + ("" if cell.std is None else f" ± {show(cell.std)}")
    return text + ("" if cell.error is None else f" (noise ± {show(cell.error)})")
