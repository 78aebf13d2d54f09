"""Site-level privacy inside the secure sum: joint clipping, and integer noise at every site.

    summands -> divide by each field's scale -> clip jointly to L2 norm C -> fixed point (stochastic rounding)
             -> add this site's share of the noise, in the ring -> mask or encrypt -> sum

Everything a site contributes to the exchange (every tensor and every scalar) is one vector for the
clipping, so one norm bounds it all. Noise is integer and is added to the ring integers, so the totals
under plain, masked and encrypted protection stay bit-identical, and no floating-point value of the noise
ever exists.

Shares. Every site adds variance V / (n_min - t), where n_min is the smallest survivor set that is
summed and t the number of colluding sites whose noise does not count. Any survivor set of at least
n_min sites then carries at least V of noise that nobody outside the honest sites knows; more survivors
only add to it. Skellam noise is closed under summation, so this is exact for every survivor set;
discrete Gaussians are not, which their accounting pays for.

Rounding. Stochastic rounding moves each element by less than one step, so the integers one site adds
have norm at most C + sqrt(sum of step^2) whatever the rounding did: the sensitivity of the event.
No rotation is applied: with lanes of 16 bits and more the grid is fine enough without one.

Headroom. :meth:`SiteNoise.plan` sets each field's bound to C plus a noise magnitude that is exceeded with
probability below 2^-64 per element, and a site refuses to send what exceeds it; so no sum wraps.

Source: Kairouz, Liu, Steinke 2021 (arXiv 2102.06387); Agarwal, Kairouz, Liu 2021 (arXiv 2110.04995).

Security: an exchange is one release. A second attempt must carry the *same* noise, hence the noise key:
fresh per round and exchange, and forgotten when the exchange is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.crypto import labels
from secfed.crypto.fixedpoint import FixedPoint
from secfed.crypto.keystream import derive
from secfed.crypto.lanes import Run, VectorSource
from secfed.dp.accounting.events import DistributedDiscreteGaussian, Event, Skellam
from secfed.dp.accounting.unit import Adjacency, Unit
from secfed.dp.mechanisms.distributions import skellam_tail
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.sampler import DiscreteGaussian, NoiseSampler, SkellamTarget
from secfed.errors import ConfigError, RangeError
from secfed.wire.layout import Field, Layout, Summands, Totals

_TAIL_BITS: Final = 64.0
_LEAST_CLIP, _MOST_CLIP = 1e-130, 1e130  # squares of norms and grid steps stay ordinary float64 numbers
_FLOAT_MARGIN: Final = 1.0 + 2.0**-30  # covers float64 rounding of norms, scales and variances


@dataclass(frozen=True)
class SiteNoise:
    """Site-level privacy of one exchange; equal at every site. ConfigError for values out of range."""

    layout: Layout  # with headroom for the noise; made by `plan`
    clip_norm: float  # C, after every field was divided by its scale
    noise_multiplier: float  # sigma: honest noise in the sum has standard deviation sigma * C
    min_survivors: int  # n_min, the smallest survivor set this site lets be summed
    colluders: int  # t, sites whose noise is not counted, below n_min
    scales: Mapping[str, float] = field(default_factory=dict)  # what one unit of C means in a field, else 1
    kind: Literal["skellam", "discrete-gaussian"] = "skellam"

    protects: ClassVar[Unit] = Unit.SITE
    skellam: ClassVar[type[Skellam]] = Skellam
    discrete_gaussian: ClassVar[type[DistributedDiscreteGaussian]] = DistributedDiscreteGaussian

    def __post_init__(self) -> None:
        for name, value in (("clip_norm", self.clip_norm), ("noise multiplier", self.noise_multiplier)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"privacy {name} = {value} is not a positive number")
        if not _LEAST_CLIP <= self.clip_norm <= _MOST_CLIP:
            raise ConfigError(
                f"privacy.clip_norm: {self.clip_norm:g} is too small or too large to compute with",
                remedy="set it near the L2 norm of a usual update, for example 1.0",
            )
        if not 0 <= self.colluders < self.min_survivors <= self.layout.sites:
            raise ConfigError(
                f"{self.min_survivors} survivors, {self.colluders} of them colluding, "
                f"among {self.layout.sites} sites",
                remedy="site-level noise needs colluders < smallest survivor set <= enrolled sites",
            )
        names = {item.name for item in self.layout.fields}
        if not set(self.scales) <= names or any(not value > 0 for value in self.scales.values()):
            raise ConfigError("privacy scales must be positive and name fields of the exchange")

    @classmethod
    def plan(
        cls,
        layout: Layout,
        *,
        clip_norm: float,
        noise_multiplier: float,
        min_survivors: int,
        colluders: int,
        scales: Mapping[str, float] | None = None,
        kind: Literal["skellam", "discrete-gaussian"] = "skellam",
        **more: Any,
    ) -> Self:
        """Set a layout's bounds to what clipping and noise need; RangeError for lanes too narrow for both."""
        noise = cls(
            layout, clip_norm, noise_multiplier, min_survivors, colluders, dict(scales or {}), kind, **more
        )
        fields = []
        for item in layout.fields:
            signal = noise.signal(item)
            wide, margin = replace(item, bound=signal), 0.0
            # A wider bound is a coarser step, which lengthens the tail a little: go on until it fits.
            while (needed := noise._tail(wide) * noise._step(wide) * noise.scale(item.name)) > margin:
                margin = needed * 1.01
                wide = replace(item, bound=signal + margin)
            fields.append(wide)
        return replace(noise, layout=Layout(tuple(fields), layout.sites))

    def signal(self, item: Field) -> float:
        """What no element of a site's contribution exceeds, before noise."""
        return self.clip_norm * self.scale(item.name)

    def scale(self, name: str) -> float:
        """What one unit of the clipping norm means in this field."""
        return self.scales.get(name, 1.0)

    def _step(self, item: Field) -> float:
        """Grid step of a field, in scaled units."""
        rule = FixedPoint.choose(bound=item.bound, bits=item.bits, sites=self.layout.sites)
        return rule.step / self.scale(item.name)

    def share_variance(self, item: Field) -> float:
        """Variance of one site's noise per element of a field, in grid steps squared."""
        honest = self.min_survivors - self.colluders
        return (self.noise_multiplier * self.clip_norm / self._step(item)) ** 2 / honest * _FLOAT_MARGIN

    def deviation(self, survivors: int) -> float:
        """Standard deviation, in scaled units, of the noise in a sum over so many sites."""
        honest = self.min_survivors - self.colluders
        return self.noise_multiplier * self.clip_norm * math.sqrt(survivors / honest)

    def _tail(self, item: Field) -> float:
        """A noise magnitude, in grid steps, that one site exceeds with probability below 2^-64."""
        variance = self.share_variance(item)
        if self.kind == "skellam":
            return skellam_tail(variance, _TAIL_BITS)
        return math.ceil(math.sqrt(2 * math.log(2) * (_TAIL_BITS + 1) * variance))

    def clip(self, summands: Summands) -> dict[str, torch.Tensor]:
        """Clip all that a site contributes, jointly, to L2 norm C in scaled units; RangeError for NaN."""
        values = self._values(summands)
        scaled = {name: value / self.scale(name) for name, value in values.items()}
        largest = max((float(value.abs().max()) for value in scaled.values() if value.numel()), default=0.0)
        if not largest:
            return values
        # Divided by the largest element first: squares of finite numbers may be infinite, or all zero.
        length = math.sqrt(sum(float(((value / largest) ** 2).sum()) for value in scaled.values()))
        factor = min(1.0, self.clip_norm / largest / (length * _FLOAT_MARGIN))
        return {name: value * factor for name, value in values.items()}

    def _values(self, summands: Summands) -> dict[str, torch.Tensor]:
        if set(summands) != {item.name for item in self.layout.fields}:
            raise RangeError("summands do not match the layout of the private exchange")
        values = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in summands.items()}
        if not all(bool(torch.isfinite(value / self.scale(name)).all()) for name, value in values.items()):
            raise RangeError(
                "a summand contains NaN or Inf", remedy="lower the learning rate or check the site's data"
            )
        return values

    @property
    def site_norm(self) -> float:
        """Norm bound of what one site adds without noise, in scaled units."""
        return self.l2

    @cached_property
    def l2(self) -> float:
        """Norm bound of one site's rounded vector, in scaled units."""
        rounding = sum(item.elements * self._step(item) ** 2 for item in self.layout.fields)
        return (self.clip_norm + math.sqrt(rounding)) * _FLOAT_MARGIN

    @cached_property
    def l1(self) -> float:
        """L1 bound: sqrt(d) times l2, or l2 squared over the finest step (integers have |k| <= k^2)."""
        finest = min(self._step(item) for item in self.layout.fields)
        return min(math.sqrt(self.layout.elements) * self.l2, self.l2**2 / finest)

    def event(self, releases: int, adjacency: Adjacency = Adjacency.ZERO_OUT_SITE) -> Event:
        """What ``releases`` of this exchange spend, for any survivor sets of at least n_min sites.

        Fields may have different steps. Both papers' bounds are sums over coordinates that grow with
        the step, so stating all lengths in the coarsest step bounds every mixture.
        """
        if adjacency.protects is not self.protects:
            raise ConfigError(f"this noise in the secure sum protects a {self.protects}, not {adjacency}")
        coarsest = max(self._step(item) for item in self.layout.fields)
        deviation = self.noise_multiplier * self.clip_norm / coarsest
        l2, l1 = self.l2 / coarsest, self.l1 / coarsest
        if self.kind == "skellam":
            return self.skellam(adjacency, l2, l1, deviation**2, releases)
        honest = self.min_survivors - self.colluders
        return self.discrete_gaussian(
            adjacency, l2, l1, deviation / math.sqrt(honest), honest, self.layout.elements, releases
        )

    def noised(self, source: VectorSource, noise_key: bytes) -> NoisedSource:
        """What :meth:`Layout.encoder` made of :meth:`clip`, with this site's noise, for the protection.

        Security: ``noise_key``, 32 bytes, is that of every attempt of this exchange, and of no other.
        """
        return NoisedSource(self, source, noise_key)

    def check_totals(self, totals: Totals) -> None:
        """The norm test at decoding: could signal and noise of these survivors have this norm?

        RangeError for too few survivors, or a norm that honest sites exceed with probability below 2^-64.
        """
        survivors = len(totals.survivors)
        if survivors < self.min_survivors:
            raise RangeError(f"{survivors} survivors carry less noise than was accounted for")
        squares = variance = 0.0
        for item in self.layout.fields:
            squares += float(((totals[item.name] / self.scale(item.name)) ** 2).sum())
            variance = max(variance, self.share_variance(item) * self._step(item) ** 2 * survivors)
        # Twice the length that a normal vector exceeds with probability e^-50.
        noise = 2.0 * math.sqrt(variance) * (math.sqrt(self.layout.elements) + 10.0)
        if math.sqrt(squares) > survivors * self.site_norm + noise:
            raise RangeError(
                "the decoded total is larger than clipped contributions and noise can be",
                remedy="a site did not clip, or the sum was not unmasked correctly; discard the round",
            )


class NoisedSource:
    """A vector source whose lanes carry this site's noise. Made by :meth:`SiteNoise.noised`."""

    def __init__(self, noise: SiteNoise, source: VectorSource, noise_key: bytes) -> None:
        self._noise, self._source = noise, source
        self._random = SecureRandom(derive(noise_key, labels.DERIVE_SITE_NOISE))
        self._samplers: dict[float, NoiseSampler] = {}
        self._ahead = {
            run.bits: [(item, item.elements) for item in noise.layout.ordered if item.bits == run.bits]
            for run in noise.layout.shape.runs
        }

    def fill(self, run: Run, out: NDArray[Any]) -> None:
        """Write the run's next lanes to ``out``; nothing may be sent after RangeError (headroom exceeded)."""
        self._source.fill(run, out)
        ahead, at = self._ahead[run.bits], 0
        while at < len(out):
            if not ahead:
                raise RangeError("more lanes were read than the layout has")
            item, left = ahead[0]
            count = min(left, len(out) - at)
            part = out[at : at + count]
            signed = _signed(part, run.bits) + self._sampler(item).take(count)
            limit = ((1 << (run.bits - 1)) - 1) // self._noise.layout.sites
            if int(np.abs(signed).max(initial=0)) > limit:
                raise RangeError("this site's noise leaves the headroom", remedy="repeat the round")
            part[...] = signed.astype(np.int64).view(np.uint64).astype(part.dtype)
            at += count
            ahead[0] = (item, left - count)
            if left == count:
                ahead.pop(0)

    def _sampler(self, item: Field) -> NoiseSampler:
        variance = self._noise.share_variance(item)
        if variance not in self._samplers:
            skellam = self._noise.kind == "skellam"
            target = SkellamTarget(variance) if skellam else DiscreteGaussian(math.sqrt(variance))
            # A key of its own for each, so that the order of reading does not mix their streams.
            stream_key = self._random.words(4).tobytes()
            self._samplers[variance] = NoiseSampler(target, SecureRandom(stream_key))
        return self._samplers[variance]


def _signed(lanes: NDArray[Any], bits: int) -> NDArray[np.int64]:
    """Ring integers as signed numbers."""
    shift = np.int64(64 - bits)
    return np.asarray((lanes.astype(np.uint64) << np.uint64(shift)).view(np.int64) >> shift)
