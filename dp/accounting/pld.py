"""An accountant for long ledgers, which state an epsilon after every payment.

A composition that only grew is continued, and a *recorded* epsilon is tested by its delta, one dot product.
Only if delta is not met to one part in a million, epsilon is computed exactly: it can be off by 1e-7
unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from secfed.dp.accounting.accountants import Pld
from secfed.dp.accounting.events import Event, PoissonSampledGaussian

_TOLERANCE: Final = 1e-6  # of delta
_MOST_GROWING: Final = 4  # compositions at a time: budgets with periods interleave


@dataclass
class _Growing:
    """A composition and how often each mechanism is in it."""

    counts: dict[Event, int]
    distribution: Any


@dataclass(frozen=True)
class ExpectingPld(Pld):
    """Tests whether a composition meets an expected epsilon; otherwise computes it exactly."""

    expected: float = 0.0  # what was recorded; 0 expects nothing. `dataclasses.replace` shares the rest.
    growing: list[_Growing] = field(default_factory=list, repr=False, compare=False)

    def _epsilon(self, events: tuple[Event, ...], delta: float) -> float:
        sampled = all(
            isinstance(one, PoissonSampledGaussian) and one.sampling_rate < 1 and one.noise_multiplier > 0
            for one in events
        )
        if self.expected > 0 and sampled:
            met = float(self.grown(events).get_delta_for_epsilon(self.expected))
            if abs(met - delta) <= _TOLERANCE * delta:
                return self.expected
        return super()._epsilon(events, delta)

    def grown(self, events: Sequence[Event]) -> Any:
        """Continue the composition that lacks the least, or begin a new one; sampled, noisy events only."""
        wanted = {event.repeated(1): event.times for event in events}
        fits = [
            one
            for one in self.growing
            if all(wanted.get(mechanism, 0) >= times for mechanism, times in one.counts.items())
        ]
        longest = max(fits, key=lambda one: sum(one.counts.values()), default=_Growing({}, None))
        more = [
            mechanism.repeated(times - longest.counts.get(mechanism, 0))
            for mechanism, times in wanted.items()
            if times > longest.counts.get(mechanism, 0)
        ]
        distribution = self.composed(more, longest.distribution) if more else longest.distribution
        others = [one for one in self.growing if one is not longest]
        self.growing[:] = [_Growing(wanted, distribution), *others[: _MOST_GROWING - 1]]
        return distribution
