"""Fixed point: real numbers to ring integers and back, the same for every protection.

A value x with |x| <= bound becomes the integer floor(x * 2^e + u) in a ring of 2^bits, with u uniform on
the multiples of 2^-32 in [0, 1): stochastic rounding, unbiased to 2^-32 of a step. The exponent e is
chosen from the *roster* size, so that the sum over every enrolled site fits the ring as a signed number,
whoever takes part; a sum therefore never wraps, and it decodes exactly, because it is also kept within
the integers that a float64 holds.

Every operation below is exact (scaling by powers of two, floor, and integer arithmetic), so the integers
depend on values and random words alone: not on the machine, the chunk size, the protection, or whether a
value came as float32 or float64. (One exception without consequence: x * 2^(e + 32) below 2^-1074 in
magnitude counts as zero.)

Source: stochastic rounding for secure sums as in Kairouz, Liu, Steinke 2021 (arXiv 2102.06387), section 4.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secfed.errors import RangeError

# Rounding uses 32 random bits per element: the probability of rounding up is exact to 2^-32.
FRACTION_BITS = 32
NARROW_MAX_BITS = 32  # lanes up to this width are computed in uint32, wider ones in uint64
MIN_BITS = 8
MAX_BITS = 64
_FLOAT64_EXACT = 1 << 53  # integers up to here are exact in float64; a sum beyond it would not decode exactly
_MAX_EXPONENT = 900  # keeps 2^(e + 32) and 2^-e inside float64 with room to spare
_FLOAT32_MAX_EXPONENT = 127
_HIGH_HALF = 1 if sys.byteorder == "little" else 0  # of an int64 seen as two uint32

_Array = NDArray[Any]


class Scratch:
    """Reusable work space of one thread for :meth:`FixedPoint.quantise`: 16 bytes per element."""

    def __init__(self) -> None:
        self._room = np.empty((2, 0), np.int64)

    def _take(self, elements: int, dtype: type[np.floating[Any]]) -> tuple[_Array, ...]:
        """Integers, widened words and scaled values (which overlap the words), each [elements]."""
        if elements > self._room.shape[1]:
            self._room = np.empty((2, elements), np.int64)
        wide, other = self._room[:, :elements]
        return wide, other, other.view(dtype)[:elements]


@dataclass(frozen=True)
class FixedPoint:
    """The rule for one field: ring of 2^bits, values scaled by 2^exponent."""

    bits: int  # 8..32 or 64
    exponent: int
    bound: float  # largest magnitude one site may contribute, per element
    sites: int  # roster size the headroom is for

    @classmethod
    def choose(cls, *, bound: float, bits: int, sites: int) -> FixedPoint:
        """Largest exponent for which ``sites`` values of magnitude ``bound`` cannot wrap.

        Raises:
            RangeError: bits, bound or sites leave no room for a single value bit.
        """
        if not (MIN_BITS <= bits <= NARROW_MAX_BITS or bits == MAX_BITS):
            raise RangeError(f"bits = {bits} is not supported", remedy="use 8 to 32, or 64")
        if not (math.isfinite(bound) and bound > 0):
            raise RangeError("bound must be a positive finite number")
        if sites < 1:
            raise RangeError("headroom needs at least one site")
        # One site's integers lie in [-limit, limit]: sites * limit stays below half the ring and exact in
        # float64. floor(y + u) with u < 1 never exceeds ceil(y), so y = bound * 2^e <= limit is enough.
        limit = min((1 << (bits - 1)) - 1, _FLOAT64_EXACT) // sites
        if limit < 2:
            raise RangeError(
                f"{bits} bits leave no headroom for {sites} sites", remedy="raise protection.bits"
            )
        mantissa, power = math.frexp(bound)  # bound = mantissa * 2^power, mantissa in [0.5, 1)
        shift = limit.bit_length()  # mantissa * 2^shift is below 2^shift, hence at most twice the limit
        if mantissa * 2.0**shift > limit:
            shift -= 1
        exponent = shift - power
        if abs(exponent) > _MAX_EXPONENT:
            raise RangeError(
                "bound is too small or too large for float64 arithmetic",
                remedy="raise the bound" if exponent > 0 else "lower the bound",
            )
        return cls(bits=bits, exponent=exponent, bound=float(bound), sites=sites)

    @property
    def dtype(self) -> type[np.uint32] | type[np.uint64]:
        """Integer type the lane is computed in."""
        return np.uint32 if self.bits <= NARROW_MAX_BITS else np.uint64

    @property
    def step(self) -> float:
        """Distance between two neighbouring representable values."""
        return math.ldexp(1.0, -self.exponent)

    @cached_property
    def limit(self) -> int:
        """Largest magnitude of one site's integer: bound * 2^exponent, rounded up."""
        return math.ceil(math.ldexp(self.bound, self.exponent))

    def quantise(
        self,
        values: NDArray[Any],
        random: NDArray[np.uint32],
        out: NDArray[Any],
        scratch: Scratch | None = None,
    ) -> int:
        """Clip, scale, round stochastically and reduce into the ring.

        Args:
            values: [d] float32 or float64.
            random: [d] uint32, uniform, from a CSPRNG outside simulation.
            out: [d] uint32 (bits <= 32) or uint64, overwritten with the ring integers. Of a narrow lane
                the bits above ``bits`` are the sign's, to be dropped when the lane is packed.
            scratch: work space for further calls; cheapest at 2^14 to 2^16 elements a call.

        Returns:
            How many elements were clipped to the bound.

        Raises:
            RangeError: a value is NaN or infinite, or the arrays differ in length.
        """
        if not values.size == random.size == out.size:
            raise RangeError("values, random words and lanes differ in length")
        if not values.size:
            return 0
        # Extrema find NaN and Inf (then they are not finite) and whether anything needs clipping.
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RangeError("a value to be summed is NaN or infinite")
        inside = -self.bound <= low and high <= self.bound
        single = values.dtype == np.float32 and self._exact_in_float32(clipping=not inside)
        kind = np.float32 if single else np.float64
        wide, words, scaled = (scratch or Scratch())._take(values.size, kind)
        clipped = 0
        if not inside:
            np.copyto(scaled, values)
            clipped = int(np.count_nonzero(scaled > self.bound) + np.count_nonzero(scaled < -self.bound))
            values = np.clip(scaled, -self.bound, self.bound, out=scaled)
        if self.bits <= NARROW_MAX_BITS:
            # A narrow lane's integer part and its 32 fraction bits fit one int64 together.
            np.multiply(values, kind(math.ldexp(1.0, self.exponent + FRACTION_BITS)), out=scaled)
            _round_narrow(scaled, wide, words, random, out)
        else:
            np.multiply(values, kind(math.ldexp(1.0, self.exponent)), out=scaled)
            _round_wide(scaled, wide, words, random, out)
        return clipped

    def _exact_in_float32(self, *, clipping: bool) -> bool:
        """Whether float32 values need no float64: scaling them is exact, and so is the bound if it is met.

        Scaling up cannot underflow, and the product stays below 2^63 for values within the bound.
        """
        if self.bits > NARROW_MAX_BITS or not 0 <= self.exponent + FRACTION_BITS <= _FLOAT32_MAX_EXPONENT:
            return False
        return not clipping or float(np.float32(self.bound)) == self.bound

    def decode(self, sums: NDArray[Any], summands: int | None = None) -> NDArray[np.float64]:
        """Ring integers of a sum back to real numbers, exactly: [d] float64.

        Args:
            sums: [d] uint32 or uint64; only the low ``bits`` bits count.
            summands: how many sites are in the sum; ``sites`` by default.

        Raises:
            RangeError: a sum lies outside what so many honest summands can reach.

        Security: a single summand is not seen here. One that is out of its own range can hide in the room
        that the others leave, which is up to ``summands`` times its own.
        """
        signed: NDArray[Any]
        if self.bits < NARROW_MAX_BITS:
            shift = NARROW_MAX_BITS - self.bits
            signed = (sums << np.uint32(shift)).view(np.int32)
            signed >>= shift  # arithmetic: carries the lane's sign bit down
        else:
            signed = sums.view(np.int32 if self.bits == NARROW_MAX_BITS else np.int64)
        summands = self.sites if summands is None else summands
        reach = summands * self.limit
        if signed.size and (int(signed.max()) > reach or int(signed.min()) < -reach):
            raise RangeError(
                f"a decoded sum exceeds what its {summands} sites can contribute",
                remedy="a site did not keep to its range, or the sum was not unmasked correctly; "
                "the round must be discarded",
            )
        decoded = signed.astype(np.float64)
        decoded *= self.step
        return decoded


def _round_narrow(scaled: _Array, wide: _Array, words: _Array, random: _Array, out: _Array) -> None:
    """From x * 2^(e + 32), below 2^63 in magnitude: add 32 random bits, keep what lies above them."""
    np.floor(scaled, out=scaled)
    np.copyto(wide, scaled, casting="unsafe")
    np.copyto(words, random)  # overwrites ``scaled``
    np.add(wide, words, out=wide)
    np.copyto(out, wide.view(np.uint32)[_HIGH_HALF::2])


def _round_wide(scaled: _Array, wide: _Array, words: _Array, random: _Array, out: _Array) -> None:
    """From x * 2^e, up to 2^53: the same sum with the whole part kept apart, 85 bits being too many."""
    whole = np.trunc(scaled)
    np.copyto(wide, whole, casting="unsafe")
    # Unlike x - floor(x), x - trunc(x) is exact for every x.
    np.subtract(scaled, whole, out=scaled)
    np.multiply(scaled, 2.0**FRACTION_BITS, out=scaled)
    fraction = np.floor(scaled).astype(np.int64)
    np.copyto(words, random)  # overwrites ``scaled``
    fraction += words
    fraction >>= FRACTION_BITS
    np.add(wide, fraction, out=wide)
    np.copyto(out, wide.view(np.uint64))
