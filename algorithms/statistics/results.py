"""Results as people read them: tables, curves and numbers by name; plain values without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Cell = str | float | int | None  # None where a number is withheld or there is none


@dataclass(frozen=True)
class ResultTable:
    """One table; numbers are not rounded."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Figure:
    """What to draw: intervals on a common axis, lines, or bars.

    Attributes:
        series: name to points: (x, y), or (estimate, low, high) for a forest.
        bands: name to (x, low, high) around the points of a series.
        below: name to (x, records at risk), for the lines under the axis.
        labels: what the bars at 0, 1, .. are of, where they are of categories.
    """

    kind: Literal["forest", "line", "step", "bars"]
    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, ...]]]
    bands: Mapping[str, Sequence[tuple[float, ...]]] = field(default_factory=dict)
    below: Mapping[str, Sequence[tuple[float, ...]]] = field(default_factory=dict)
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Result:
    """One analysis: what ``analysis.json`` says of it, and how it is shown."""

    values: Mapping[str, Any]  # JSON-ready but for numbers that are not finite
    tables: tuple[ResultTable, ...] = ()
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reported:
    """One analysis of a finished study."""

    name: str
    kind: str
    hospitals: tuple[str, ...]  # that the numbers stand for
    changed: bool  # whether other hospitals took part in an earlier step
    withheld: str | None  # why there is no result; None if there is one
    result: Result = field(default_factory=lambda: Result({}))

    def to_json(self) -> dict[str, Any]:
        """Its entry in analysis.json."""
        content: dict[str, Any] = {"kind": self.kind, "hospitals": list(self.hospitals)}
        if self.changed:
            content["hospitals_changed"] = True
        if self.withheld is not None:
            content["withheld"] = self.withheld
        else:
            content |= plain(self.result.values)
        if self.result.notes:
            content["notes"] = list(self.result.notes)
        return content


def plain(value: Any) -> Any:
    """JSON-ready: a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return float(value) if math.isfinite(value) else None


def count(value: float) -> int | None:
    """A released count; None if it was withheld."""
    return None if value < 0 or math.isnan(value) else round(value)
