"""A site's own loss, released with noise: what a private study may let its weights depend on.

    v = (1/K) sum_m clip(loss of group m, floor, cap)        released: v + N(0, (sigma (cap - floor) / K)^2)

Whatever is computed from the released number (weights, their sums, scales of later steps) is post-processing.

Sensitivity. The K groups are fixed before any record is read: they depend on the number of records and
the seed. The loss of a group may compare its records with each other (a contrastive loss does), but sees
no record outside it. So replacing the content of one record changes the loss of at most one group, that
loss stays within [floor, cap], and v moves by at most (cap - floor) / K, whatever the model. The bound is for
replacing a record, the relation of groups; adding or removing one would change the public number of records,
and the groups with it. Where the relation hides patients, each of them lies in one group, so replacing all
records of one moves v by no more. As an event this is the sum of K centred values of magnitude at most
C = (cap - floor) / 2, hence sensitivity 2C (:func:`secfed.dp.accounting.events.bounded_mean`). Releases
compose adaptively with each other and with the noisy training steps.

Small groups, of which there are many, a narrow window and few releases make it precise. All sites must use
one ``size``, for a contrastive loss grows with the logarithm of it.

Source: specification dp.md, section 6 (L1); Dwork, McSherry, Nissim, Smith 2006 (sensitivity of a clipped
mean); Kairouz, Oh, Viswanath 2015 (adaptive composition).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.dp.accounting.events import Gaussian, bounded_mean
from secfed.dp.accounting.unit import GroupPartition, PrivacyUnit
from secfed.dp.mechanisms.distributions import MAX_DEVIATION
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.sampler import NoiseSampler, RoundedNormal
from secfed.errors import ConfigError
from secfed.wire.parts import otherwise

Evaluate = Callable[[NDArray[np.int64]], float]

_GRID_BITS: Final = 30
_EXTRA_BITS: Final = 12


@dataclass(frozen=True)
class PrivateMean:
    """The mechanism of one scalar; ConfigError for values out of range or noise too large to draw.

        v = (1/K) sum_m clip(x_m, 0, V),      released: v + N(0, (sigma V/K)^2)

    Each x_m belongs to one fixed unit; replacing the content of one moves v by at most V/K. The noise is
    drawn as in :mod:`secfed.dp.training.mechanism`: values and noise are integers on a common grid.
    """

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

    def clean(self, values: Sequence[float]) -> int:
        """The clipped sum on the grid, in steps of V / 2^30; NaN counts as V, never as a failure."""
        if not values:
            raise ConfigError("a private mean needs at least one value")
        numbers = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=self.bound, posinf=self.bound)
        share = np.clip(numbers / self.bound, 0.0, 1.0)
        return int(np.rint(share * 2.0**_GRID_BITS).astype(np.int64).sum())

    def release(self, values: Sequence[float], random: SecureRandom) -> float:
        """One release; pay for :func:`~secfed.dp.accounting.events.bounded_mean` first.

        ``values`` has one per unit; which units, and how many, must not depend on the data.
        """
        total = self.clean(values)
        # The noise's own grid is at least as fine as the values', so its rounding is post-processing.
        extra = self._extra_bits
        step = self.noise_over_sensitivity * 2.0 ** (_GRID_BITS + extra)
        noise = int(NoiseSampler(RoundedNormal(step), random).take(1)[0])
        exact = (total << extra) + noise
        return exact * math.ldexp(self.bound, -_GRID_BITS - extra) / len(values)


@dataclass(frozen=True, kw_only=True)
class LossRelease:
    """What an algorithm plans to release of a site's loss; ConfigError for values out of range."""

    records: int  # that the site trains on
    size: int  # of one group, at least 2 and the same at every site: the batch of the evaluation
    releases: int  # in the study
    cap: float  # a group's loss counts as at most this; public
    floor: float = 0.0  # and as at least this; public
    # K is at most this (an evaluation costs K forward passes); None uses every group that the records fill,
    # which gives the least noise.
    groups: int | None = None
    # The releases alone would take this share of the study's epsilon. Training pays by composition, not by
    # addition: with 0.1 it needs about 1 % more noise, with 0.2 3 %, with 0.3 7 %.
    share: float = 0.2
    # Whose each record is; needed where the relation hides patients, else unused.
    patients: tuple[int, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        window = self.cap - self.floor
        for name, holds, rule in (
            ("size", self.size >= 2, "2 or more"),
            ("releases", self.releases >= 0, "0 or more"),
            ("groups", self.groups is None or self.groups >= 1, "1 or more"),
            ("share", 0.0 < self.share < 1.0, "a number between 0 and 1"),
            ("cap", math.isfinite(window) and window > 0.0, "a number above the floor"),
        ):
            if not holds:
                given = getattr(self, name)
                raise ConfigError(f"release of losses: {name} = {given}", remedy=f"use {rule}")


class PlannedLosses:
    """Releases of a site's loss with their noise. Made by ``LocalPrivacy``.

    ``multiplier`` maps a number of releases to the smallest noise multiplier, relative to half the window,
    for which they together stay within the share of epsilon; ``seed`` decides the groups only. ConfigError
    for a relation without slots, records that do not fill one group, or no patients where they are hidden.
    """

    def __init__(
        self, wanted: LossRelease, unit: PrivacyUnit, *, seed: int, multiplier: Callable[[int], float]
    ) -> None:
        if not unit.adjacency.keeps_slots:
            raise ConfigError(
                f"privacy.adjacency: a noisy loss hides that a record is replaced, not {unit.adjacency}",
                remedy='set privacy.unit = "group", or privacy.adjacency = "replace-record"',
            )
        if wanted.records < wanted.size:
            raise ConfigError(
                f"release of losses: {wanted.records} records do not fill one batch of {wanted.size}",
                remedy="use smaller batches for the loss",
            )
        self.wanted, self._adjacency = wanted, unit.adjacency
        partition = GroupPartition.under(
            unit, wanted.records, wanted.size, seed=seed, patients=wanted.patients
        )
        self.groups = partition.groups[: wanted.groups]
        # The event's multiplier is relative to C = window / 2, the mean's sigma to the window.
        self._mean = PrivateMean(wanted.cap - wanted.floor, multiplier(wanted.releases) / 2.0)

    @property
    def sensitivity(self) -> float:
        """How far replacing one record, or patient, moves the mean: (cap - floor) / K."""
        return self._mean.bound / len(self.groups)

    @cached_property
    def event(self) -> Gaussian:
        """What one release spends."""
        return bounded_mean(self._mean.noise_over_sensitivity, 1, self._adjacency)

    @property
    def all_events(self) -> Gaussian:
        """What all planned releases spend together."""
        return bounded_mean(self._mean.noise_over_sensitivity, self.wanted.releases, self._adjacency)

    def values(self, evaluate: Evaluate) -> list[float]:
        """The loss of every group above the floor, before it is clipped: private.

        NaN, which counts as the cap, for a group whose loss cannot be computed: the sensitivity stays what it
        is.
        """
        return [otherwise(math.nan, evaluate, group) - self.wanted.floor for group in self.groups]

    def release(self, evaluate: Evaluate, random: SecureRandom) -> float:
        """One release, cut to [floor, cap] (post-processing); :attr:`event` must have been paid.

        ``evaluate`` gives the loss of one group, by the indices of its records. It must depend on these
        records, the received model and public data only: no random numbers that other groups share, no
        statistics that it leaves in the model. NaN counts as the cap, and so does an exception.
        """
        noisy = self.wanted.floor + self._mean.release(self.values(evaluate), random)
        return min(max(noisy, self.wanted.floor), self.wanted.cap)
