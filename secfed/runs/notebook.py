"""A run as a notebook shows it: a table that grows while the rounds pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import Any

from secfed.runs.run_report import Metrics, Observer, RoundReport, RunReport, ordered_metrics


class LiveTable(Observer):
    """Shows every round in the output of a notebook's cell as it ends; outside notebooks, prints lines."""

    def __init__(self) -> None:
        self._rounds: dict[int, RoundReport] = {}
        self._title = self._saw = ""
        self._handle: Any = None  # of the notebook's display; None outside

    def started(self, study: str, sites: Sequence[str], rounds: int) -> None:
        """Begin a table, in the place where the run was started."""
        self._rounds, self._saw = {}, ""
        self._title = f"{study}: {len(sites)} hospitals, {rounds} rounds"
        self._handle = _display(self)

    def round_finished(self, report: RoundReport) -> None:
        """Add the round, or what is known of it since."""
        self._rounds[report.round] = report
        if self._handle is not None:
            self._handle.update(self)
        elif report.metrics or report.aborted:
            metrics = report.metrics or {}
            shown = ", ".join(f"{name} {_text(metrics, name)}" for name in ordered_metrics([metrics]))
            print(f"round {report.round}: {report.aborted or shown}")

    def finished(self, report: RunReport) -> None:
        """Add the sentence on what the aggregator saw."""
        self._saw = report.saw
        if self._handle is not None:
            self._handle.update(self)
        else:
            print(self._saw)

    def _repr_html_(self) -> str:
        reports = [self._rounds[number] for number in sorted(self._rounds)]
        names = ordered_metrics(one.metrics for one in reports)
        lines = [("round", *names, "survivors", "")]
        for one in reports:
            metrics = (_text(one.metrics or {}, name) for name in names)
            lines.append(
                (str(one.round), *metrics, f"{len(one.survivors)}/{len(one.asked)}", one.aborted or "")
            )
        table = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
        return f"<b>{escape(self._title)}</b><table>{table}</table><p>{escape(self._saw)}</p>"


def _text(metrics: Metrics, name: str) -> str:
    value = metrics.get(name, math.nan)
    return f"{value:.4f}" if math.isfinite(value) else "–"


def _display(shown: object) -> Any:
    """A handle of the notebook's display; None outside notebooks."""
    try:
        ipython = import_module("IPython")
    except ImportError:
        return None
    shell = ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return import_module("IPython.display").display(shown, display_id=True)
