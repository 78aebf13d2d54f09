"""``histogram``: records in cells of equal width between a column's declared bounds, by group if wanted.

A cell with few records is withheld, and one with it (see disclosure); missing values are counted as the
last cell.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import Values, cells, positions
from secfed.algorithms.statistics.counts import MISSING
from secfed.algorithms.statistics.cross_table import Positions, TableAnalysis
from secfed.algorithms.statistics.options import HistogramOptions
from secfed.algorithms.statistics.results import Figure, Result, ResultTable, count


class Histogram(TableAnalysis):
    """One column of numbers."""

    kind = "histogram"
    last_told = True  # missing values, by Table 1

    def _read(self, options: HistogramOptions) -> None:
        self.number = self.column("column", options.column, "number")
        self.by: Column | None = None if options.by is None else self.column("by", options.by, "category")
        self.bins = options.bins
        self.groups = ("",) if self.by is None else self.by.categories
        self.shape = (1 if self.by is None else len(self.groups) + 1, self.bins + 1)

        width = (self.number.high - self.number.low) / self.bins
        self.edges = [self.number.low + width * i for i in range(self.bins + 1)]
        self.order = ("" if self.by is None else self.by.name, self.number.name)
        rows = self.groups if self.by is None else (*self.groups, MISSING)
        self.labels = rows, (*(f"{low:.4g} to {high:.4g}" for low, high in pairwise(self.edges)), MISSING)

    def where(self, table: Table) -> tuple[Positions, Positions]:
        """By group and cell; the last of both are of missing values."""
        found = cells(table.values[self.number.name], self.number, self.bins)
        found = np.where(found < 0, self.bins, found)
        if self.by is None:
            return np.zeros_like(found), found
        return positions(table.values[self.by.name], len(self.groups)), found

    def shown(self, told: Values) -> Result:
        """A table with a row for each cell, and bars."""
        edges, told = self.edges, told[: len(self.groups), :-1]
        rows = [
            (low, high, *(count(row[i]) for row in told)) for i, (low, high) in enumerate(pairwise(edges))
        ]
        names = [name or "records" for name in self.groups]
        title = self.number.name + ("" if self.by is None else f" by {self.by.name}")
        return Result(
            {
                "column": self.number.name,
                "edges": edges,
                "counts": {n: [count(c) for c in row[:-1]] for n, row in zip(names, told, strict=True)},
                "missing": {n: count(row[-1]) for n, row in zip(names, told, strict=True)},
            },
            (ResultTable(f"Histogram of {title}", ("from", "to", *names), tuple(rows)),),
            (self._bars(told),),
            ("withheld cells are drawn empty",) if (told < 0).any() else (),
        )

    def noisy_shown(self, cells: Values, deviation: float) -> Result:
        """Every cell with its interval, and bars."""
        found = super().noisy_shown(cells, deviation)
        return replace(found, figures=(self._bars(cells[: len(self.groups)]),))

    def _bars(self, cells: Values) -> Figure:
        """Of each group; the last cell, of missing values, is not drawn."""
        series = {
            name or "records": [(self.edges[i], max(float(cell), 0.0)) for i, cell in enumerate(row[:-1])]
            for name, row in zip(self.groups, cells, strict=True)
        }
        unit = f" ({self.number.unit})" if self.number.unit else ""
        title = f"Histogram of {self.number.name}" + ("" if self.by is None else f" by {self.by.name}")
        return Figure("bars", title, self.number.name + unit, "records", series)
