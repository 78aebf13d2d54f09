"""Bands from which candidates are proposed, and tables that decide most of them from sixteen bits.

A band covers 2^width_bits magnitudes. Its integer weight bounds the target density in it from above, and
the weights sum to 2^32; a candidate at x in band b is to be accepted with chance(x) = density(x) scale /
weight_b, which is at most one.

The tables say nothing that the full comparison would not say. ``named`` holds the band of every 2^16 choices
of the 32-bit number that share their top half, or ``undecided`` where an edge lies between them. A band is
cut into 64 cells by the top bits of the place in it. The density falls with the magnitude, so in a cell the
chance lies between its values at the cell's last and first magnitude: a uniform number whose top 15 bits
are below ``sure`` is below the smaller value, one whose top 15 bits reach ``over`` is above the larger one.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.dp.mechanisms.distributions import Target

SELECT_BITS: Final = 32
TOP_BITS: Final = 16  # of the number that chooses a band: what `named` is indexed by
CELL_BITS: Final = 6
SURE_BITS: Final = 15  # of the uniform number
_NEVER: Final = 2**SURE_BITS  # no 15-bit number reaches it
_BANDS_PER_DEVIATION: Final = 8


class Bands:
    """The bands of a target and their tables; ``margin`` as for :class:`~.sampler.NoiseSampler`."""

    def __init__(self, target: Target, margin: float) -> None:
        self.width_bits = max(0, math.floor(math.log2(target.deviation / _BANDS_PER_DEVIATION)))
        starts = np.arange(0.0, target.reach, 2.0**self.width_bits)
        density = np.exp(target.log_ratio(starts))
        # Weights floor(f K) + 1 exceed f K; what is missing to 2^32 goes to band 0.
        scale = float((2**SELECT_BITS - len(starts)) / density.sum())
        self.weights = np.floor(density * scale).astype(np.int64) + 1
        self.weights[0] += 2**SELECT_BITS - int(self.weights.sum())
        self.scale = scale * (1.0 - 2.0**-30)  # keeps every acceptance probability below one
        self.edges = np.cumsum(self.weights)[:-1].astype(np.uint32)
        self.log_bound = np.log(self.scale) - np.log(self.weights)

        # A top half in whose range no edge lies names the band after all edges below it. Bands further out
        # than any that is named have no cells: they are too rare to matter.
        cut = self.edges >> np.uint32(SELECT_BITS - TOP_BITS)
        named = np.cumsum(np.bincount(cut, minlength=2**TOP_BITS))
        named[cut] = -1
        self.undecided = int(named.max()) + 1
        named[cut] = self.undecided
        self.named = named.astype(np.uint16)  # a quarter of the cache

        cells = self.undecided << CELL_BITS
        width = 2.0 ** (self.width_bits - CELL_BITS)
        first = np.arange(cells, dtype=np.float64) * width
        last = first + width
        if not target.continuous:
            np.floor(first, out=first)
            np.ceil(last, out=last)
            last -= 1.0  # of the integers below the next cell
        bound = np.repeat(self.log_bound[: self.undecided], 2**CELL_BITS)
        # Twice the margin: once for the rounding here, once for that of the comparison this stands for.
        least = np.exp(target.log_ratio(last) + bound) - 2.0 * margin
        most = np.exp(target.log_ratio(first) + bound) + 2.0 * margin
        room = cells + 2**CELL_BITS  # the row of `undecided` decides nothing
        self.sure = np.zeros(room, dtype=np.uint16)
        self.sure[:cells] = np.clip(np.floor(least * 2.0**SURE_BITS), 0, _NEVER)
        self.over = np.full(room, _NEVER, dtype=np.uint16)
        self.over[:cells] = np.clip(np.ceil(most * 2.0**SURE_BITS), 0, _NEVER)

    def of(self, choice: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The band that a 32-bit number chooses: [n] int64."""
        return np.searchsorted(self.edges, choice, side="right")
