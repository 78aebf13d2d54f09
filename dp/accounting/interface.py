"""Epsilon from events: guarantees that may be printed, and noise for a given guarantee.

Epsilons are composed by composing events, never by adding. Only where no single accountant covers a
mixture (records under replace together with Skellam) :func:`statement` falls back on basic composition
of one epsilon per accountant, at an equal share of delta each, and says so in the accountant's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from secfed.dp.accounting.accountants import (
    Accountant,
    Pld,
    Prv,
    Rdp,
    below_least,
    check_delta,
    check_epsilon,
)
from secfed.dp.accounting.events import Event, common_adjacency, compose
from secfed.dp.accounting.unit import Adjacency
from secfed.errors import ConfigError

__all__ = ["ACCOUNTANTS", "Accountant", "Pld", "Prv", "Rdp", "Statement"]
__all__ += ["accountant", "calibrate", "statement"]

_WIDEN = 1.25
_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e6
_LEAST_EPSILON = 1e-300  # the search takes logarithms of epsilons down to here

_RDP: Final = Rdp()

ACCOUNTANTS: dict[str, Callable[[], Accountant]] = {"rdp": Rdp, "prv": Prv, "pld": Pld}


def accountant(name: str) -> Accountant:
    """The accountant of that name."""
    if name not in ACCOUNTANTS:
        message = f"unknown accountant {name!r}"
        raise ConfigError(message, remedy=f"use one of {', '.join(sorted(ACCOUNTANTS))}")
    return ACCOUNTANTS[name]()


@dataclass(frozen=True)
class Statement:
    """A privacy guarantee as it may be printed: never an epsilon without its relation and accountant."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    version: str


def statement(
    events: Sequence[Event],
    delta: float,
    preferred: Accountant | None = None,
    *,
    second: Accountant | None = _RDP,
    exactly: bool = False,
) -> Statement:
    """The guarantee of all events together at ``delta``.

    Events of different relations are first restated under the widest one they share. If the preferred
    accountant (pld by default) covers every event, its bound is taken, or the smaller one of ``second`` where
    that does, too. Otherwise each event goes to the first of (preferred, pld, rdp) that covers it, and
    epsilons are added at equal shares of delta. ``exactly`` repeats what the preferred accountant said, at
    any delta: for checking a record, never for a new guarantee. ConfigError for no events, no shared
    relation, an event that no accountant covers, or a delta at which those that do are not known to give an
    upper bound.
    """
    check_delta(delta)
    adjacency, restated = common_adjacency(compose(events))
    merged = compose(restated)
    order: list[Accountant] = [preferred or Pld(), Pld(), Rdp()]
    whole = [one for one in order if all(one.refusal(event) is None for event in merged)]
    valid = [one for one in whole if exactly or delta >= one.least_delta]
    if valid:
        asked = valid[:1]
        others = {one.name for one in valid[1:]} - {valid[0].name}
        if second is not None and not exactly and second.name in others:
            asked.append(second)
        epsilon, name, version = min((one.epsilon(merged, delta), one.name, one.version) for one in asked)
        return Statement(epsilon, delta, adjacency, name, version)
    if whole:
        raise below_least(whole[0].name, delta)
    shares: dict[str, tuple[Accountant, list[Event]]] = {}
    for event in merged:
        covering = next((one for one in order if one.refusal(event) is None), None)
        if covering is None:
            raise ConfigError(f"no accountant covers {event.name} under {event.adjacency}")
        shares.setdefault(covering.name, (covering, []))[1].append(event)
    parts, share = sorted(shares), delta / len(shares)
    for one, _ in shares.values():
        if not exactly and share < one.least_delta:
            raise below_least(one.name, share)
    epsilon = sum(shares[name][0].epsilon(shares[name][1], share) for name in parts)
    versions = "; ".join(shares[name][0].version for name in parts)
    return Statement(epsilon, delta, adjacency, f"basic composition of {' and '.join(parts)}", versions)


def calibrate(
    epsilon: float,
    delta: float,
    mechanism: Callable[[float], Event | Sequence[Event]],
    *,
    already: Sequence[Event] = (),
    preferred: Accountant | None = None,
    tolerance: float = 1e-3,
) -> float:
    """The smallest noise multiplier that keeps everything within (epsilon, delta), from above.

    ``already`` are events spent before, which epsilon covers too; ``mechanism`` maps a multiplier to the new
    events. Of a search of relative width ``tolerance`` the upper end is returned, *checked* to satisfy
    the budget. ConfigError for a budget that is spent, too small, or that no reasonable noise satisfies.
    """
    check_epsilon(epsilon)
    if epsilon < _LEAST_EPSILON:
        raise ConfigError(
            f"privacy.epsilon: {epsilon:g}, the part of it that needs noise, is too small to compute with",
            remedy="raise privacy.epsilon, for example to 1",
        )
    unreachable = ConfigError(
        f"no noise reaches epsilon {epsilon:g} at delta {delta:g}",
        remedy="raise epsilon, or take fewer steps or a lower sampling rate",
    )

    def all_events(multiplier: float) -> list[Event]:
        made = mechanism(multiplier)
        return [*already, *([made] if isinstance(made, Event) else made)]

    def spent(multiplier: float) -> float:
        return statement(all_events(multiplier), delta, preferred, second=_RoughRdp()).epsilon

    def roughly_fits(multiplier: float) -> bool:
        """By RDP under the relation it covers (replacing is about twice as far): a place to begin."""
        quick = [
            event
            if Rdp().refusal(event) is None
            else replace(event, adjacency=Adjacency.ADD_OR_REMOVE_RECORD)
            for event in all_events(multiplier)
        ]
        return statement(quick, delta, _RoughRdp(), second=None).epsilon <= epsilon

    # A distribution with a large epsilon is large in memory, so the search never strays far from the
    # budget: it begins where the quick accountant sees it, and widens in small steps.
    high = 1.0
    while not roughly_fits(high):
        high *= 2.0
        if high > _MOST_NOISE:
            raise unreachable
    while high > _LEAST_NOISE and roughly_fits(high / _WIDEN):
        high /= _WIDEN
    while not spent(high) <= epsilon:
        high *= _WIDEN
        if high > _MOST_NOISE:
            raise unreachable
    low = high / _WIDEN
    while low > _LEAST_NOISE and spent(low) <= epsilon:
        low, high = low / _WIDEN, low
    if low > _LEAST_NOISE:
        from scipy.optimize import brentq

        # Epsilon is close to a power of the noise: in logarithms the search needs a few steps only.
        def excess(log_multiplier: float) -> float:
            return math.log(min(max(spent(math.exp(log_multiplier)), 1e-300), 1e300) / epsilon)

        found = math.exp(float(brentq(excess, math.log(low), math.log(high), xtol=tolerance / 2)))
        high = min(high, found * (1.0 + tolerance / 2))
    while not spent(high) <= epsilon:
        high *= 1.0 + tolerance
    return high


class _RoughRdp(Rdp):
    """Whole orders only: fractional ones take most of the time. Fewer orders give a larger, valid bound."""

    orders = np.array([2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0])
