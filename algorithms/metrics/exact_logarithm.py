"""A logarithm that comes out the same to the last bit everywhere, where hospitals compute it again."""

from __future__ import annotations

import math
from typing import Final

_LN2: Final = 0.6931471805599453


def logarithm(value: float) -> float:
    """The natural logarithm of a positive number, to a few units in the last place.

    Mathematical libraries differ in the last bit; this series does not.
    """
    mantissa, exponent = math.frexp(value)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square, term, total, n = ratio * ratio, ratio, 0.0, 1
    while n < 40 and term != 0.0:
        total += term / n
        term *= square
        n += 2
    return 2.0 * total + exponent * _LN2
