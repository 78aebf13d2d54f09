"""Accountants for long ledgers: the same numbers, without doing work twice.

A ledger states an epsilon after every payment. Composing everything from scratch each time is quadratic, so:

* each mechanism is built once (:class:`RememberingPld`; every digit stays);
* a composition that only grew is continued instead of begun again, and a *recorded* epsilon is tested by
  its delta, which is one dot product (:class:`ExpectingPld`). Only if delta is not met to one part in a
  million, epsilon is computed exactly. A recorded epsilon can thus be off by about 1e-7 unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from secfed.dp.accounting.events import Event, PoissonSampledGaussian, compose
from secfed.dp.accounting.interface import Accountant, Pld

_TOLERANCE: Final = 1e-6  # of delta
_KEPT: Final = 4  # growing compositions: budgets with periods interleave


@dataclass(frozen=True)
class RememberingPld(Pld):
    """:class:`Pld` that builds each mechanism once."""

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        if not sampled(events) or not 0.0 < delta < 1.0:
            return super().epsilon(events, delta)
        from dp_accounting.pld import privacy_loss_distribution as pld

        total = pld.identity(value_discretization_interval=self.interval)
        for event in compose(events):
            total = total.compose(repeated(event, self.interval))
        return float(total.get_epsilon_for_delta(delta))


@dataclass
class _Growing:
    """A composition and what is in it."""

    counts: dict[Event, int]
    composed: Any


@dataclass
class ExpectingPld:
    """Tests whether a composition meets an expected epsilon; otherwise computes it exactly.

    Attributes:
        exact: computes what is not as expected.
        expected: set before a question is asked; NaN expects nothing.
    """

    exact: Pld
    expected: float = math.nan
    _growing: list[_Growing] = field(default_factory=list, repr=False)

    @property
    def name(self) -> str:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        return self.exact.name

    @property
    def version(self) -> str:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        return self.exact.version

    @property
    def least_delta(self) -> float:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        return self.exact.least_delta

    def refusal(self, event: Event) -> str | None:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        return self.exact.refusal(event)

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        """The expected epsilon if it is right, otherwise the right one."""
        if self.expected > 0 and sampled(events) and 0.0 < delta < 1.0:
            met = float(self._composed(events).get_delta_for_epsilon(self.expected))
            if abs(met - delta) <= _TOLERANCE * delta:
                return self.expected
        return self.exact.epsilon(events, delta)

    def delta(self, events: Sequence[Event], epsilon: float) -> float:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        return self.exact.delta(events, epsilon)

    def _composed(self, events: Sequence[Event]) -> Any:
        """Continue the composition that lacks the least, or begin a new one."""
        wanted = {event.repeated(1): event.times for event in compose(events)}
        fits = [one for one in self._growing if _within(one.counts, wanted)]
        if fits:
            grown = max(fits, key=lambda one: sum(one.counts.values()))
            self._growing.remove(grown)
        else:
            from dp_accounting.pld import privacy_loss_distribution as pld

            grown = _Growing({}, pld.identity(value_discretization_interval=self.exact.interval))
        for mechanism, times in wanted.items():
            more = times - grown.counts.get(mechanism, 0)
            if more:
                grown.composed = grown.composed.compose(
                    repeated(mechanism.repeated(more), self.exact.interval)
                )
        grown.counts = wanted
        self._growing = [grown, *self._growing[: _KEPT - 1]]
        return grown.composed


def _within(counts: Mapping[Event, int], wanted: Mapping[Event, int]) -> bool:
    return all(wanted.get(mechanism, 0) >= times for mechanism, times in counts.items())


def sampled(events: Sequence[Event]) -> bool:
    """Whether these are what the shortcuts here are for: sampled, noisy, of one relation."""
    return len({event.adjacency for event in events}) == 1 and all(
        isinstance(event, PoissonSampledGaussian) and event.sampling_rate < 1 and event.noise_multiplier > 0
        for event in events
    )


@lru_cache(maxsize=32)
def repeated(event: Event, interval: float) -> Any:
    """The loss distribution of one event with all its steps."""
    if not isinstance(event, PoissonSampledGaussian):
        raise TypeError(f"{event.name} is not sampled")
    replace = event.adjacency.factor == 2
    base = _mechanism(event.noise_multiplier, event.sampling_rate, replace, interval)
    return base.self_compose(event.times)


@lru_cache(maxsize=16)
def _mechanism(noise_multiplier: float, rate: float, replace: bool, interval: float) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    relation = NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE
    return pld.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        value_discretization_interval=interval,
        sampling_prob=rate,
        neighboring_relation=relation,
    )


@dataclass
class Remembering:
    """Any accountant, with its answers remembered: sites of one study often spend the same."""

    inner: Accountant
    known: dict[tuple[tuple[Event, ...], float, float], float] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        return self.inner.name

    @property
    def version(self) -> str:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        return self.inner.version

    @property
    def least_delta(self) -> float:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        return self.inner.least_delta

    def refusal(self, event: Event) -> str | None:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        return self.inner.refusal(event)

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        # What was accepted as expected is remembered for that expectation only.
        expected = self.inner.expected if isinstance(self.inner, ExpectingPld) else 0.0
        asked = (tuple(events), delta, 0.0 if math.isnan(expected) else expected)
        if asked not in self.known:
            self.known[asked] = self.inner.epsilon(events, delta)
        return self.known[asked]

    def delta(self, events: Sequence[Event], epsilon: float) -> float:
        """See :class:`secfed.dp.accounting.interface.Accountant`."""
        return self.inner.delta(events, epsilon)
