"""The mechanism of a private step, and its noise.

The noise, exactly. Clipped gradients are rounded to a grid of width w before they are summed (float64,
exact); the noise is a normal variable of deviation 2^m w rounded to the same grid, drawn exactly from a
ChaCha20 stream (:mod:`secfed.dp.mechanisms.sampler`). The output is an integer times w whatever the data,
which closes the floating-point channel of Mironov 2012; and rounding integer + normal is post-processing of
the continuous Gaussian mechanism, so its accountants apply as they are.

The slack. The deviation is sigma * C' with C' = C (1 + 2^-10), for every engine. One half of the 2^-10 pays
for arithmetic, with proof: m is chosen such that rounding to the grid moves two neighbouring sums apart by at
most 2^-12 C more than one unit's C (``loop`` and ``hooks``, which round unit by unit, by half of that), and
adding up in float64, as ``ghost`` does, by at most 2^-12 C more (:mod:`secfed.dp.training.book_keeping`). The
other half is a margin for the last digits in which a batched forward pass lets one row depend on the others:
``loop`` runs every unit by itself and does not need it; for ``hooks`` and ``ghost`` it proves nothing.

Source: Mironov 2012 (least significant bits); Casacuberta, Shoemate, Vadhan, Wagaman 2022 (sensitivity of
floating-point sums). Holohan and Braghin 2021 describe the weaker remedy of adding up four
floating-point normals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from secfed.dp.accounting.events import PoissonSampledGaussian
from secfed.dp.accounting.unit import PrivacyUnit, Unit
from secfed.dp.mechanisms.adaptive_clipping import AdaptiveClip
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.sampler import NoiseSampler, RoundedNormal
from secfed.dp.training.engines import ClippedSum
from secfed.errors import ConfigError

SLACK: Final = 2.0**-10
_GRID_BITS: Final = 13  # rounding adds at most 2^-13 C to one unit's norm
_MANY: Final = 1 << 19  # numbers; fewer are drawn in the time that threads need to change places


def steps_per_pass(rate: float) -> int:
    """Steps in which every unit is expected to take part once, rounded up."""
    return math.ceil(1.0 / rate - 1e-9)


@dataclass(frozen=True)
class Mechanism:
    """What is promised: everything the event needs, and nothing a caller could state twice."""

    unit: PrivacyUnit
    clip_norm: float  # C, L2 norm over all trainable parameters jointly
    noise_multiplier: float  # sigma; 0 trains without noise and costs an infinite epsilon
    sampling_rate: float  # probability q that a unit is drawn in a step
    adaptive: AdaptiveClip | None = None  # lets C follow a quantile of the norms; `clip_norm` is the first C

    def __post_init__(self) -> None:
        if self.unit.unit is Unit.SITE:
            raise ConfigError(
                "local steps cannot protect a whole site", remedy="site-level noise belongs in the secure sum"
            )
        if not self.clip_norm > 0 or (math.isinf(self.clip_norm) and self.noise_multiplier > 0):
            raise ConfigError(f"privacy.clip_norm = {self.clip_norm} is not a positive number")
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ConfigError(
                f"privacy noise multiplier {self.noise_multiplier} is not a number of at least 0"
            )
        if not 0 < self.sampling_rate <= 1:
            raise ConfigError(f"privacy sampling rate {self.sampling_rate} is not in (0, 1]")
        if self.adaptive is not None:
            self.adaptive.gradient_multiplier(self.noise_multiplier)  # refuses what cannot be paid

    @property
    def gradient_multiplier(self) -> float:
        """Noise on the gradients over C: sigma, or more where part of it pays for adapting C."""
        if self.adaptive is None:
            return self.noise_multiplier
        return self.adaptive.gradient_multiplier(self.noise_multiplier)

    @property
    def steps_per_pass(self) -> int:
        """:func:`steps_per_pass` of the sampling rate."""
        return steps_per_pass(self.sampling_rate)

    def event(self, steps: int) -> PoissonSampledGaussian:
        """What ``steps`` steps release."""
        return PoissonSampledGaussian(self.unit.adjacency, self.sampling_rate, self.noise_multiplier, steps)


class GaussianNoise:
    """Noise on the grid for every trainable parameter.

    ``deviation``, of the noise added to the sum, and ``grid``, the distance of two grid points (0 without
    noise), are in gradient units.
    """

    def __init__(self, deviation: float, bits: int, random: SecureRandom) -> None:
        self.deviation = deviation
        self.grid = math.ldexp(deviation, -bits)
        self._sampler = NoiseSampler(RoundedNormal(2.0**bits), random) if deviation else None
        self._ahead: Future[NDArray[np.int64]] | None = None

    @classmethod
    def of(
        cls, mechanism: Mechanism, clip_norm: float, parameters: dict[str, nn.Parameter], random: SecureRandom
    ) -> GaussianNoise:
        """The noise of a mechanism at the present C, on a grid fine enough for this many parameters."""
        if mechanism.noise_multiplier == 0:
            return cls(0.0, 0, random)
        deviation = mechanism.gradient_multiplier * clip_norm * (1.0 + SLACK)
        dimension = sum(value.numel() for value in parameters.values())
        # Rounding moves one unit by at most grid * sqrt(d) / 2, which must not exceed 2^-_GRID_BITS C.
        finest = deviation / clip_norm * math.sqrt(dimension) * 2.0 ** (_GRID_BITS - 1)
        return cls(deviation, max(12, math.ceil(math.log2(finest))), random)

    @contextmanager
    def drawn_ahead(self, parameters: dict[str, nn.Parameter]) -> Iterator[None]:
        """Draw the noise of one release in a thread, beside what computes its sum in this block.

        Only where that pays; the numbers are the same. Until :meth:`write_gradients` has them, nobody else
        may draw from the source of randomness. After the block no thread is left, whatever was raised in it,
        and noise that was not used is dropped.
        """
        if self._sampler is None or not _pays(parameters):
            yield
            return
        count = sum(value.numel() for value in parameters.values())
        with ThreadPoolExecutor(1) as thread:  # waits for it at the end
            self._ahead = thread.submit(self._sampler.take, count)
            try:
                yield
            finally:
                self._ahead = None

    def write_gradients(self, total: ClippedSum, divisor: float) -> None:
        """Set every parameter's gradient to (sum + noise) / divisor, in the place of the sum."""
        drawn, self._ahead = None if self._ahead is None else self._ahead.result(), None
        for name, value in total.parameters.items():
            summed = total.sums[name]
            if self._sampler is not None:
                count = summed.numel()
                if drawn is None:
                    numbers = self._sampler.take(count)
                else:
                    numbers, drawn = drawn[:count], drawn[count:]
                noise = torch.from_numpy(numbers).reshape(summed.shape)
                summed.add_(noise.to(summed.device, torch.float64)).mul_(self.grid)
            value.grad = summed.div_(divisor).to(value.dtype)


def _pays(parameters: dict[str, nn.Parameter]) -> bool:
    """Whether noise is drawn in a thread: a GPU leaves time for it, a processor works on the sum itself."""
    devices = {value.device.type for value in parameters.values()}
    return "cpu" not in devices and sum(value.numel() for value in parameters.values()) >= _MANY
