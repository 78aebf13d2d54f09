"""Records by two lists of cells, as ``counts``, ``describe`` and ``histogram`` sum and tell them.

Beside records each site adds 1 to every cell that it has records in: a cell of one hospital's only would be
that hospital's number. Two analyses of a study can ask for one table, one of them turned over: what is
withheld is decided with the columns in alphabetical order, so it is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.statistics.analysis import Part, Rules, Values, tally
from secfed.algorithms.statistics.disclosure import Told, is_small, protected


def table_parts(name: str, shape: tuple[int, int]) -> Sequence[Part]:
    """Records, and hospitals, of every cell."""
    return Part(f"records/{name}", shape), Part(f"hospitals/{name}", shape, whole=True)


def table_sums(
    name: str, rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]
) -> Mapping[str, Values]:
    """One site's part."""
    found = tally(rows, columns, shape)
    return {f"records/{name}": found, f"hospitals/{name}": np.minimum(found, 1.0)}


def told_table(
    name: str, totals: Mapping[str, torch.Tensor], rules: Rules, order: tuple[str, str]
) -> Told | None:
    """The table without small numbers, of a study in which rows and columns are called ``order``."""
    turned = order[0] > order[1]
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
    told = protected(counts, small, rules.min_cell)
    if told is None or not turned:
        return told
    cells = [list(column) for column in zip(*told.cells, strict=True)]
    return Told(cells, told.columns, told.rows, told.total)


def with_margins(told: Told) -> list[list[float]]:
    """One list for each row, margins last, and a last row of margins."""
    rows = [[*cells, margin] for cells, margin in zip(told.cells, told.rows, strict=True)]
    return [*rows, [*told.columns, told.total]]
