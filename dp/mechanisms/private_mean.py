"""One private number from many bounded ones: losses that steer weights, metrics that leave a site.

    v = (1/K) sum_m clip(x_m, 0, V),      released: v + N(0, (sigma V/K)^2)

Each x_m belongs to one fixed unit (a record, or a group of records evaluated together); replacing the
content of one unit moves v by at most V/K. Everything computed from the released number is
post-processing. The noise is drawn as in :mod:`secfed.dp.training.mechanism`: values and noise are integers
on a common grid.

Source: specification dp.md, section 6 (L1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from secfed.dp.accounting.events import Gaussian, bounded_mean
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.mechanisms.distributions import MAX_DEVIATION
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.sampler import NoiseSampler, RoundedNormal
from secfed.errors import ConfigError

_GRID_BITS: Final = 30
_EXTRA_BITS: Final = 12


@dataclass(frozen=True)
class PrivateMean:
    """The mechanism of one scalar; ConfigError for values out of range or noise too large to draw."""

    bound: float  # V; values are clipped to [0, V]
    noise_over_sensitivity: float  # sigma: the noise's deviation over V/K

    def __post_init__(self) -> None:
        for value in (self.bound, self.noise_over_sensitivity):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"a private mean needs a positive bound and noise, not {value}")
        # Now, and not when a release has been paid for: noise that a sampler refuses.
        if self.noise_over_sensitivity > MAX_DEVIATION * 2.0**-_GRID_BITS:
            raise ConfigError(
                f"a private mean with noise of {self.noise_over_sensitivity:g} times its sensitivity cannot "
                "be drawn",
                remedy="plan fewer releases, a larger share of epsilon for them, or a larger privacy.epsilon",
            )

    @property
    def _extra_bits(self) -> int:
        """By how many bits the noise's grid is finer than the values': as many as the sampler permits."""
        room = math.floor(math.log2(MAX_DEVIATION / self.noise_over_sensitivity) - _GRID_BITS - 1e-9)
        return max(0, min(_EXTRA_BITS, room))

    def event(self, releases: int, adjacency: Adjacency = Adjacency.REPLACE_RECORD) -> Gaussian:
        """What ``releases`` releases cost, stated for a replacement that changes one value."""
        return bounded_mean(self.noise_over_sensitivity, releases, adjacency)

    def clean(self, values: Sequence[float]) -> int:
        """The clipped sum on the grid, in steps of V / 2^30; NaN counts as V, never as a failure."""
        if not values:
            raise ConfigError("a private mean needs at least one value")
        numbers = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=self.bound, posinf=self.bound)
        share = np.clip(numbers / self.bound, 0.0, 1.0)
        return int(np.rint(share * 2.0**_GRID_BITS).astype(np.int64).sum())

    def release(self, values: Sequence[float], random: SecureRandom) -> float:
        """One release; pay for :meth:`event` first.

        ``values`` has one per unit; which units, and how many, must not depend on the data.
        """
        total = self.clean(values)
        # The noise's own grid is at least as fine as the values', so its rounding is post-processing.
        extra = self._extra_bits
        step = self.noise_over_sensitivity * 2.0 ** (_GRID_BITS + extra)
        noise = int(NoiseSampler(RoundedNormal(step), random).take(1)[0])
        exact = (total << extra) + noise
        return exact * math.ldexp(self.bound, -_GRID_BITS - extra) / len(values)
