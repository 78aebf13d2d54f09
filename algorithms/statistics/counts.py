"""``counts``: how many records of each category, or of each pair in a cross table, with chi-square.

Missing values are a category of their own.
"""

from __future__ import annotations

import numpy as np

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import Values, positions
from secfed.algorithms.statistics.cross_table import Positions, TableAnalysis
from secfed.algorithms.statistics.options import CountsOptions
from secfed.algorithms.statistics.results import Figure, Result, ResultTable, count

MISSING = "(missing)"


class Counts(TableAnalysis):
    """A table of one or two columns; of one column, it has a single row."""

    kind = "counts"

    def _read(self, options: CountsOptions) -> None:
        self.listed = [self.column("columns", name, "category") for name in options.columns]
        self.rows: Column | None = self.listed[0] if len(self.listed) == 2 else None
        self.over = self.listed[-1]
        self.shape = (
            1 if self.rows is None else len(self.rows.categories) + 1,
            len(self.over.categories) + 1,
        )
        self.order = ("" if self.rows is None else self.rows.name, self.over.name)
        rows = ("",) if self.rows is None else (*self.rows.categories, MISSING)
        self.labels = rows, (*self.over.categories, MISSING)

    def where(self, table: Table) -> tuple[Positions, Positions]:
        """By position in the declared lists."""
        over = positions(table.values[self.over.name], len(self.over.categories))
        if self.rows is None:
            return np.zeros_like(over), over
        return positions(table.values[self.rows.name], len(self.rows.categories)), over

    def shown(self, told: Values) -> Result:
        """The table; of two columns with margins and chi-square."""
        cells, names = told[:-1, :-1], (*self.over.categories, MISSING)
        if self.rows is None:
            total = float(told[-1, -1])
            rows = tuple(
                (name, count(cell), 100 * cell / total if cell >= 0 and total else None)
                for name, cell in zip(names, cells[0], strict=True)
                if name != MISSING or cell != 0
            )
            bars = {self.over.name: [(i, max(float(c), 0.0)) for i, c in enumerate(cells[0][:-1])]}
            return Result(
                {"column": self.over.name, "n": round(total), "counts": {row[0]: row[1] for row in rows}},
                (ResultTable(f"Records by {self.over.name}", (self.over.name, "records", "%"), rows),),
                (Figure("bars", f"Records by {self.over.name}", self.over.name, "records", bars),),
            )
        return self._crossed(told, names)

    def _crossed(self, told: Values, names: tuple[str, ...]) -> Result:
        rows_of = self.rows
        if rows_of is None:
            raise ValueError("not a cross table")
        lines = [*rows_of.categories, MISSING, "all"]
        shown = [
            (name, *(count(float(cell)) for cell in row))
            for name, row in zip(lines, told, strict=True)
            if name != MISSING or row[-1] != 0
        ]
        keep = [0, *(i + 1 for i, n in enumerate((*names, "all")) if n != MISSING or told[-1, i] != 0)]
        header = (rows_of.name, *names, "all")
        title = f"{rows_of.name} by {self.over.name}"
        table = ResultTable(
            title, tuple(header[i] for i in keep), tuple(tuple(row[i] for i in keep) for row in shown)
        )
        values = {
            "rows": [rows_of.name, *rows_of.categories],
            "columns": [self.over.name, *self.over.categories],
            "n": round(float(told[-1, -1])),
            "counts": {row[0]: dict(zip(names, row[1:-1], strict=True)) for row in shown[:-1]},
        }
        test = chi_square(told[:-2, :-2])
        if test is None:
            note = "chi-square: there is none where cells are withheld, or nothing varies"
            return Result(values | {"chi_square": None}, (table,), notes=(note,))
        line = tuple(test.values())
        tested = ResultTable(f"Chi-square test of independence, {title}", tuple(test), (line,))
        return Result(values | {"chi_square": test}, (table, tested))


def chi_square(cells: Values) -> dict[str, float] | None:
    """Pearson's test of independence, without empty rows and columns; None where cells are withheld."""
    from scipy.stats import chi2

    if (cells < 0).any():
        return None
    cells = cells[cells.sum(axis=1) > 0][:, cells.sum(axis=0) > 0]
    if min(cells.shape) < 2:
        return None
    expected = np.outer(cells.sum(axis=1), cells.sum(axis=0)) / cells.sum()
    statistic = float(((cells - expected) ** 2 / expected).sum())
    degrees = (cells.shape[0] - 1) * (cells.shape[1] - 1)
    return {"statistic": statistic, "df": float(degrees), "p": float(chi2.sf(statistic, degrees))}
