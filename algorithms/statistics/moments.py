"""Means and variances of a number by group: what ``describe`` and ``t-test`` share.

Numbers are centred at the middle of their declared bounds and divided by half their width before they are
squared: both are public, and far fewer digits are lost than without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Column
from secfed.algorithms.statistics.analysis import Part, Values

_STEPS_OF_A_DEVIATION: Final = 5.0  # over the number of records


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


def without_count(mean: float, deviation: float, n: float) -> tuple[float, float]:
    """A mean and a deviation in so few digits that ``n`` does not follow from them.

    Of whole numbers n times the mean is one, and of the candidates for n only the true one may have that:
    in steps of several deviations over n it holds of each. The sums of groups then do not tell it either.
    """
    least = _STEPS_OF_A_DEVIATION * deviation / n
    if not least > 0.0:
        return mean, deviation
    power = float("1e" + f"{least:e}".partition("e")[2])
    step = next(k * power for k in (1.0, 2.0, 5.0, 10.0) if k * power >= least)
    told = step * round(mean / step), step * max(round(deviation / step), 1)
    return float(f"{told[0]:.12g}"), float(f"{told[1]:.12g}")


def mean_and_variance(n: float, total: float, squares: float, column: Column) -> tuple[float, float]:
    """Of at least two numbers, in their unit: the mean, and the variance with n - 1."""
    scale, mean = scale_of(column), total / n
    left = squares - total * mean
    return centre_of(column) + scale * mean, scale * scale * max(left, 0.0) / (n - 1.0)
