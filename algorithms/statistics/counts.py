"""``counts``: how many records of each category, or of each pair in a cross table, with chi-square.

Missing values are a category of their own. Beside records each site adds 1 to every cell that it has records in:
a cell of one hospital's only would be that hospital's number.
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
    finish,
    hide,
    positions,
    tally,
    tensor,
)
from secfed.algorithms.statistics.disclosure import (
    WITHHELD,
    Reason,
    is_small,
    suppressed_list,
    suppressed_table,
)
from secfed.algorithms.statistics.options import CountsOptions
from secfed.algorithms.statistics.results import Figure, Result, ResultTable, count

MISSING = "(missing)"


class Counts(Analysis):
    """A table of one or two columns; of one column, it has a single row."""

    kind = "counts"

    def _read(self, options: CountsOptions) -> None:
        self.listed = [self.column("columns", name, "category") for name in options.columns]
        self.rows: Column | None = self.listed[0] if len(self.listed) == 2 else None
        self.over = self.listed[-1]
        self.shape = (1 if self.rows is None else len(self.rows.categories) + 1, len(self.over.categories) + 1)

    def parts(self, step: int) -> Sequence[Part]:
        """Records, and hospitals, of every cell."""
        del step
        return Part("records", self.shape), Part("hospitals", self.shape, whole=True)

    def shapes(self) -> Shapes:
        """The table as it is told."""
        return {"records": self.shape}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """One tally."""
        del step, given
        over = positions(table.values[self.over.name], len(self.over.categories))
        rows = np.zeros_like(over)
        if self.rows is not None:
            rows = positions(table.values[self.rows.name], len(self.rows.categories))
        found = tally(rows, over, self.shape)
        return {"records": found, "hospitals": np.minimum(found, 1.0)}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Withhold small cells, and what they would follow from."""
        del step, same
        records = [[float(round(cell)) for cell in row] for row in totals["records"].tolist()]
        hospitals = totals["hospitals"].tolist()
        small = [
            [
                is_small(cell, self.min_cell) or (cell > 0 and round(where) < self.rules.min_hospitals)
                for cell, where in zip(row, places, strict=True)
            ]
            for row, places in zip(records, hospitals, strict=True)
        ]
        if is_small(sum(map(sum, records)), self.min_cell):
            return hide(state, Reason.FEW_RECORDS)
        if self.rows is None:
            hidden: list[list[bool]] | None = [suppressed_list(records[0], small[0], self.min_cell)]
        else:
            hidden = suppressed_table(records, small, self.min_cell)
        if hidden is None:
            return hide(state, Reason.FEW_RECORDS)
        state["records"] = tensor(
            [
                [WITHHELD if out else cell for cell, out in zip(row, outs, strict=True)]
                for row, outs in zip(records, hidden, strict=True)
            ]
        )
        state["rows"] = tensor([sum(row) for row in records])
        state["over"] = tensor([sum(column) for column in zip(*records, strict=True)])
        finish(state)

    def released(self, state: State) -> State:
        """Cells and margins."""
        return {name: state[name] for name in ("records", "rows", "over")}

    def result(self, released: Mapping[str, Values]) -> Result:
        """The table; of two columns with margins and chi-square."""
        cells = released["records"]
        names = (*self.over.categories, MISSING)
        if self.rows is None:
            total = float(released["rows"][0])
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
        return self._crossed(cells, released, names)

    def _crossed(self, cells: Values, released: Mapping[str, Values], names: tuple[str, ...]) -> Result:
        rows_of = self.rows
        if rows_of is None:
            raise ValueError("not a cross table")
        shown = [
            (name, *(count(cell) for cell in row), count(margin))
            for name, row, margin in zip(
                (*rows_of.categories, MISSING), cells, released["rows"], strict=True
            )
            if name != MISSING or margin != 0
        ]
        total = ("all", *(count(margin) for margin in released["over"]), round(released["rows"].sum()))
        keep = [0, *(i + 1 for i, name in enumerate(names) if name != MISSING or released["over"][i]), -1]
        title = f"{rows_of.name} by {self.over.name}"
        header = (rows_of.name, *names, "all")
        table = ResultTable(
            title, tuple(header[i] for i in keep), tuple(tuple(row[i] for i in keep) for row in (*shown, total))
        )
        values = {
            "rows": [rows_of.name, *rows_of.categories],
            "columns": [self.over.name, *self.over.categories],
            "n": round(released["rows"].sum()),
            "counts": {row[0]: dict(zip(names, row[1:-1], strict=True)) for row in shown},
        }
        test = chi_square(cells[:-1, :-1])
        if test is None:
            return Result(values | {"chi_square": None}, (table,), notes=("chi-square: not told of withheld cells",))
        line = ("chi-square", *test.values())
        tested = ResultTable(f"Test of independence, {title}", ("test", *test), (line,))
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
