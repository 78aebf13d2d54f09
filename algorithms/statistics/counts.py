"""``counts``: how many records of each category, or of each pair in a cross table, with chi-square.

Missing values are a category of their own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import Values, positions
from secfed.algorithms.statistics.cross_table import Positions, TableAnalysis
from secfed.algorithms.statistics.options import CountsOptions
from secfed.algorithms.statistics.results import Figure, Result, ResultTable, count

MISSING: Final = "(missing)"  # names of rows; categories have others
ALL: Final = "all"
_ABOVE_NOISE: Final = 10.0  # deviations of the noise, by which the number of records is above it


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
            return Result(
                {"column": self.over.name, "n": round(total), "counts": {row[0]: row[1] for row in rows}},
                (ResultTable(f"Records by {self.over.name}", (self.over.name, "records", "%"), rows),),
                (self._bars(cells[0][:-1]),),
            )
        return self._crossed(told, names)

    def _bars(self, cells: Values) -> Figure:
        name = self.over.name
        bars = {name: [(i, max(float(cell), 0.0)) for i, cell in enumerate(cells)]}
        return Figure("bars", f"Records by {name}", name, "records", bars, labels=self.over.categories)

    def noisy_shown(self, cells: Values, deviation: float) -> Result:
        """Every cell with its interval, and of two columns chi-square with the noise in it."""
        found = super().noisy_shown(cells, deviation)
        if self.rows is None:
            return replace(found, figures=(self._bars(cells[0][:-1]),))
        test = noisy_chi_square(cells[:-1, :-1], deviation)
        if test is None:
            note = "chi-square: there is none where the noise is too large for so few records"
            return replace(found, values={**found.values, "chi_square": None}, notes=(*found.notes, note))
        line, title = tuple(test.values()), f"{self.rows.name} by {self.over.name}"
        tested = ResultTable(f"Chi-square test of independence, {title}", tuple(test), (line,))
        values = {**found.values, "chi_square": test}
        return replace(found, values=values, tables=(*found.tables, tested))

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


def noisy_chi_square(cells: Values, t: float) -> dict[str, float] | None:
    """The same of cells with noise of deviation ``t``; None where it is too large.

    What cells exceed their expectations by is, to first order, (I - p 1') cells (I - 1 q') for shares p and q
    of rows and columns: noise adds to its variance under independence, n (diag(p) - pp') x (diag(q) - qq').

    Source: Gaboardi, Lim, Rogers, Vadhan 2016, Differentially Private Chi-Squared Hypothesis Testing.
    """
    from scipy.stats import chi2

    rows, columns = cells.shape
    n = float(cells.sum())
    if min(rows, columns) < 2 or n < _ABOVE_NOISE * t * math.sqrt(cells.size) or not n > 0:
        return None
    p, q = (np.maximum(cells.sum(axis=axis), 0.0) for axis in (1, 0))
    p, q = p / p.sum(), q / q.sum()
    excess = (cells - np.outer(cells.sum(axis=1), cells.sum(axis=0)) / n)[:-1, :-1].ravel()
    centred = [np.eye(len(share)) - share[:, None] for share in (p, q)]
    sampling = [np.diag(share) - np.outer(share, share) for share in (p, q)]
    noise = [(one @ one.T)[:-1, :-1] for one in centred]
    covariance = n * np.kron(*(one[:-1, :-1] for one in sampling)) + t * t * np.kron(*noise)
    try:
        statistic = float(excess @ np.linalg.solve(covariance, excess))
    except np.linalg.LinAlgError:
        return None
    degrees = (rows - 1) * (columns - 1)
    return {"statistic": statistic, "df": float(degrees), "p": float(chi2.sf(statistic, degrees))}
