"""The symmetric distributions that noise is drawn from, as log densities relative to their centre.

The density falls with the magnitude. Its ratio ln(density(magnitude) / density(0)) is given twice: in double
precision, vectorised, with an absolute error below 2^-38 wherever the density is above 2^-200 of its peak;
and in decimal arithmetic, to the precision of the caller's context. A ``continuous`` target is a real
variable that is rounded to the nearest integer, any other an integer. ``deviation``, roughly the standard
deviation, sets the width of the sampler's bands. Magnitudes beyond ``reach`` have less than 2^-200 of the
mass and are never drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.errors import ConfigError

# Beyond 17 deviations a normal variable has mass below 2^-200.
_NORMAL_REACH: Final = 17.0
_TAIL_BITS: Final = 205
_SMALL_VARIANCE: Final = 4096.0
_DIGITS: Final = 140
_NEGLIGIBLE: Final = Decimal(10) ** -100
MAX_DEVIATION: Final = 2.0**48.9  # magnitudes up to the reach stay exact in double precision


@dataclass(frozen=True)
class _Normal:
    """exp(-x^2 / (2 deviation^2)), over the reals or over the integers."""

    deviation: float

    def __post_init__(self) -> None:
        if not 0 < self.deviation <= MAX_DEVIATION:
            raise ConfigError(f"noise of {self.deviation:g} grid steps cannot be drawn")

    @property
    def reach(self) -> float:
        return math.ceil(_NORMAL_REACH * self.deviation) + 1.0

    def log_ratio(self, magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
        scaled = magnitude / self.deviation
        return np.asarray(scaled * scaled * -0.5)

    def exact_log_ratio(self, magnitude: Decimal) -> Decimal:
        return -(magnitude * magnitude) / (2 * Decimal(self.deviation) ** 2)


class RoundedNormal(_Normal):
    """A normal variable of this deviation, rounded to the nearest integer.

    Adding it to an integer k is rounding k + normal: post-processing of the continuous Gaussian
    mechanism, so every accountant of that mechanism applies without a correction.
    """

    continuous = True


class DiscreteGaussian(_Normal):
    """P(k) proportional to exp(-k^2 / (2 deviation^2)) on the integers.

    Source: Canonne, Kamath, Steinke 2020 (arXiv 2004.00010), definition 1.
    """

    continuous = False


@dataclass(frozen=True)
class SkellamTarget:
    """The difference of two Poisson variables of mean ``variance / 2``: P(k) = exp(-v) I_k(v).

    Closed under summation: independent shares of variances v1, v2 sum to one of variance v1 + v2.

    Source: Agarwal, Kairouz, Liu 2021 (arXiv 2110.04995), definition 3.1; for variances from 4096 the
    uniform (Debye) expansion of the Bessel function, DLMF 10.41.3, below that its recurrence
    DLMF 10.29.1 run downwards.
    """

    variance: float
    continuous = False

    def __post_init__(self) -> None:
        if not 0 < self.variance <= MAX_DEVIATION**2:
            raise ConfigError(f"Skellam noise of variance {self.variance:g} cannot be drawn")

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.variance)

    @cached_property
    def reach(self) -> float:
        """Where Chernoff's bound on the tail passes 2^-200."""
        return skellam_tail(self.variance, _TAIL_BITS)

    @property
    def _table(self) -> tuple[Decimal, ...] | None:
        return None if self.variance >= _SMALL_VARIANCE else _skellam_table(self.variance)

    @cached_property
    def _float_table(self) -> NDArray[np.float64] | None:
        return None if self._table is None else np.array([float(value) for value in self._table])

    def log_ratio(self, magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
        """In double precision: [n] float64."""
        if self._float_table is not None:
            last = len(self._float_table) - 1
            return self._float_table[np.minimum(magnitude, last).astype(np.int64)]
        ratio = magnitude / self.variance
        root = np.sqrt(1.0 + ratio * ratio)
        main = magnitude * (ratio / (root + 1.0) - np.arcsinh(ratio))
        return np.asarray(
            main - 0.5 * np.log(root) + np.log(self._series(ratio, root)) - self._log_series_at_zero
        )

    @cached_property
    def _log_series_at_zero(self) -> float:
        return float(np.log(self._series(np.zeros(1), np.ones(1)))[0])

    def _series(self, ratio: NDArray[np.float64], root: NDArray[np.float64]) -> NDArray[np.float64]:
        # Up to the third power: what is left out is below 0.12 / 4096^4 < 2^-50.
        square = (ratio / root) ** 2
        step = 1.0 / (self.variance * root)
        total = np.ones_like(root)
        for power in range(1, 4):
            term = np.zeros_like(root)
            for coefficient in reversed(_debye(power)):
                term = term * square + float(coefficient)
            total += term * step**power
        return np.asarray(total)

    def exact_log_ratio(self, magnitude: Decimal) -> Decimal:
        """To about 70 digits for variances from 4096, more below."""
        if self._table is not None:
            return self._table[int(magnitude)]
        variance = Decimal(self.variance)
        ratio = magnitude / variance
        root = (1 + ratio * ratio).sqrt()
        main = magnitude * (ratio / (root + 1) - (ratio + root).ln())
        series = _exact_series(variance, ratio, root) / self._exact_series_at_zero
        return main - root.ln() / 2 + series.ln()

    @cached_property
    def _exact_series_at_zero(self) -> Decimal:
        with localcontext() as context:
            context.prec = _DIGITS
            return _exact_series(Decimal(self.variance), Decimal(0), Decimal(1))


Target = RoundedNormal | DiscreteGaussian | SkellamTarget


@lru_cache(maxsize=16)  # a study has few variances, and each exchange makes its samplers anew
def _skellam_table(variance: float) -> tuple[Decimal, ...]:
    """ln(I_k / I_0) for every k up to the reach, for small variances."""
    with localcontext() as context:
        context.prec = _DIGITS
        argument, top = Decimal(variance), int(skellam_tail(variance, _TAIL_BITS)) + 2
        # Miller's method: start far above `top` from arbitrary values; the error decays like I_n / I_top.
        start = 2 * top + 200
        above, here = Decimal(0), Decimal(1)
        values = [Decimal(0)] * (top + 1)
        for order in range(start, -1, -1):
            if order <= top:
                values[order] = here
            above, here = here, above + here * 2 * order / argument
        return tuple((value / values[0]).ln() for value in values)


def _exact_series(variance: Decimal, ratio: Decimal, root: Decimal) -> Decimal:
    square, step, total = (ratio / root) ** 2, 1 / (variance * root), Decimal(1)
    weight = step
    for coefficients in _decimal_debye():
        term = Decimal(0)
        for coefficient in reversed(coefficients):
            term = term * square + coefficient
        total += term * weight
        if abs(term * weight) < _NEGLIGIBLE:
            break
        weight *= step
    return total


@cache
def _decimal_debye() -> tuple[tuple[Decimal, ...], ...]:
    with localcontext() as context:
        context.prec = _DIGITS
        return tuple(
            tuple(Decimal(one.numerator) / Decimal(one.denominator) for one in _debye(power))
            for power in range(1, 29)
        )


@cache
def _debye(power: int) -> tuple[Fraction, ...]:
    """U_n(p) / p^n as a polynomial in p^2: n + 1 coefficients, lowest first. Source: DLMF 10.41.9."""
    if power == 0:
        return (Fraction(1),)
    before = _debye(power - 1)
    out = [Fraction(0)] * (power + 1)
    for index, coefficient in enumerate(before):
        exponent = power - 1 + 2 * index  # the term coefficient * p^exponent of U_(n-1)
        # p^2 (1 - p^2) / 2 times its derivative, plus the integral of (1 - 5 t^2) / 8 times it.
        out[index] += coefficient * (Fraction(exponent, 2) + Fraction(1, 8 * (exponent + 1)))
        out[index + 1] -= coefficient * (Fraction(exponent, 2) + Fraction(5, 8 * (exponent + 3)))
    return tuple(out)


def skellam_tail(variance: float, bits: float) -> float:
    """A magnitude that Skellam noise exceeds with probability below 2^-bits (Chernoff): whole number."""

    def exponent(magnitude: float) -> float:
        ratio = magnitude / variance
        root = math.hypot(1.0, ratio)
        return magnitude * (math.asinh(ratio) - ratio / (root + 1.0))

    needed = (bits + 1) * math.log(2)  # one bit for the two sides
    high = 1.0
    while exponent(high) < needed:
        high *= 2
    low = high / 2
    while high - low > max(0.5, 1e-9 * high):
        middle = (low + high) / 2
        low, high = (low, middle) if exponent(middle) >= needed else (middle, high)
    return float(math.ceil(high))
