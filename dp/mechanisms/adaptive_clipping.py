"""Adaptive clipping: the norm follows a quantile of the gradient norms, estimated privately.

Each unit also contributes one centred bit, +1/2 if its norm is at most C and -1/2 otherwise. Gradient
and bit are one vector of the same mechanism: with noise z_g C on the gradients and s on the bits, the
noise multiplier z that is accounted for satisfies  1/z^2 = 1/z_g^2 + 1/(2 s)^2.  So the event of a step
is unchanged and the gradients carry slightly more noise. C is then updated from the noisy count alone.

Source: Andrew, Thakkar, McMahan, Ramaswamy 2021 ("Differentially private learning with adaptive
clipping"), theorem 1 and algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.sampler import NoiseSampler, RoundedNormal
from secfed.errors import ConfigError

_COUNT_GRID_BITS: Final = 16
_LEAST_CLIP_NORM: Final = 1e-30


@dataclass(frozen=True)
class AdaptiveClip:
    """How the clipping norm adapts; ConfigError for values out of range."""

    quantile: float = 0.5  # fraction of units that should not be clipped
    rate: float = 0.2  # step size of log C
    count_deviation: float = 10.0  # s, on the sum of bits; a twentieth of the expected units costs little

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ConfigError(f"privacy clipping quantile {self.quantile} is not between 0 and 1")
        for name, value in (("rate", self.rate), ("count noise", self.count_deviation)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"privacy clipping {name} {value} is not a positive number")

    def gradient_multiplier(self, noise_multiplier: float) -> float:
        """z_g for the accounted ``noise_multiplier``; ConfigError if the bits alone would cost more."""
        if noise_multiplier == 0:
            return 0.0
        rest = noise_multiplier**-2 - (2 * self.count_deviation) ** -2
        if rest <= 0:
            raise ConfigError(
                f"clipping counts with noise {self.count_deviation} cost more than noise multiplier "
                f"{noise_multiplier}",
                remedy="raise the count noise above half of the noise multiplier",
            )
        return float(rest**-0.5)

    def next_norm(
        self, clip_norm: float, *, within: int, units: int, expected_units: float, random: SecureRandom
    ) -> float:
        """The norm of the next step: post-processing of a noisy count of the ``units`` that are ``within`` C.

        The noisy fraction is clamped to [0, 1], where the fraction itself lies, so that one step changes C by
        a factor of at most e^rate however much the noise outweighs a small batch. The paper does not clamp;
        as post-processing it costs no privacy.
        """
        grid = 2.0**_COUNT_GRID_BITS
        sampler = NoiseSampler(RoundedNormal(2 * self.count_deviation * grid), random)
        # Twice the centred count is an integer: 2 (within - units / 2).
        noisy = ((2 * within - units) << _COUNT_GRID_BITS) + int(sampler.take(1)[0])
        fraction = min(1.0, max(0.0, 0.5 + noisy / (2 * grid * expected_units)))
        # Where all gradients are zero C would shrink for ever, and nothing can be clipped to 0.
        return max(clip_norm * math.exp(-self.rate * (fraction - self.quantile)), _LEAST_CLIP_NORM)
