"""Arithmetic whose result for one record is the same to the last bit, whatever stands beside it.

In a batch, a matrix product adds the terms of a record in an order that depends on how many records there
are, and on where it stands. Weights that cancel make of such a last digit what they like, and whoever sends
the broadcast chooses the weights. So here nothing is left to an order:

* *elementwise* operations that IEEE 754 rounds correctly (add, subtract, multiply, divide, square root,
  compare, choose) have one result for one element. Exponentials are made of them (:func:`exp`), because
  libraries compute theirs differently in the middle and at the end of a vector.
* *sums and products of matrices* first round every number to a multiple of one power of two for this record
  (:meth:`Alive.rounded`), so coarse that every partial sum, in any order, is a multiple of another power of
  two and below 2^51 times that. Float64 holds it exactly: nothing is rounded, so order, blocking, fused
  multiply-adds and threads change nothing.
* *extrema* are exact in any order.

The price is small: a product of n terms has factors of (51 - log2 n) / 2 bits, 21 for a thousand terms, where
float32 has 24.

A record with a number that is not finite, or beyond 2^400, where numbers are rounded, counts as zeros from
there on. What is below 2^-400 is rounded to zero or to 2^-400, so that no product is too small for float64.
Weights are float32, or below 2^600.

Source: Rump, Ogita, Oishi 2008 (leading bits by adding and subtracting a constant); Ozaki, Ogita, Oishi, Rump
2012 (products of rounded matrices without error).
"""

from __future__ import annotations

import math
from typing import Final

import torch

_LARGEST: Final = 2.0**400
_SMALLEST: Final = 2.0**-400
_SUM_BITS: Final = 51
_HALF_STEPS: Final = 1.5 * 2.0**52


class Alive:
    """Records of a batch, [B], and which of them have had usable numbers so far: ``rows``, bool."""

    def __init__(self, count: int) -> None:
        self.rows = torch.ones(count, dtype=torch.bool)

    def rounded(self, values: torch.Tensor, bits: int) -> torch.Tensor:
        """Each record of [B, ...] float64 rounded to ``bits`` bits below its largest number; or zeros."""
        dims = tuple(range(1, values.dim()))
        largest = torch.maximum(values.amax(dims, keepdim=True), -values.amin(dims, keepdim=True))
        usable = largest <= _LARGEST  # NaN is not
        self.rows &= usable.reshape(-1)
        if not bool(usable.all()):  # skips a copy; the other records' numbers are the same either way
            values, largest = (torch.where(usable, part, 0.0) for part in (values, largest))
        return _to_multiples(values, largest, bits)

    def total(self, values: torch.Tensor, *dims: int) -> torch.Tensor:
        """Sums of a record's numbers over ``dims``, which stay as 1."""
        terms = math.prod(values.shape[dim] for dim in dims)
        return self.rounded(values, term_bits(terms)).sum(dims, keepdim=True)

    def squares(self, values: torch.Tensor) -> torch.Tensor:
        """The squared L2 norm of every record, never too small: [B, ...] to [B].

        Each of n squares may lose half a step of what they are rounded to: that is added n times. For a
        thousand numbers it is 2^-30 of the whole, for a million 2^-10.
        """
        squares = values.flatten(1).square()
        terms = squares.shape[1]
        half_step = squares.amax(1).clamp_min(_SMALLEST) * 2.0 ** -term_bits(terms)
        return self.total(squares, 1).reshape(-1) + half_step * terms


def term_bits(terms: int) -> int:
    """Bits of numbers of which ``terms`` are added without error."""
    return _SUM_BITS - max(0, terms - 1).bit_length()


def factor_bits(terms: int) -> int:
    """Bits of the factors of products of which ``terms`` are added without error."""
    return term_bits(terms) // 2


def rounded_weights(values: torch.Tensor, bits: int) -> torch.Tensor:
    """All of ``values`` rounded to ``bits`` bits below the largest; float64. NaN if one is not finite."""
    wide = values.detach().to(torch.float64)
    return _to_multiples(wide, wide.abs().amax(), bits)


def exp(values: torch.Tensor) -> torch.Tensor:
    """e^x for x <= 0, to about 12 digits where x > -16: Taylor's series of x / 1024, squared ten times."""
    small = values.clamp_min(-64.0) / 1024.0
    result = torch.ones_like(small)
    for order in range(8, 0, -1):
        result = result * (small / order) + 1.0
    for _ in range(10):
        result = result * result
    return result


def _to_multiples(values: torch.Tensor, largest: torch.Tensor, bits: int) -> torch.Tensor:
    """Rounded to multiples of p 2^-bits, p the power of two above ``largest``."""
    largest = largest.clamp_min(_SMALLEST)
    power = largest / torch.frexp(largest).mantissa
    # Between p 2^(52-bits) and twice that, float64 has steps of p 2^-bits: adding such a number rounds.
    anchor = power * (_HALF_STEPS * 2.0**-bits)
    return (values + anchor).sub_(anchor)
