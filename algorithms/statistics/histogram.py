"""``histogram``: records in cells of equal width between a column's declared bounds, by group if wanted.

A cell with few records is withheld, and one with it (see disclosure); missing values are counted as the
last cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

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
    hide,
    positions,
    tensor,
)
from secfed.algorithms.statistics.cross_table import table_parts, table_sums, told_table, with_margins
from secfed.algorithms.statistics.disclosure import Reason
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
        self.shape = (1 if self.by is None else len(self.groups) + 1, self.bins + 1)

    def parts(self, step: int) -> Sequence[Part]:
        """Records of every cell; the last row and the last column are of missing values."""
        del step
        return table_parts("table", self.shape)

    def shapes(self) -> Shapes:
        """As it is told, with margins."""
        return {"told": (self.shape[0] + 1, self.shape[1] + 1)}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """One tally."""
        del step, given
        where = cells(table.values[self.number.name], self.number, self.bins)
        group = np.zeros(table.records, np.int64)
        if self.by is not None:
            group = positions(table.values[self.by.name], len(self.groups))
        return table_sums("table", group, np.where(where < 0, self.bins, where), self.shape)

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Withhold small cells, and what they would follow from."""
        del step, same
        order = ("" if self.by is None else self.by.name, self.number.name)
        told = told_table("table", totals, self.rules, order)
        if told is None:
            return hide(state, Reason.FEW_RECORDS)
        state["told"] = tensor(with_margins(told))
        return finish(state)

    def released(self, state: State) -> State:
        """Cells and margins."""
        return {"told": state["told"]}

    def result(self, released: Mapping[str, Values]) -> Result:
        """A table with a row for each cell, and bars."""
        width = (self.number.high - self.number.low) / self.bins
        edges = [self.number.low + width * i for i in range(self.bins + 1)]
        told = released["told"][: len(self.groups), :-1]
        rows = [
            (low, high, *(count(row[i]) for row in told)) for i, (low, high) in enumerate(pairwise(edges))
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
