"""What is withheld of a table so that no small number of records can be read from it.

A cell with 1 to ``min_cell - 1`` records is withheld, and so are others with it, or it would follow from
the margins. Decided from totals alone, in whole numbers, so that everybody who repeats the step withholds
the same.

Source: Hundepool et al. 2012, Statistical Disclosure Control, chapter 4 (complementary suppression).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

WITHHELD: Final = -1.0  # in the place of a count
_NEVER: Final = 1 << 40  # a price above that of all records


class Reason(IntEnum):
    """Why a result is withheld; 0 for one that is not."""

    RELEASED = 0
    UNFINISHED = 1
    FEW_RECORDS = 2
    MANY_PARAMETERS = 3
    DEPENDENT_TERMS = 4
    SEPARATED = 5
    NOT_CONVERGED = 6
    HOSPITALS_CHANGED = 7
    OTHER_WITHHELD = 8
    NO_VARIATION = 9
    FEW_HOSPITALS = 10
    OUT_OF_RANGE = 11
    SMALL_CATEGORIES = 12
    TOO_NOISY = 13
    DOMINATED = 14


EXPLANATIONS: Final = {
    Reason.UNFINISHED: "its sums did not come about",
    Reason.FEW_RECORDS: "fewer records than min_cell",
    Reason.MANY_PARAMETERS: "too many parameters for so few records or events",
    Reason.DEPENDENT_TERMS: "terms that follow from the terms before them; remove them from the formula",
    Reason.SEPARATED: "the terms predict the outcome of some records perfectly, so that no finite estimate "
    "exists; remove terms, join categories, or set ridge",
    Reason.NOT_CONVERGED: "no estimate after max_steps steps; raise max_steps, or set ridge",
    Reason.HOSPITALS_CHANGED: "hospitals left or came back in the last steps; repeat the study, "
    "with protection.max_dropouts = 0 if all must be in it",
    Reason.OTHER_WITHHELD: "the analysis that it builds on is withheld",
    Reason.NO_VARIATION: "a group, an outcome or a column does not vary",
    Reason.FEW_HOSPITALS: "fewer hospitals than min_hospitals have such records",
    Reason.SMALL_CATEGORIES: "a category, or two together, has fewer records than min_cell, or fewer with or "
    "without the event; join categories, or leave it out",
    Reason.DOMINATED: "fewer records than min_cell would decide a number of it, alone or with the analyses "
    'before it; take fewer or smoother terms, narrower bounds with outside = "clip", or the logarithm of a '
    "number with a few large values",
    Reason.TOO_NOISY: "the noise is too large for an estimate from so few records; raise epsilon, take fewer "
    "terms, or declare narrower bounds",
    Reason.OUT_OF_RANGE: "predictions are beyond what the declared columns allow",
}

NAMING: Final = (Reason.DEPENDENT_TERMS, Reason.SEPARATED, Reason.SMALL_CATEGORIES)  # terms are named then
BLAMING: Final = (Reason.SMALL_CATEGORIES, Reason.FEW_HOSPITALS, Reason.DOMINATED)  # columns, by checks
UNESTIMATED: Final = (  # what records make of an estimate: only told where checks let the estimate be told
    Reason.DEPENDENT_TERMS,
    Reason.SEPARATED,
    Reason.NOT_CONVERGED,
    Reason.NO_VARIATION,
    Reason.OUT_OF_RANGE,
)


def is_small(count: float, min_cell: int) -> bool:
    """Whether so many records must not be told; none may be."""
    return 0 < round(count) < min_cell


def suppressed_list(
    cells: Sequence[float], small: Sequence[bool], min_cell: int, told: int | None = None
) -> list[bool]:
    """Which numbers of a list with a known total to withhold, where ``small`` ones are.

    With them go others of at least ``min_cell``, from the last to the first, until the sum of what is
    withheld, which everybody can compute, is twice ``min_cell``: every small number could then be any other.
    Chosen by size instead, the withheld ones would be bounded by those that are told. The number at ``told``
    is known from elsewhere, and is no such other.
    """
    counts, hidden = [round(cell) for cell in cells], list(small)
    if not any(hidden):
        return hidden
    whole, more = sum(n for n, out in zip(counts, hidden, strict=True) if out), False
    for i in reversed(range(len(counts))):
        if more and whole >= 2 * min_cell:
            return hidden
        if counts[i] >= min_cell and not hidden[i] and i != told:
            hidden[i], more, whole = True, True, whole + counts[i]
    if more and whole >= 2 * min_cell:
        return hidden
    return [True] * len(counts)  # empty ones too: what is left would be the sum of the small ones


def suppressed_table(
    cells: Sequence[Sequence[float]],
    small: Sequence[Sequence[bool]],
    min_cell: int,
    elsewhere: tuple[int, Sequence[bool]] | None = None,
) -> list[list[bool]] | None:
    """Which cells of a table with known margins to withhold, where ``small`` ones are; None if all must be.

    Every small cell is a corner of a rectangle of withheld cells whose neighbouring corners have at least
    ``min_cell`` records: these could move to it without changing a margin, so the margins bound it by no
    less. Of several, the one that withholds the fewest records, then the first. ``elsewhere`` is a
    column that another analysis tells, and which of its cells that withholds: so does this table.
    """
    counts = np.array([[round(cell) for cell in row] for row in cells], np.int64)
    marks = np.array(small, np.bool_)
    hidden, large = marks.copy(), counts >= min_cell
    if elsewhere is not None:
        hidden[:, elsewhere[0]] |= elsewhere[1]
    prices = np.where(hidden, 0, counts)  # records that are withheld beside those that already are
    if elsewhere is not None:
        prices[~hidden[:, elsewhere[0]], elsewhere[0]] = _NEVER
    in_row, in_column = [np.flatnonzero(row) for row in large], [np.flatnonzero(one) for one in large.T]
    for i, j in np.argwhere(marks):
        rows, columns = in_column[j][in_column[j] != i], in_row[i][in_row[i] != j]
        if not rows.size or not columns.size:
            return None
        price = prices[rows[:, None], columns] + prices[rows, j][:, None] + prices[i, columns]
        if price.min() >= _NEVER:
            return None
        k, m = (int(at) for at in np.unravel_index(int(np.argmin(price)), price.shape))
        for corner in ((i, columns[m]), (rows[k], j), (rows[k], columns[m])):
            hidden[corner], prices[corner] = True, 0
    found: list[list[bool]] = hidden.tolist()
    return found


@dataclass(frozen=True)
class Told:
    """A table as it is told; :data:`WITHHELD` in the place of what is not."""

    cells: list[list[float]]
    rows: list[float]  # margins
    columns: list[float]
    total: float


def protected(
    cells: Sequence[Sequence[float]],
    small: Sequence[Sequence[bool]],
    min_cell: int,
    *,
    last_told: bool = False,
) -> Told | None:
    """A table with its margins, without small numbers and what they follow from; None if it has few records.

    Rows and columns with few records are withheld, margins too, each with another one. Everybody can
    compute the sum of the withheld ones, so they count as one row, and one column, of the table that is
    protected then. With ``last_told`` another analysis tells the last column, of missing values, beside the
    sum of the others: it is withheld where it is there, and hides none of the others.
    """
    counts = [[float(round(cell)) for cell in row] for row in cells]
    by_row, by_column = [sum(row) for row in counts], [sum(column) for column in zip(*counts, strict=True)]
    total = sum(by_row)
    if is_small(total, min_cell):
        return None

    last = len(by_column) - 1 if last_told else None

    def marks(
        sums: Sequence[float],
        lines: Sequence[Sequence[bool]],
        of: Sequence[Sequence[float]],
        told: int | None = None,
    ) -> list[bool]:
        # A line whose cells with records are small, each of them, may be small as a whole.
        alone = [
            n > 0 and all(mark for mark, cell in zip(line, values, strict=True) if cell)
            for n, line, values in zip(sums, lines, of, strict=True)
        ]
        return suppressed_list(
            sums, [is_small(n, min_cell) or one for n, one in zip(sums, alone, strict=True)], min_cell, told
        )

    columns_of = [list(column) for column in zip(*counts, strict=True)]
    out_rows = [False] if len(counts) == 1 else marks(by_row, small, counts)
    out_columns = (
        [False]
        if len(by_column) == 1
        else marks(by_column, [list(column) for column in zip(*small, strict=True)], columns_of, last)
    )
    kept_rows = [i for i, out in enumerate(out_rows) if not out]
    kept_columns = [j for j, out in enumerate(out_columns) if not out]
    rows = [[i] for i in kept_rows] + (
        [[i for i, out in enumerate(out_rows) if out]] if any(out_rows) else []
    )
    columns = [[j] for j in kept_columns]
    columns += [[j for j, out in enumerate(out_columns) if out]] if any(out_columns) else []
    joined = [[sum(counts[i][j] for i in r for j in c) for c in columns] for r in rows]
    alone = [
        [
            small[r[0]][c[0]] if len(r) == len(c) == 1 else is_small(joined[a][b], min_cell)
            for b, c in enumerate(columns)
        ]
        for a, r in enumerate(rows)
    ]
    hidden = [[False] * len(columns) for _ in rows]
    if len(rows) > 1 and len(columns) > 1:
        elsewhere = None
        if last in kept_columns:
            out = _withheld_last(counts, small, min_cell)
            elsewhere = kept_columns.index(last), [len(r) == 1 and out[r[0]] for r in rows]
        found = suppressed_table(joined, alone, min_cell, elsewhere)
        hidden = [[True] * len(columns) for _ in rows] if found is None else found
    told = [[WITHHELD] * len(by_column) for _ in counts]
    for a, i in enumerate(kept_rows):
        for b, j in enumerate(kept_columns):
            if not hidden[a][b]:
                told[i][j] = counts[i][j]
    return Told(
        told,
        [WITHHELD if out else n for n, out in zip(by_row, out_rows, strict=True)],
        [WITHHELD if out else n for n, out in zip(by_column, out_columns, strict=True)],
        total,
    )


def _withheld_last(
    counts: Sequence[Sequence[float]], small: Sequence[Sequence[bool]], min_cell: int
) -> list[bool]:
    """Which cells of the last column are withheld where it is told beside the sum of the others."""
    beside = [[sum(row[:-1]), row[-1]] for row in counts]
    # Cells of one hospital each are large and marked: their sum may be that hospital's, too.
    alone = [
        all(mark for mark, cell in zip(own[:-1], row[:-1], strict=True) if cell) and max(row[:-1]) >= min_cell
        for own, row in zip(small, counts, strict=True)
    ]
    few = [
        [is_small(n, min_cell) or one, own[-1]] for (n, _), one, own in zip(beside, alone, small, strict=True)
    ]
    told = protected(beside, few, min_cell)
    return [told is None or told.cells[i][-1] == WITHHELD for i in range(len(counts))]
