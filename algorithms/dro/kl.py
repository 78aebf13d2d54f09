"""KL balls around the uniform weights: the projection from a few power sums.

With u the uniform weights over n sites, the ball is sum_i l_i log(n l_i) <= rho. KL is made by the same
mirror map as the exponentiated step, so the matching (Bregman) projection of positive numbers a_i, known
up to a common factor, only *tempers* them:

    l_i = a_i^b / M(b),   M(b) = sum_j a_j^b,   b in (0, 1]

with b = 1 if that is inside the ball, and otherwise the b for which the divergence K(b) equals rho. With
P = log M the divergence is K(b) = log n + b P'(b) - P(b); K(0) = 0 and K' >= 0, so bisection is safe.

M needs every site. What travels is M at a few fixed powers b_1..b_G; M(0) = n is public. M is a sum of
exponentials exp(b x) with positive coefficients, x = log a, so between the powers it is filled in by
another such sum that has the same values there: non-negative least squares over a grid of x. That is
100 times closer than a polynomial through log M, above all when one site stands out. The powers are
Chebyshev's points with both ends, so that M(0) costs nothing and M(1), which matters most, is exact.

Source: Bregman projection under a linear and a KL constraint, by its stationarity condition; Chebyshev
points as in Trefethen, "Approximation Theory and Approximation Practice", SIAM 2013, chapters 2 to 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.dro.answer import malformed

Array = NDArray[np.float64]

_HALVINGS: Final = 80  # of an interval of length 1: below float64's resolution
_LOWEST: Final = -31.0  # log a of a weight of 1e-9 and a loss of 0 under a cap of 10 / gamma
_POINTS: Final = 300  # of the grid of log a
_FINER: Final = np.linspace(-1.0, 1.0, 21)  # around every point in use, in units of the grid's step
_REFINEMENTS: Final = 3


def powers(count: int) -> tuple[float, ...]:
    """The powers b_1 < ... < b_count = 1 whose sums travel; b_0 = 0 is left out, its sum is the count."""
    return tuple((1.0 - math.cos(math.pi * k / count)) / 2.0 for k in range(1, count + 1))


@lru_cache(maxsize=4)  # in a simulation every site asks the same
def solve(sums: tuple[float, ...], count: int, rho: float) -> tuple[float, float]:
    """The power b in (0, 1] and log M(b): the weight of a member is exp(b log a_i - log M(b)).

    ``sums`` are those of a_i^b over ``count`` members, for b in ``powers(len(sums))``; every a_i in (0, 1].
    """
    at = np.array([0.0, *powers(len(sums))])
    grid, shares = _fitted(at, np.array([float(count), *sums]))

    def curve(power: float) -> tuple[float, float]:
        """Log M and its slope."""
        parts = shares * np.exp(power * grid)
        total = float(parts.sum())
        return math.log(total), float((parts * grid).sum()) / total

    def inside(power: float) -> bool:
        log_sum, slope = curve(power)
        return math.log(count) + power * slope - log_sum <= rho

    if inside(1.0):
        return 1.0, math.log(sums[-1])
    power = _largest(inside)
    return power, curve(power)[0]


def _fitted(at: Array, values: Array) -> tuple[Array, Array]:
    from scipy.optimize import nnls  # a slow import that only this algorithm needs

    # A number between two points would count as a spread of both, so the grid is refined around those in use.
    step = -_LOWEST / (_POINTS - 1)
    grid = np.linspace(_LOWEST, 0.0, _POINTS)
    for refinement in range(_REFINEMENTS + 1):
        # Every sum counts relative to its own size, which falls by many powers of ten from b = 0 to b = 1.
        try:
            relative = np.exp(np.outer(at, grid)) / values[:, None]
            shares, _ = nnls(relative, np.ones(len(values)), maxiter=10_000)
        except RuntimeError:
            raise malformed("holds sums that no numbers have") from None
        grid, shares = grid[shares > 0.0], shares[shares > 0.0]
        if not shares.size:
            raise malformed("holds sums that no numbers have")
        if refinement < _REFINEMENTS:
            grid = np.unique(np.minimum((grid[:, None] + step * _FINER).ravel(), 0.0))
            step *= float(_FINER[1] - _FINER[0])
    return grid, shares


def largest_weight(count: int, rho: float) -> float:
    """The largest weight any of ``count`` sites can have inside the ball."""
    if rho >= math.log(count):
        return 1.0

    def inside(share: float) -> bool:
        # One site has 1/n + share (1 - 1/n), the others divide the rest equally, which is the cheapest way.
        top = 1.0 / count + share * (1.0 - 1.0 / count)
        rest = (1.0 - top) / max(count - 1, 1)
        others = rest * math.log(count * rest) if rest > 0.0 else 0.0
        return top * math.log(count * top) + (count - 1) * others <= rho

    return 1.0 / count + _largest(inside) * (1.0 - 1.0 / count)


def _largest(inside: Callable[[float], bool]) -> float:
    """By bisection, the largest x in [0, 1] inside."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if inside(middle):
            low = middle
        else:
            high = middle
    return low
