"""Exact samples of discrete noise from uniform bits, fast enough for every coordinate of a model.

Floating-point samplers leak: which doubles a Box-Muller transform can reach depends on the value it is
added to (Mironov 2012). Here noise is an *integer*, drawn exactly, and added to an integer.

Method. Magnitudes are cut into bands of a power-of-two width. Integer band weights bound the target
density from above and sum to exactly 2^32, so 32 uniform bits choose a band without error, further bits
choose a place in it uniformly, and the place is accepted with probability density / bound. That last
comparison, "is a uniform real below this probability", is made as coarsely as will do: by 15 bits of the
uniform number and a table (:mod:`secfed.dp.mechanisms.bands`); for one candidate in 500 that is too coarse,
and double precision with an error margin decides; in the rare case (about 2^-30) that the margin cannot,
both sides are extended to more than 250 bits and compared in decimal arithmetic.

Exactness. Band b is chosen with probability weight_b / 2^32, and x in it is accepted with probability
density(x) scale / weight_b: together density(x) scale / 2^32, so what is accepted has the target's law,
whatever the weights. A coarser comparison only ever gives the finer one's answer for the same bits, so it
changes the speed and no number. What is left: mass beyond ``reach``, below 2^-200 per draw, and ties of
256-bit numbers.

Source: rejection with lazily refined comparisons as in Karney 2016 ("Sampling exactly from the normal
distribution", ACM TOMS 42) and Haney et al. 2022 (interval refining); a table before the comparison as in
Marsaglia and Tsang 2000 ("The ziggurat method", JSS 5); targets: Canonne, Kamath, Steinke 2020 (discrete
Gaussian), Agarwal, Kairouz, Liu 2021 (Skellam).

Security: running time depends on how many candidates are rejected or undecided in a block of 8192, which
is almost independent of any one value; it is not constant. A site that works again on an interrupted
exchange, perhaps with newer software, draws its noise again from the stored key: numbers for given words
must stay what they are, or two releases leave for one payment.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.dp.mechanisms.bands import CELL_BITS, SURE_BITS, TOP_BITS, Bands
from secfed.dp.mechanisms.distributions import DiscreteGaussian, RoundedNormal, SkellamTarget, Target
from secfed.dp.mechanisms.randomness import SecureRandom

__all__ = ["DiscreteGaussian", "NoiseSampler", "RoundedNormal", "SkellamTarget", "Target"]

_BLOCK: Final = 8192  # candidates; their words and the scratch stay in a second-level cache
_ACCEPT_BITS: Final = 31
_MARGIN: Final = 2.0**-36  # over the error of `Target.log_ratio` (below 2^-38) and of the exponential
_EXTRA_WORDS: Final = 4
_DIGITS: Final = 120


class NoiseSampler:
    """A stream of independent integers from one target.

    Reading n and then m numbers gives the same n + m numbers as reading them at once, so nothing
    depends on how the caller cuts its vector into chunks. ``margin`` is half the width of the undecided zone
    of the double-precision comparison; larger values are slower and equally exact.
    """

    def __init__(self, target: Target, random: SecureRandom, *, margin: float = _MARGIN) -> None:
        self.target = target
        self._random, self._margin = random, margin
        self._bands = Bands(target, margin)
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
        """One block of candidates, the rejected ones left out.

        One word chooses: 32 bits the band, then the sign, then 31 bits of the uniform number. A second
        word is the place in the band.
        """
        words = self._random.words(2 * _BLOCK)
        choice, place = words[:_BLOCK], words[_BLOCK:]
        bands = self._bands
        band = bands.named.take((choice >> np.uint64(64 - TOP_BITS)).view(np.int64)).astype(np.int64)
        cell = (place >> np.uint64(64 - CELL_BITS)).view(np.int64)
        cell += band << CELL_BITS
        uniform = choice.view("<u2")[1::4] & np.uint16(2**SURE_BITS - 1)  # the first of its bits
        accepted = uniform < bands.sure.take(cell)
        unsure = np.flatnonzero(~accepted)
        unsure = unsure[uniform[unsure] < bands.over.take(cell[unsure])]
        if unsure.size:
            band[unsure] = bands.of((choice[unsure] >> np.uint64(32)).astype(np.uint32))
            accepted[unsure] = self._compare(band[unsure], choice[unsure], place[unsure])
        # The top bits of the place are whole numbers within the band, the next one is a half.
        halves = (place >> np.uint64(63 - bands.width_bits)).view(np.int64)
        halves += band << (bands.width_bits + 1)
        if self.target.continuous:
            halves += 1  # to the nearest integer
        halves >>= 1
        sign = choice.view("<i8") << np.int64(32)
        sign >>= 63  # 0, or -1 for a negative number
        halves ^= sign
        if not self.target.continuous:
            accepted &= halves != -1  # a negative zero: zero has one sign only
        halves -= sign
        return np.asarray(halves[accepted])

    def _compare(
        self, band: NDArray[np.int64], choice: NDArray[np.uint64], place: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """The acceptance test in double precision, and exactly where that cannot tell: [n] bool."""
        bits = self._bands.width_bits
        uniform = (choice & np.uint64(2**_ACCEPT_BITS - 1)).astype(np.float64)
        whole = (place >> np.uint64(1) >> np.uint64(63 - bits)).view(np.int64)
        whole += band << bits
        fraction = place << np.uint64(bits)
        magnitude = whole.astype(np.float64)
        if self.target.continuous:
            magnitude += fraction.astype(np.float64) * 2.0**-64
        chance = np.exp(self.target.log_ratio(magnitude) + self._bands.log_bound[band])
        accepted = np.asarray(uniform + 1.0 <= (chance - self._margin) * 2.0**_ACCEPT_BITS)
        unsure = ~accepted & (uniform < (chance + self._margin) * 2.0**_ACCEPT_BITS)
        for index in np.flatnonzero(unsure):
            accepted[index] = self._decide(
                int(band[index]), int(whole[index]), int(fraction[index]), int(uniform[index])
            )
        return accepted

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
                width_bits = self._bands.width_bits
                depth = 64 - width_bits + tail_bits
                known = fraction >> width_bits
                magnitude += Decimal((known << tail_bits) + more_fraction) / Decimal(2**depth)
            drawn = Decimal((uniform << tail_bits) + more_uniform) / Decimal(2 ** (_ACCEPT_BITS + tail_bits))
            bound = Decimal(self._bands.scale) / Decimal(int(self._bands.weights[band]))
            return drawn < self.target.exact_log_ratio(magnitude).exp() * bound
