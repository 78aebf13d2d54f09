"""``histogram``: records in cells of equal width between a column's declared bounds, by group if wanted.

A cell with few records is withheld, and one with it (see disclosure); missing values are counted as the last cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import (
    Analysis,
    Part,
    Shapes,
    State,
    Values,
    cells,
    finish,
    positions,
    tally,
    tensor,
)
from secfed.algorithms.statistics.disclosure import WITHHELD, is_small, suppressed_list
from secfed.algorithms.statistics.options import HistogramOptions
from secfed.algorithms.statistics.results import Figure, Result, ResultTable, count


class Histogram(Analysis):
    """One column of numbers."""

    kind = "histogram"

    def _read(self, options: HistogramOptions) -> None:
        self.number = self.column("column", options.column, "number")
        self.by: Column | None = None if options.by is None else self.column("by", options.by, "category")
        self.bins = options.bins
        self.groups = ("",) if self.by is None else self.by.categories

    def parts(self, step: int) -> Sequence[Part]:
        """Records of every cell, and those without the value."""
        del step
        return (Part("records", (len(self.groups), self.bins + 1)),)

    def shapes(self) -> Shapes:
        """As it is told."""
        return {"records": (len(self.groups), self.bins + 1)}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """One tally; a record without a group is in none."""
        del step, given
        where = cells(table.values[self.number.name], self.number, self.bins)
        where = np.where(where < 0, self.bins, where)
        group = np.zeros(table.records, np.int64)
        if self.by is not None:
            group = positions(table.values[self.by.name], len(self.groups))
        return {"records": tally(group, where, (len(self.groups) + 1, self.bins + 1))[:-1]}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Withhold small cells."""
        del step, same
        told = []
        for row in totals["records"].tolist():
            small = [is_small(cell, self.min_cell) for cell in row]
            hidden = suppressed_list(row, small, self.min_cell)
            told.append(
                [WITHHELD if out else float(round(cell)) for cell, out in zip(row, hidden, strict=True)]
            )
        state["records"] = tensor(told)
        finish(state)

    def released(self, state: State) -> State:
        """Cells."""
        return {"records": state["records"]}

    def result(self, released: Mapping[str, Values]) -> Result:
        """A table with a row for each cell, and bars."""
        width = (self.number.high - self.number.low) / self.bins
        edges = [self.number.low + width * i for i in range(self.bins + 1)]
        told = released["records"]
        rows = [
            (low, high, *(count(row[i]) for row in told))
            for i, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True))
        ]
        names = [name or "records" for name in self.groups]
        series = {
            name: [(edges[i], max(float(cell), 0.0)) for i, cell in enumerate(row[:-1])]
            for name, row in zip(names, told, strict=True)
        }
        unit = f" ({self.number.unit})" if self.number.unit else ""
        title = self.number.name + ("" if self.by is None else f" by {self.by.name}")
        return Result(
            {
                "column": self.number.name,
                "edges": edges,
                "counts": {n: [count(c) for c in row[:-1]] for n, row in zip(names, told, strict=True)},
                "missing": {n: count(row[-1]) for n, row in zip(names, told, strict=True)},
            },
            (ResultTable(f"Histogram of {title}", ("from", "to", *names), tuple(rows)),),
            (Figure("bars", f"Histogram of {title}", self.number.name + unit, "records", series),),
        )
