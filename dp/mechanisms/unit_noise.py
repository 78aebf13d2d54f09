"""Noise in the secure sum that hides one record, or one group of them, in the sum over all hospitals.

    records -> clip each -> sum at the site -> clip every element to the field's bound -> fixed point
            -> add this site's share of the noise, in the ring -> mask or encrypt -> sum

Every site adds V / (n_min - t) as for site-level noise; what differs is whom V is chosen for. Each hospital's
own sum is exact until the noise, so one unit has to be hidden by the noise of all of them together, and not
by that of its own hospital alone: the variance of the total is V n / (n_min - t) where noise in local steps
has n V.

Sensitivity. What one unit adds to a site's sum has norm at most C (twice that under a replace relation); the
algorithm owes it. Clipping elements to a box brings two sums no further apart. Stochastic rounding takes its
randomness from a stream that does not depend on records: under equal draws every element of two rounded
sums is less than one step further apart than before, so their integers differ by at most
C + sqrt(sum of step^2).

Against whom: everyone who sees no more than the sum, with up to t sites that tell their own noise. Not
against the hospital itself, and not where a single site's contribution can be read.

Source: Dwork, Kenthapadi, McSherry, Mironov, Naor 2006 ("Our data, ourselves": noise shared among parties);
Kairouz, Liu, Steinke 2021; Agarwal, Kairouz, Liu 2021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import torch

from secfed.dp.accounting.events import (
    DistributedDiscreteGaussian,
    Skellam,
    UnitDiscreteGaussian,
    UnitSkellam,
)
from secfed.dp.accounting.unit import Unit
from secfed.dp.mechanisms.noise import SiteNoise
from secfed.errors import ConfigError
from secfed.wire.layout import Field, Summands

LEAST_HONEST: Final = 2  # sites whose noise counts; that of a single one hides nothing from itself


@dataclass(frozen=True)
class UnitNoise(SiteNoise):
    """Noise of one exchange whose summands are sums over units; ``clip_norm`` is of what one unit adds."""

    bounds: Mapping[str, float] = field(default_factory=dict)  # of one site's elements, before noise

    protects: ClassVar[Unit] = Unit.RECORD
    skellam: ClassVar[type[Skellam]] = UnitSkellam
    discrete_gaussian: ClassVar[type[DistributedDiscreteGaussian]] = UnitDiscreteGaussian

    def __post_init__(self) -> None:
        super().__post_init__()
        honest = self.min_survivors - self.colluders
        if honest < LEAST_HONEST:
            raise ConfigError(
                f'privacy.noise: "sum" needs the noise of {LEAST_HONEST} honest sites, and '
                f"{self.min_survivors} survivors with {self.colluders} colluding leave {honest}",
                remedy="raise protection.min_cohort or protection.threshold, lower protection.colluders, or "
                'set privacy.noise = "site"',
            )

    def signal(self, item: Field) -> float:
        """The field's own bound: a site's sum has as many clipped units as the site has."""
        return self.bounds[item.name]

    def clip(self, summands: Summands) -> dict[str, torch.Tensor]:
        """Every element to its bound, so that noise always fits above it; RangeError for NaN."""
        return {
            name: value.clamp(-self.bounds[name], self.bounds[name])
            for name, value in self._values(summands).items()
        }

    @property
    def site_norm(self) -> float:
        """Norm bound of what one site adds without noise, in scaled units."""
        squares = sum(
            item.elements * ((self.signal(item) / self.scale(item.name)) + self._step(item)) ** 2
            for item in self.layout.fields
        )
        return math.sqrt(squares)
