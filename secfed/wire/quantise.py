"""Values of one field on their way to ring integers: on the processor, or on the device where they are.

On a device the same exact operations run in float64 and int64 (see :mod:`secfed.crypto.fixedpoint`), with the
same words of the rounding stream, so the integers are the same; only they are copied to the processor.
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.crypto.fixedpoint import FRACTION_BITS, NARROW_MAX_BITS, FixedPoint, Scratch

_BLOCK_ELEMENTS: Final = 1 << 22  # quantised on a device at a time: 130 MB of work space
_WORD: Final = (1 << FRACTION_BITS) - 1


class Rounding(Protocol):
    """Source of uniform random words for stochastic rounding."""

    def words(self, count: int) -> NDArray[np.uint32]:
        """The next ``count`` words, valid until the next call: [count] uint32."""
        ...


class Values(Protocol):
    """What is left of a field, to be read front to back."""

    left: int  # elements

    def take(self, out: NDArray[Any], rounding: Rounding) -> int:
        """Write the next ``len(out)`` ring integers; how many values were clipped for that."""
        ...


def values_of(rule: FixedPoint, tensor: torch.Tensor, scratch: Scratch) -> Values:
    """The finite values of a tensor, float32 or float64."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.device.type == "cpu":
        return _Here(rule, flat.numpy(), scratch)
    return _Elsewhere(rule, flat)


class _Here:
    """On the processor."""

    def __init__(self, rule: FixedPoint, values: NDArray[Any], scratch: Scratch) -> None:
        self._rule, self._values, self._scratch = rule, values, scratch
        self.left: int = values.size

    def take(self, out: NDArray[Any], rounding: Rounding) -> int:
        """See :class:`Values`."""
        part, self._values = np.split(self._values, [out.size])
        self.left -= out.size
        return self._rule.quantise(part, rounding.words(part.size), out, self._scratch)


class _Elsewhere:
    """On a device: a block of integers comes back at a time, since every copy waits for the device."""

    def __init__(self, rule: FixedPoint, values: torch.Tensor) -> None:
        self._rule, self._values = rule, values
        self._lanes: NDArray[Any] = np.empty(0, rule.dtype)
        self.left: int = values.numel()

    def take(self, out: NDArray[Any], rounding: Rounding) -> int:
        """See :class:`Values`."""
        clipped = done = 0
        while done < out.size:
            if not self._lanes.size:
                block, self._values = self._values[:_BLOCK_ELEMENTS], self._values[_BLOCK_ELEMENTS:]
                self._lanes, found = on_device(self._rule, block, rounding.words(block.numel()))
                clipped += found
            part, self._lanes = np.split(self._lanes, [out.size - done])
            out[done : done + part.size] = part
            done += part.size
        self.left -= out.size
        return clipped


def on_device(rule: FixedPoint, values: torch.Tensor, random: NDArray[np.uint32]) -> tuple[NDArray[Any], int]:
    """What :meth:`FixedPoint.quantise` gives, computed where ``values`` are, and how many were clipped.

    Args:
        values: [d] float32 or float64, finite.
        random: [d] uint32.
    """
    wide = values.to(torch.float64)
    clipped = int(((wide > rule.bound) | (wide < -rule.bound)).sum())
    wide = wide.clamp(-rule.bound, rule.bound)
    # PyTorch has little for uint32: the words travel as int32, and lose their sign in int64.
    words = (
        torch.from_numpy(np.asarray(random, np.uint32).view(np.int32)).to(values.device).to(torch.int64)
        & _WORD
    )
    if rule.bits <= NARROW_MAX_BITS:
        scaled = torch.floor(wide * math.ldexp(1.0, rule.exponent + FRACTION_BITS)).to(torch.int64)
        lanes = ((scaled + words) >> FRACTION_BITS).to(torch.int32)  # within 31 bits and a sign
    else:
        scaled = wide * math.ldexp(1.0, rule.exponent)
        whole = torch.trunc(scaled)
        fraction = torch.floor((scaled - whole) * 2.0**FRACTION_BITS).to(torch.int64)
        lanes = whole.to(torch.int64) + ((fraction + words) >> FRACTION_BITS)
    return lanes.cpu().numpy().view(rule.dtype), clipped
