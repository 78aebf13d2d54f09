"""Exact samples of discrete noise from uniform bits, fast enough for every coordinate of a model.

Floating-point samplers leak: which doubles a Box-Muller transform can reach depends on the value it is
added to (Mironov 2012). Here noise is an *integer*, drawn exactly, and added to an integer.

Method. Magnitudes are cut into bands of a power-of-two width. Integer band weights bound the target
density from above and sum to exactly 2^32, so 32 uniform bits choose a band without error, further bits
choose a place in it uniformly, and the place is accepted with probability density / bound. That last
comparison, "is a uniform real below this probability", is first made in double precision with an error
margin; in the rare case (about 2^-30) that the margin cannot decide, both sides are extended to more
than 250 bits and compared in decimal arithmetic. What is left: mass beyond ``reach``, below 2^-200 per
draw, and ties of 256-bit numbers.

Source: rejection with lazily refined comparisons as in Karney 2016 ("Sampling exactly from the normal
distribution", ACM TOMS 42) and Haney et al. 2022 (interval refining); targets: Canonne, Kamath, Steinke
2020 (discrete Gaussian), Agarwal, Kairouz, Liu 2021 (Skellam).

Security: running time depends on how many candidates are rejected in a block of 8192, which is almost
independent of any one value; it is not constant.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.dp.mechanisms.distributions import DiscreteGaussian, RoundedNormal, SkellamTarget, Target
from secfed.dp.mechanisms.randomness import SecureRandom

__all__ = ["DiscreteGaussian", "NoiseSampler", "RoundedNormal", "SkellamTarget", "Target"]

_BLOCK: Final = 8192
_SELECT_BITS: Final = 32
_ACCEPT_BITS: Final = 31
_MARGIN: Final = 2.0**-36  # over the error of `Target.log_ratio` (below 2^-38) and of the exponential
_EXTRA_WORDS: Final = 4
_DIGITS: Final = 120
_BANDS_PER_DEVIATION: Final = 8


class NoiseSampler:
    """A stream of independent integers from one target.

    Reading n and then m numbers gives the same n + m numbers as reading them at once, so nothing
    depends on how the caller cuts its vector into chunks. ``margin`` is half the width of the undecided zone
    of the double-precision comparison; larger values are slower and equally exact.
    """

    def __init__(self, target: Target, random: SecureRandom, *, margin: float = _MARGIN) -> None:
        self.target = target
        self._random, self._margin = random, margin
        self._width_bits = max(0, math.floor(math.log2(target.deviation / _BANDS_PER_DEVIATION)))
        starts = np.arange(0.0, target.reach, 2.0**self._width_bits)
        density = np.exp(target.log_ratio(starts))
        # Weights floor(f K) + 1 exceed f K; what is missing to 2^32 goes to band 0.
        scale = float((2**_SELECT_BITS - len(starts)) / density.sum())
        weights = np.floor(density * scale).astype(np.int64) + 1
        weights[0] += 2**_SELECT_BITS - int(weights.sum())
        self._weights = weights
        self._scale = scale * (1.0 - 2.0**-30)  # keeps every acceptance probability below one
        self._edges = np.cumsum(weights)[:-1].astype(np.uint32)
        self._log_bound = np.log(self._scale) - np.log(weights)
        self._left: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> NDArray[np.int64]:
        """The next ``count`` integers: [count] int64."""
        out = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            if not self._left.size:
                self._left = self._block()
            part = self._left[: count - filled]
            out[filled : filled + part.size] = part
            filled, self._left = filled + part.size, self._left[part.size :]
        return out

    def _block(self) -> NDArray[np.int64]:
        """One block of candidates, the rejected ones left out."""
        words = self._random.words(2 * _BLOCK)
        choice, place = words[:_BLOCK], words[_BLOCK:]
        band = np.searchsorted(self._edges, (choice >> np.uint64(32)).astype(np.uint32), side="right")
        negative = (choice >> np.uint64(_ACCEPT_BITS)) & np.uint64(1) == 1
        uniform = (choice & np.uint64(2**_ACCEPT_BITS - 1)).astype(np.float64)
        bits = np.uint64(self._width_bits)
        # The top bits are the whole part within the band, the others a fraction of one.
        whole = (place >> (np.uint64(64) - bits)).astype(np.int64) if bits else np.zeros(_BLOCK, np.int64)
        whole += band << self._width_bits
        fraction = place << bits
        magnitude = whole.astype(np.float64)
        if self.target.continuous:
            magnitude += fraction.astype(np.float64) * 2.0**-64
        chance = np.exp(self.target.log_ratio(magnitude) + self._log_bound[band])
        accepted = uniform + 1.0 <= (chance - self._margin) * 2.0**_ACCEPT_BITS
        unsure = ~accepted & (uniform < (chance + self._margin) * 2.0**_ACCEPT_BITS)
        for index in np.flatnonzero(unsure):
            accepted[index] = self._decide(
                int(band[index]), int(whole[index]), int(fraction[index]), int(uniform[index])
            )
        if self.target.continuous:
            whole += (fraction >> np.uint64(63)).astype(np.int64)  # to the nearest integer
        else:
            accepted &= ~(negative & (whole == 0))  # zero has one sign only
        return np.asarray(np.where(negative, -whole, whole)[accepted])

    def _decide(self, band: int, whole: int, fraction: int, uniform: int) -> bool:
        """The acceptance test to more than 250 bits."""
        extra = self._random.words(2 * _EXTRA_WORDS)
        more_uniform = int.from_bytes(extra[:_EXTRA_WORDS].tobytes(), "big")
        more_fraction = int.from_bytes(extra[_EXTRA_WORDS:].tobytes(), "big")
        tail_bits = 64 * _EXTRA_WORDS
        with localcontext() as context:
            context.prec = _DIGITS
            magnitude = Decimal(whole)
            if self.target.continuous:
                # The fraction's low `width_bits` bits were shifted in as zeros: refill them too.
                known = fraction >> self._width_bits
                depth = 64 - self._width_bits + tail_bits
                magnitude += Decimal((known << tail_bits) + more_fraction) / Decimal(2**depth)
            drawn = Decimal((uniform << tail_bits) + more_uniform) / Decimal(2 ** (_ACCEPT_BITS + tail_bits))
            bound = Decimal(self._scale) / Decimal(int(self._weights[band]))
            return drawn < self.target.exact_log_ratio(magnitude).exp() * bound
