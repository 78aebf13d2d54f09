"""A run as a notebook shows it: one table that changes while the rounds pass."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import Any, Final

from secfed.runs.run_report import (
    Metrics,
    Observer,
    RoundReport,
    RunReport,
    SilentObserver,
    ordered_metrics,
)

_ROWS: Final = 10  # newest rounds in the table; all are in the report's frame
_BETWEEN_S: Final = 0.2  # a browser draws no more often


class LiveTable(Observer):
    """Shows the newest rounds in the output of a notebook's cell; outside notebooks, prints lines."""

    def __init__(self) -> None:
        self._rounds: dict[int, RoundReport] = {}
        self._title = self._now = self._saw = ""
        self._handle: Any = None  # of the notebook's display; None outside
        self._next_s = 0.0

    def started(self, study: str, sites: Sequence[str], rounds: int) -> None:
        """Begin a table, in the place where the run was started."""
        self._rounds, self._now, self._saw = {}, "", ""
        self._title = f"{study}: {len(sites)} hospitals, {rounds} rounds"
        self._handle = _display(self)

    def stage(self, round_number: int, exchange: str, stage: str, done: int, total: int) -> None:
        """Say what is going on."""
        what = f"{exchange} {stage}".strip()
        self._now = f"round {round_number}: {what} {done}/{total}"
        self._show()

    def round_finished(self, report: RoundReport) -> None:
        """Add the round, or what is known of it since."""
        self._rounds[report.round] = report
        if self._handle is not None:
            self._show()
        elif report.metrics or report.aborted:
            metrics = report.metrics or {}
            shown = ", ".join(f"{name} {_text(metrics, name)}" for name in ordered_metrics([metrics]))
            print(f"round {report.round}: {report.aborted or shown}")

    def finished(self, report: RunReport) -> None:
        """Add the sentence on what the aggregator saw."""
        self._now, self._saw = "", report.saw
        if self._handle is not None:
            self._handle.update(self)
        else:
            print(self._saw)

    def _show(self) -> None:
        """Draw it anew, if that is worth while."""
        now_s = time.monotonic()
        if self._handle is not None and now_s >= self._next_s:
            self._next_s = now_s + _BETWEEN_S
            self._handle.update(self)

    def _repr_html_(self) -> str:
        reports = [self._rounds[number] for number in sorted(self._rounds)]
        above = len(reports) - _ROWS
        reports = reports[-_ROWS:]
        names = ordered_metrics(one.metrics for one in reports)
        lines: list[tuple[str, ...]] = [("round", *names, "survivors", "")]
        if above > 0:
            lines.append((f"{above} earlier",))
        for one in reports:
            metrics = (_text(one.metrics or {}, name) for name in names)
            lines.append(
                (str(one.round), *metrics, f"{len(one.survivors)}/{len(one.asked)}", one.aborted or "")
            )
        table = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
        below = escape(self._now or self._saw)
        return f"<b>{escape(self._title)}</b><table>{table}</table><p>{below}</p>"


def _text(metrics: Metrics, name: str) -> str:
    value = metrics.get(name, math.nan)
    return f"{value:.4f}" if math.isfinite(value) else "–"


def unless_told() -> Observer:
    """Who listens to a run for which nobody was named: a table in a notebook, elsewhere nobody."""
    return LiveTable() if _in_notebook() else SilentObserver()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def _display(shown: object) -> Any:
    """A handle of the notebook's display; None outside notebooks."""
    if not _in_notebook():
        return None
    return import_module("IPython.display").display(shown, display_id=True)
