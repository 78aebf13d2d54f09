"""Records by two lists of cells, as ``counts``, ``describe`` and ``histogram`` sum and tell them.

Beside records each site adds 1 to every cell that it has records in: a cell of one hospital's only would be
that hospital's number. Two analyses of a study can ask for one table, one of them turned over: what is
withheld is decided with the columns in alphabetical order, so it is the same in both.

Under noise in the sum a table is told as it is, with the noise's deviation: a record is in one cell of it, so
the noise hides it, and nothing is to be withheld.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.statistics.analysis import (
    NOISE,
    WEIGHTS,
    Analysis,
    Part,
    Rules,
    Shapes,
    State,
    Values,
    finish,
    hide,
    tally,
    tensor,
)
from secfed.algorithms.statistics.disclosure import Reason, Told, is_small, protected
from secfed.algorithms.statistics.results import Result, ResultTable
from secfed.errors import ConfigError

Positions = NDArray[np.int64]
_MOST_CELLS: Final = 50_000  # of more it takes seconds, with closed sums at every hospital
TWO_SIDED_95 = 1.959963984540054


def table_parts(name: str, shape: tuple[int, int], *, noisy: bool = False) -> Sequence[Part]:
    """Records, and hospitals, of every cell."""
    records = Part(f"records/{name}", shape)
    return (records,) if noisy else (records, Part(f"hospitals/{name}", shape, whole=True))


def check_size(name: str, shape: tuple[int, int], rules: Rules) -> None:
    """Refuse a table of which it would take long to decide what is withheld."""
    cells = shape[0] * shape[1]
    if cells > _MOST_CELLS and not rules.noisy:
        raise ConfigError(
            f"algorithm.analyses.{name}: has a table of {cells} cells",
            remedy=f"declare fewer categories, or set fewer bins: at most {_MOST_CELLS} cells",
        )


def table_sums(
    name: str, rows: Positions, columns: Positions, shape: tuple[int, int]
) -> Mapping[str, Values]:
    """One site's part."""
    found = tally(rows, columns, shape)
    return {f"records/{name}": found, f"hospitals/{name}": np.minimum(found, 1.0)}


def told_table(
    name: str,
    totals: Mapping[str, torch.Tensor],
    rules: Rules,
    order: tuple[str, str],
    *,
    last_told: bool = False,
) -> Told | None:
    """The table without small numbers, of a study in which rows and columns are called ``order``.

    With ``last_told`` the last column is told elsewhere, too (:func:`protected`); no other analysis has this
    table turned over then.
    """
    turned = order[0] > order[1] and not last_told
    records, hospitals = totals[f"records/{name}"], totals[f"hospitals/{name}"]
    if turned:
        records, hospitals = records.T, hospitals.T
    counts, places = records.tolist(), hospitals.tolist()
    small = [
        [
            is_small(n, rules.min_cell) or (round(n) > 0 and round(where) < rules.min_hospitals)
            for n, where in zip(row, there, strict=True)
        ]
        for row, there in zip(counts, places, strict=True)
    ]
    told = protected(counts, small, rules.min_cell, last_told=last_told)
    if told is None or not turned:
        return told
    cells = [list(column) for column in zip(*told.cells, strict=True)]
    return Told(cells, told.columns, told.rows, told.total)


def with_margins(told: Told) -> list[list[float]]:
    """One list for each row, margins last, and a last row of margins."""
    rows = [[*cells, margin] for cells, margin in zip(told.cells, told.rows, strict=True)]
    return [*rows, [*told.columns, told.total]]


class TableAnalysis(Analysis):
    """An analysis that is one table; every record is in one cell of it."""

    noisy = True
    shape: tuple[int, int]
    order: tuple[str, str]  # names of the columns in rows and columns; "" for a single row
    labels: tuple[Sequence[str], Sequence[str]]  # of rows and columns
    last_told: bool = False  # whether a description can tell the last column of the same records

    def __init__(self, name: str, options: Any, rules: Rules) -> None:
        super().__init__(name, options, rules)
        check_size(name, self.shape, rules)

    @abstractmethod
    def where(self, table: Table) -> tuple[Positions, Positions]:
        """The row and the column of every record."""

    @abstractmethod
    def shown(self, told: Values) -> Result:
        """From the table with its margins."""

    def parts(self, step: int) -> Sequence[Part]:
        """Records, and without noise hospitals, of every cell."""
        del step
        return table_parts("table", self.shape, noisy=self.rules.noisy)

    def shapes(self) -> Shapes:
        """The table as it is told, with margins, and the deviation of its noise."""
        return {"told": (self.shape[0] + 1, self.shape[1] + 1), NOISE: ()}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """One tally."""
        del step
        rows, columns = self.where(table)
        if self.rules.noisy:
            return {"records/table": tally(rows, columns, self.shape, given.get(WEIGHTS))}
        return table_sums("table", rows, columns, self.shape)

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Withhold small cells, and what they would follow from; or tell all of it with its noise."""
        del step, same
        if self.rules.noisy:
            cells = totals["records/table"].tolist()
            rows, columns = [sum(row) for row in cells], [sum(one) for one in zip(*cells, strict=True)]
            told: Told | None = Told(cells, rows, columns, sum(rows))
        else:
            told = told_table("table", totals, self.rules, self.order, last_told=self.last_told)
        if told is None:
            return hide(state, Reason.FEW_RECORDS)
        state["told"] = tensor(with_margins(told))
        return finish(state)

    def released(self, state: State) -> State:
        """Cells, margins and the deviation of their noise."""
        return {name: state[name] for name in ("told", NOISE)}

    def result(self, released: Mapping[str, Values]) -> Result:
        """The table, or every cell with the interval that the noise leaves."""
        if self.rules.noisy:
            return self.noisy_shown(released["told"][:-1, :-1], float(released[NOISE]))
        return self.shown(released["told"])

    def noisy_shown(self, cells: Values, deviation: float) -> Result:
        """Every cell with the interval that its noise leaves."""
        reach = TWO_SIDED_95 * deviation
        names = [name for name in self.order if name]
        lines = []
        for i, row in enumerate(self.labels[0]):
            for j, column in enumerate(self.labels[1]):
                where = (row, column) if len(names) > 1 else (column,)
                lines.append((*where, float(cells[i, j]), cells[i, j] - reach, cells[i, j] + reach))
        title = "Records by " + " and ".join(names)
        return Result(
            {
                "labels": [list(one) for one in self.labels],
                "counts": cells,
                "noise_deviation": deviation,
                "error_95": reach,
            },
            (ResultTable(title, (*names, "records", "low", "high"), tuple(lines)),),
            notes=("with the noise of [privacy], and the interval at 95 % that it leaves",),
        )
