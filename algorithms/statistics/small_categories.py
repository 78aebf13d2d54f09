"""Categories of a formula that few records are of: their coefficients would tell about these records.

Coefficient and error of a category's column give back how many records it has and their mean outcome; where a
formula has categories only, they give back every cell of the table of categories and outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.statistics.analysis import Part, Values
from secfed.algorithms.statistics.disclosure import is_small
from secfed.algorithms.statistics.formula import DesignColumn


def support_part(columns: Sequence[DesignColumn]) -> Part:
    """Records, and those with the event, of every column of categories."""
    return Part("support", (2, len(columns)))


def support(x: Values, events: NDArray[np.bool_], columns: Sequence[DesignColumn]) -> Values:
    """One site's part [2, p]; 0 for a column of numbers only."""
    there = (x != 0) & np.array([_of_categories(column) for column in columns])
    return np.stack([there.sum(axis=0), there[events].sum(axis=0)]).astype(np.float64)


def small_columns(
    totals: Sequence[Sequence[float]],
    columns: Sequence[DesignColumn],
    *,
    records: float,
    events: float | None,
    min_cell: int,
) -> list[bool]:
    """Which columns have few records, or leave few for the reference; without ``events``, of any outcome."""
    marks = [False] * len(columns)
    # Beside numbers, leverages say how few outcomes of a category are (checks.pairs_of).
    alone = events is not None and all(level is not None for column in columns for _, level in column.parts)
    groups: dict[int, list[int]] = {}
    for k, column in enumerate(columns):
        if _of_categories(column):
            groups.setdefault(column.term, []).append(k)
    for members in groups.values():
        whole = [(totals[0][k], totals[1][k]) for k in members]
        if all(len(columns[k].parts) == 1 for k in members):  # what is left is the reference
            rest = records - sum(n for n, _ in whole), (events or 0.0) - sum(d for _, d in whole)
            whole.append(rest)
        for at, (n, d) in enumerate(whole):
            cells = (n, records - n, d, n - d) if alone else (n, records - n)
            if any(is_small(cell, min_cell) for cell in cells):
                for k in members if at == len(members) else [members[at]]:
                    marks[k] = True
    return marks


def _of_categories(column: DesignColumn) -> bool:
    return any(level is not None for _, level in column.parts)
