"""Means and variances of a number by group: what ``describe`` and ``t-test`` share.

Numbers are centred at the middle of their declared bounds and divided by half their width before they are
squared: both are public, and far fewer digits are lost than without.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Column
from secfed.algorithms.statistics.analysis import Part, Values


def centre_of(column: Column) -> float:
    """The middle of the declared bounds."""
    return (column.low + column.high) / 2


def scale_of(column: Column) -> float:
    """Half the declared width."""
    return (column.high - column.low) / 2 or 1.0


def moment_parts(name: str, groups: int) -> Sequence[Part]:
    """Count, sum and squares of each group."""
    return (Part(name, (3, groups)),)


def moment_sums(values: Values, column: Column, group: NDArray[np.int64], groups: int) -> Values:
    """Count, sum and squares [3, groups] of the numbers that are there; group -1 is none."""
    known = ~np.isnan(values) & (group >= 0)
    scaled, group = (values[known] - centre_of(column)) / scale_of(column), group[known]
    return np.stack(
        [
            np.bincount(group, minlength=groups).astype(np.float64),
            np.bincount(group, scaled, minlength=groups),
            np.bincount(group, scaled**2, minlength=groups),
        ]
    )


def mean_and_variance(n: float, total: float, squares: float, column: Column) -> tuple[float, float]:
    """Of at least two numbers, in their unit: the mean, and the variance with n - 1."""
    scale, mean = scale_of(column), total / n
    left = squares - total * mean
    return centre_of(column) + scale * mean, scale * scale * max(left, 0.0) / (n - 1.0)
