"""How much of what is told a few records decide: leverages over sums of products.

A sum over records tells about single ones where most of it comes from a few. For columns X of such sums the
leverage of a record is its largest share in any combination of them, x' (X'X)^-1 x: 1 for the only record of
a category, 1/k for each of k records, however the category is written. Of the records above 1 / ``min_cell``
the products are summed: their largest eigenvalue is the largest share of these records in any combination,
and where it is too large, a result is withheld. The largest share of a hospital is that of its records.

Source: Belsley, Kuh, Welsch 1980, Regression Diagnostics, section 2.1; Hundepool et al. 2012, Statistical
Disclosure Control, section 4.2 (dominance) and chapter 5 (regressions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from secfed.algorithms.data.tabular.columns import Values

MOST_HELD: Final = 0.5  # by records above 1 / min_cell, of any combination of columns
MOST_OF_A_PRODUCT: Final = 0.8  # the same of two columns with their product, or of a described number
MOST_OF_A_SQUARE: Final = 0.95  # of a number with its square, or of two described numbers in a group
_ABOVE: Final = 1.01  # over 1 / min_cell: the leverage of each of min_cell records is rounded
_OF_OTHERS: Final = 1 / 8  # of their share of records: the least that others have of a combination
_DEPENDENT: Final = 1e-12  # of a column's squares: less is left by rounding alone
_NEARLY: Final = 1e-8  # of them: what little is left must be of no single record
_RESIDUAL: Final = 1e-8  # of a scaled column: more is never taken for rounding
_SUM: Final = 1e-15  # of the number of records: what the sum of so many products may lose
_CLOSE: Final = 1e4  # times what products lose: more is left of a column that follows from no others
_FLOAT: Final = 1e-13  # of a scaled column: what a record's own arithmetic may lose


def packed(matrix: Values) -> Values:
    """X'X, its lower triangle row by row."""
    products: Values = (matrix.T @ matrix)[np.tril_indices(matrix.shape[1])]
    return products


def packed_size(columns: int) -> int:
    """How many numbers :func:`packed` gives."""
    return columns * (columns + 1) // 2


def components(matrix: Values, products: Values, grain: float = 0.0) -> Values:
    """Columns [n, p] that are orthogonal over all hospitals: rows' squares add up to leverages.

    A column that follows from those before it is 0, but 1 for a record in which it differs from them by more
    than rounding explains: each product is right to ``grain``. None is beyond 1, and all are numbers,
    whatever products somebody broadcasts: no work may fail on them.
    """
    p = matrix.shape[1]
    total = np.zeros((p, p))
    total[np.tril_indices(p)] = products
    lower, found = np.zeros((p, p)), np.zeros(matrix.shape)
    with np.errstate(all="ignore"):
        lost = grain + _SUM * total[0, 0]
        for k in range(p):
            for i in range(k):
                own = lower[i, i]
                lower[k, i] = (total[k, i] - lower[k, :i] @ lower[i, :i]) / own if own else 0.0
            left = total[k, k] - lower[k, :k] @ lower[k, :k]
            rest = matrix[:, k] - found[:, :k] @ lower[k, :k]
            plain = left > max(_NEARLY * total[k, k], _CLOSE * lost)
            most, least = (0.0, 0.0) if plain else _rounding(lower[: k + 1, :k], lost)
            if plain or left > max(_DEPENDENT * total[k, k], least):
                lower[k, k] = np.sqrt(left)
                found[:, k] = rest / lower[k, k]
                if not left > _NEARLY * total[k, k]:
                    found[np.abs(rest) > _RESIDUAL, k] = 1.0
            else:
                found[:, k] = np.abs(rest) > most
    within: Values = np.clip(np.nan_to_num(found, nan=1.0), -1.0, 1.0)
    return within


def _rounding(lower: Values, grain: float) -> tuple[float, float]:
    """What rounding leaves of a last column that follows from others, at most: of a record, of all squares.

    Products T of columns and t of them with the last give T^-1 t as its coefficients, and errors of T and t
    move these by T^-1 times as much; no value of a column is beyond 1.
    """
    used = np.flatnonzero(np.diag(lower[:-1]))
    if not used.size:
        return _FLOAT, grain
    try:
        inverse = np.linalg.inv(lower[np.ix_(used, used)])
    except np.linalg.LinAlgError:
        return _RESIDUAL, 0.0
    weights = np.abs(lower[-1, used] @ inverse).sum()
    most = np.abs(inverse.T @ inverse).sum() * (1.0 + weights) * grain
    return float(np.nanmin([_RESIDUAL, most + _FLOAT])), float((1.0 + weights) ** 2 * grain)


def held(found: Values, sizes: Sequence[int], min_cell: int) -> Values:
    """For the first ``sizes`` components each, products of the records above 1 / ``min_cell``."""
    parts = [np.zeros(0)]
    for size in sizes:
        rows = found[:, :size]
        leverage = (rows**2).sum(axis=1)
        chosen = leverage > _ABOVE / min_cell
        parts.append(packed(rows[chosen] / np.sqrt(np.maximum(leverage[chosen], 1.0))[:, None]))
    return np.concatenate(parts)


def exceeds(products: Sequence[float], columns: int, limit: float) -> bool:
    """Whether these products, summed, have an eigenvalue of ``limit`` or more: alike on every machine.

    By Cholesky's method. Every number is rounded as in :func:`arithmetic.cholesky`, since NumPy takes one
    difference of one product at a time here, in the same order; a hundred times as fast for many columns.
    """
    rest = np.diag(np.full(columns, float(limit)))
    rest[np.tril_indices(columns)] -= products
    for k in range(columns):
        if not rest[k, k] > 0.0:
            return True
        below = rest[k + 1 :, k] / np.sqrt(rest[k, k])
        rest[k + 1 :, k + 1 :] -= np.multiply.outer(below, below)
    return False


def alone(found: Values, sizes: Sequence[int]) -> Values:
    """For the first ``sizes`` components each: 1 if a combination of them is nearly of these records only."""
    own = found.T @ found
    most = 1 - _OF_OTHERS * (1 - own[0, 0])  # the first column is 1 for every record
    return np.array([float(np.linalg.eigvalsh(own[:size, :size])[-1] > most) for size in sizes])
