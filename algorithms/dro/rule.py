"""DRO weights that nobody sees: each site computes its own from one secure sum of a few scalars.

Distributionally robust training gives site i a weight l_i that grows with its loss v_i and stays inside
a divergence ball around the uniform weights. Published methods send every loss to the server and every
weight to every site. Here only sums leave a site; ``docs/private-dro.md`` proves that they are enough, and
says what they still reveal and why small cohorts are refused.

One round of site i, with V the public loss cap and N the enrolled sites:

    a_i = N l_i exp(gamma (min(v_i, V) - V))                 its secret
    sums over the survivors U of a_i and a_i^2               one exchange; n = |U|
    t_i = a_i / p1,  c = n p2 / p1^2 - 1,  s = min(1, sqrt(R / c)),  l_i = 1/n + s (t_i - 1/n)

Each revealed sum is one equation in the numbers of the n sites. Whoever holds t of them is left with n - t
unknowns, which must be more than the revealed sums. t is at least 1: every site holds its own number.

Source: exponentiated gradient and Euclidean projection as in Zhang et al., "Unified fair federated
learning for digital healthcare", Patterns 2023; chi-square ball as in Duchi, Namkoong, "Learning models
with uniform performance via distributionally robust optimization", Annals of Statistics 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import torch

from secfed.algorithms.dro import kl
from secfed.algorithms.dro.answer import DroAnswer, malformed
from secfed.algorithms.dro.loss import blurred_mean, capped
from secfed.algorithms.dro.options import DroOptions
from secfed.crypto.fixedpoint import NARROW_MAX_BITS, FixedPoint
from secfed.errors import ConfigError, RangeError
from secfed.wire.layout import Field, Totals

SiteId = str

MAX_EXPONENT: Final = 10.0  # of exp(gamma V): more range than this and small losses drown in rounding
CAP_FACTOR: Final = 1.5  # default loss cap in units of log(batch), the loss of a model that knows nothing
WEIGHT_FLOOR: Final = 1e-9  # a weight that underflowed to 0 would shut its site out for good
# Where sums are protected. With rho = 0.1 and chi2, no honest weight of five sites is below 0.11 / n.
LEAST_STEP_SCALE: Final = 0.05
_SQUARE_STEP: Final = 2.0**-52  # of a^2: 1e-7 of the smallest one at equal weights, and no finer than needed
_TRUST: Final = 2.0**20  # a sum counts only if it is this many times larger than its rounding
_RING_ROOM: Final = 2.0**16  # by how much the ring's largest sums may exceed those of honest sites

_A, _A2, _A2_REST, _POWERS = "dro/a", "dro/a2", "dro/a2_rest", "dro/powers"


@dataclass(frozen=True)
class DroRule:
    """One study's DRO weights; the same on every machine."""

    options: DroOptions
    sites: tuple[SiteId, ...]  # ids of the enrolled sites, sorted
    # Sites assumed to pool what they know with the server; none counts as 1 all the same, because every site
    # knows its own numbers and is told the sums.
    colluders: int
    cap: float  # V, the public loss cap
    noised: bool = False  # losses carry noise of a privacy guarantee: the counting rule is not needed

    def __post_init__(self) -> None:
        gamma = self.options.gamma
        if not gamma * self.cap <= MAX_EXPONENT:
            raise ConfigError(
                f"algorithm.gamma: gamma * loss_cap is {gamma * self.cap:.4g}, more than "
                f"{MAX_EXPONENT:g}: small losses would drown in rounding",
                remedy=f"set algorithm.gamma to {MAX_EXPONENT / self.cap:.4g} or less, "
                "or lower algorithm.loss_cap",
            )
        if list(self.sites) != sorted(set(self.sites)):
            raise ConfigError("DRO weights need site ids that are sorted and unique")

    @classmethod
    def make(
        cls,
        options: DroOptions,
        *,
        sites: Sequence[SiteId],
        colluders: int,
        batch: int,
        cap_factor: float = CAP_FACTOR,
        noised: bool = False,
    ) -> Self:
        """The rule of a study; the default cap is ``cap_factor * log(batch)``, pairs per loss batch."""
        if options.loss_cap is None and batch < 2:
            message = "algorithm.loss_cap: batches of one pair have no contrast, so there is no default"
            raise ConfigError(message, remedy="set algorithm.loss_cap, or use batches of at least 2 pairs")
        cap = cap_factor * math.log(batch) if options.loss_cap is None else options.loss_cap
        return cls(options, tuple(sorted(sites)), colluders, cap, noised)

    @property
    def initial(self) -> float:
        """Every site's first weight."""
        return 1.0 / len(self.sites)

    @property
    def radius(self) -> float:
        """R = rho / divergence_factor: chi2 <= R."""
        return self.options.rho / self.options.divergence_factor

    @property
    def revealed(self) -> int:
        """How many sums of private numbers become known."""
        return 2 if self.options.divergence == "chi2" else self.options.kl_nodes

    @property
    def minimum(self) -> int:
        """The least number of sites in a sum: n - t must exceed the revealed sums."""
        if self.noised or (self.options.allow_two_site_weight_disclosure and len(self.sites) == 2):
            return 2
        return max(self.colluders, 1) + self.revealed + 1

    def check_cohort(self, sites: int, threshold: int | None = None) -> None:
        """Refuse a cohort that is too small, or whose sites would help to open a sum over too few of them.

        ``threshold`` is None for a protection that opens nothing.
        """
        least = self.minimum
        if sites < least:
            reasons = {
                2: "of two sites each could work out the other's loss",
                3: "of three sites each could work out the other two's losses, but for their order",
            }
            accepted = "; or algorithm.allow_two_site_weight_disclosure = true, if both accept it"
            pooled = "with fewer, sites that pool what they know could solve for the others' losses"
            raise ConfigError(
                f"algorithm.rho: DRO weights need sums over {least} sites, and there are {sites}: "
                f"{reasons.get(sites, pooled)}",
                remedy="set algorithm.rho = 0 (equal weights), add noise to the losses, or add sites"
                + (accepted if sites == 2 else ""),
            )
        if threshold is not None and threshold < least:
            raise ConfigError(
                f"protection.threshold: sites would open a sum of DRO numbers over {threshold} of them, "
                f"and a sum over fewer than {least} could be solved for single losses",
                remedy=f"set protection.threshold = {least}, or algorithm.rho = 0",
            )

    def loss(self, losses: torch.Tensor) -> float:
        """The loss of a site from [k] losses of its batches; at least one."""
        return blurred_mean(losses, self.cap)

    def own(self, weight: float, loss: float) -> float:
        """a_i, in (0, N]: a site's secret number. A loss that is not a number counts as the cap."""
        if not 0.0 < weight <= 1.0:
            raise RangeError("a DRO weight is outside (0, 1]", remedy="the site's saved state is damaged")
        return len(self.sites) * weight * math.exp(self.options.gamma * (capped(loss, self.cap) - self.cap))

    def fields(self) -> tuple[Field, ...]:
        """The scalars of the exchange.

        a^2 spans exp(2 gamma V), too much for one field: its leading part, a multiple of that field's
        step, travels in one, and the rest, below a step, in another. The two totals add up to the sum.
        """
        count = len(self.sites)
        if self.options.divergence == "kl":
            return (Field(_POWERS, (self.options.kl_nodes,), bound=1.0, bits=64),)
        return (
            Field(_A, (), bound=float(count), bits=64),
            Field(_A2, (), bound=float(count) ** 2, bits=64),
            Field(_A2_REST, (), bound=self._steps[1], bits=self._rest_bits),
        )

    @cached_property
    def _steps(self) -> tuple[float, float, float]:
        """Resolution of a, of the leading part of a^2, and of its rest."""
        count = len(self.sites)
        step_a = FixedPoint.choose(bound=float(count), bits=64, sites=count).step
        step_a2 = FixedPoint.choose(bound=float(count) ** 2, bits=64, sites=count).step
        rest = FixedPoint.choose(bound=step_a2, bits=self._rest_bits, sites=count)
        return step_a, step_a2, rest.step

    @cached_property
    def _rest_bits(self) -> int:
        count = len(self.sites)
        bound = FixedPoint.choose(bound=float(count) ** 2, bits=64, sites=count).step
        for bits in range(count.bit_length() + 8, NARROW_MAX_BITS):
            if FixedPoint.choose(bound=bound, bits=bits, sites=count).step <= _SQUARE_STEP:
                return bits
        return NARROW_MAX_BITS

    def summand(self, weight: float, loss: float) -> dict[str, torch.Tensor | float]:
        """What a site adds. At most once per round: two sums over different survivors give a difference."""
        own = self.own(weight, loss)
        if self.options.divergence == "kl":
            logarithm = math.log(own / len(self.sites))
            sums = [math.exp(power * logarithm) for power in kl.powers(self.options.kl_nodes)]
            return {_POWERS: torch.tensor(sums, dtype=torch.float64)}
        square, step = own * own, self._steps[1]
        leading = math.floor(square / step) * step  # exact: step is a power of two
        return {_A: own, _A2: leading, _A2_REST: square - leading}

    def answer(self, round_number: int, totals: Totals) -> DroAnswer | None:
        """What everybody is told; None below the minimum, and where sums are no more than their rounding."""
        survivors = set(totals.survivors)
        members = tuple(site in survivors for site in self.sites)
        count = sum(members)
        if count < self.minimum:
            return None
        if self.options.divergence == "kl":
            sums = tuple(float(one) for one in totals[_POWERS])
        else:
            sums = (totals.scalar(_A), totals.scalar(_A2) + totals.scalar(_A2_REST))
        if any(not one >= least for one, least in zip(sums, self._least_sums(count), strict=True)):
            return None
        return DroAnswer(round_number, sums, members)

    def _least_sums(self, count: int) -> tuple[float, ...]:
        """What each sum over ``count`` sites must reach to be more than its rounding."""
        if self.options.divergence == "kl":
            step = FixedPoint.choose(bound=1.0, bits=64, sites=len(self.sites)).step
            return (_TRUST * count * step,) * self.options.kl_nodes
        return _TRUST * count * self._steps[0], _TRUST * count * self._steps[2]

    def check(self, answer: DroAnswer) -> None:
        """Refuse, with a MalformedMessage, an answer that no honest aggregator gives to any site."""
        if (len(answer.members), len(answer.sums)) != (len(self.sites), self.revealed):
            raise malformed("is for another study")
        if answer.n < self.minimum:
            raise malformed("is about fewer sites than the study's least")
        if self.options.rho == 0.0:
            return
        # A lying site moves sums within the ring, a lying server anywhere, to where squares are 0 or inf.
        most = _RING_ROOM * len(self.sites) ** 3
        least_sums = self._least_sums(answer.n)
        if not all(least <= one <= most for one, least in zip(answer.sums, least_sums, strict=True)):
            raise malformed("holds sums that no sites add up to")
        if self.options.divergence == "kl":
            kl.solve(answer.sums, answer.n, self.options.rho)

    def weight(self, site: SiteId, weight: float, loss: float, answer: DroAnswer | None) -> float:
        """The new weight from that of the summand; the old one if the site is in no answer."""
        if answer is None:
            return weight
        self.check(answer)
        if not answer.members[self.sites.index(site)]:
            return weight
        own, count = self.own(weight, loss), answer.n
        if self.options.rho == 0.0:
            return 1.0 / count
        if self.options.divergence == "kl":
            power, log_sum = kl.solve(answer.sums, count, self.options.rho)
            new = math.exp(power * math.log(own / len(self.sites)) - log_sum)
        else:
            first, second = answer.sums
            # Honest numbers lie in between; outside it is rounding or a site's lie.
            spread = min(max(count * (second / first**2) - 1.0, 0.0), count - 1.0)
            shrink = 1.0 if spread <= self.radius else math.sqrt(self.radius / spread)
            new = 1.0 / count + shrink * (own / first - 1.0 / count)
        return min(max(new, self.smallest(count)), self.largest(count))

    def smallest(self, count: int) -> float:
        """The smallest weight that any of ``count`` sites gets: false sums get none below it.

        Security: numbers of a sum are in proportion to weights. Were all but one next to nothing, the sum
        would be the one site's loss; so the study's least step scale is a floor here too.
        """
        floor = max(self.options.least_step_scale / count, WEIGHT_FLOOR)
        if self.options.divergence == "kl":
            return floor
        return max((1.0 - math.sqrt(self.radius * (count - 1))) / count, floor)

    def largest(self, count: int) -> float:
        """The largest weight that any of ``count`` sites can have inside the ball."""
        if self.options.divergence == "kl":
            return kl.largest_weight(count, self.options.rho)
        return min((1.0 + math.sqrt(self.radius * (count - 1))) / count, 1.0)

    def step_scale(self, weight: float, count: int) -> float:
        """What the site multiplies its learning rate by (never the loss: Adam would divide it out).

        ``count`` is n of the last answer; before there is one, the number of enrolled sites.

        Security: a server that publishes false sums, or leaves a site out of them, decides which weights
        fall. The study's least step scale keeps the others' updates from vanishing beside one site's.
        """
        unit = float(count) if self.options.weight_convention == "mean_one" else 1.0
        if weight == 1.0 / count:  # count * (1 / count) is not 1 for every count
            return unit / count
        return unit * min(max(weight, self.options.least_step_scale / count), self.largest(count))
