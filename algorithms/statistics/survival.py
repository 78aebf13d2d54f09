"""Times and events on the study's grid: what ``kaplan-meier`` and ``cox`` share.

A time is rounded up to a multiple of ``interval``; events at a time come before records that leave at it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import Analysis
from secfed.errors import ConfigError

_MOST_TIMES: Final = 20_000
_NEXT: Final = 1e-9  # of an interval: a time by so little above a multiple is that multiple


class Times:
    """The grid of one analysis, and where records are on it."""

    def __init__(self, analysis: Analysis, options: Any) -> None:
        where = f"algorithm.analyses.{analysis.name}"
        self.time: Column = analysis.column("time", options.time, "number")
        self.event: Column = analysis.column("event", options.event)
        if self.time.low < 0:
            raise ConfigError(f"{where}.time: {self.time.name!r} may be negative", remedy="set its low to 0")
        two = len(self.event.categories) == 2 or (self.event.low, self.event.high) == (0.0, 1.0)
        if not two:
            raise ConfigError(
                f"{where}.event: {self.event.name!r} has not two categories",
                remedy="name a column of two categories, or of numbers 0 and 1; the second is the event",
            )
        self.interval: float = options.interval
        self.count = math.ceil(self.time.high / self.interval - _NEXT) + 1
        if self.count > _MOST_TIMES:
            raise ConfigError(
                f"{where}.interval: gives {self.count} times up to {self.time.high:g}",
                remedy=f"raise it, so that there are at most {_MOST_TIMES}",
            )

    @property
    def needs(self) -> tuple[str, str]:
        """The columns."""
        return self.time.name, self.event.name

    @property
    def label(self) -> str:
        """Of an axis of times."""
        return self.time.name + (f" ({self.time.unit})" if self.time.unit else "")

    def of(self, table: Table, rows: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Of these complete records: the position on the grid, and whether there was an event."""
        where = np.ceil(table.values[self.time.name][rows] / self.interval - _NEXT)
        events = table.values[self.event.name][rows] > 0.5
        return np.clip(where, 0, self.count - 1).astype(np.int64), events


def at_risk(leaving: list[float]) -> list[float]:
    """How many are left just before each time, of how many leave at each."""
    found, left = [0.0] * len(leaving), 0.0
    for j in reversed(range(len(leaving))):
        left += leaving[j]
        found[j] = left
    return found
