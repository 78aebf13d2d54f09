"""The definition of fixed point in exact rational arithmetic, and short ways to call the real one."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray

from secfed.crypto.fixedpoint import FixedPoint, Scratch
from secfed.errors import RangeError

WIDTHS = [*range(8, 33), 64]
WORST = [0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]  # random words at the edges

BOUNDS = st.one_of(
    st.sampled_from([1.0, 0.1, 3.0, 2.0**-20, 1e6, 2.0**31, 1e-30, 1e30, 1e-200, 1e200]),
    st.floats(min_value=1e-200, max_value=1e200),
)
WIDTH = st.sampled_from(WIDTHS)
RANDOM_WORD = st.one_of(st.sampled_from(WORST), st.integers(0, 2**32 - 1))


def rule_for(bound: float, bits: int, sites: int) -> FixedPoint:
    """The rule, or an example that hypothesis discards where there is none."""
    try:
        return FixedPoint.choose(bound=bound, bits=bits, sites=sites)
    except RangeError:
        assume(False)
        raise


def definition(rule: FixedPoint, value: float, word: int) -> int:
    """The definition, in rational numbers."""
    clipped = Fraction(min(max(float(value), -rule.bound), rule.bound))
    return math.floor(clipped * Fraction(2) ** rule.exponent + Fraction(word, 2**32))


def as_signed(rule: FixedPoint, ring: NDArray[Any]) -> list[int]:
    """Ring integers as signed numbers, from their low bits."""
    half, full = 1 << (rule.bits - 1), 1 << rule.bits
    return [(int(value) + half) % full - half for value in ring]


def quantised(
    rule: FixedPoint, values: NDArray[Any], words: NDArray[np.uint32], scratch: Scratch | None = None
) -> NDArray[Any]:
    """Quantise into a fresh array that was not zero before."""
    out = np.full(values.size, 0xDEADBEEF, rule.dtype)
    rule.quantise(values, words, out, scratch)
    return out


def sum_in_ring(rule: FixedPoint, summands: list[NDArray[Any]]) -> NDArray[Any]:
    """Sum as the protections do: modulo the word, then reduced to the lane."""
    total = np.zeros_like(summands[0])
    for summand in summands:
        total += summand
    if rule.bits < 32:
        total &= rule.dtype((1 << rule.bits) - 1)
    return total
