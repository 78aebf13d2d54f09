"""Epsilon from events: guarantees that may be printed, and noise for a given guarantee.

Epsilons are composed by composing events, never by adding. Only where no single accountant covers a
mixture (records under replace together with Skellam) :func:`statement` falls back on basic composition
of one epsilon per accountant, at an equal share of delta each, and says so in the accountant's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secfed.dp.accountants import Accountant, Pld, Prv, Rdp, check_delta, check_epsilon
from secfed.dp.events import Event, common_adjacency, compose
from secfed.dp.unit import Adjacency
from secfed.errors import ConfigError

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Pld",
    "Prv",
    "Rdp",
    "Statement",
    "accountant",
    "calibrate",
    "statement",
]

ACCOUNTANTS: dict[str, Callable[[], Accountant]] = {"rdp": Rdp, "prv": Prv, "pld": Pld}


def accountant(name: str) -> Accountant:
    """The accountant of that name.

    Raises:
        ConfigError: no such accountant.
    """
    if name not in ACCOUNTANTS:
        raise ConfigError(
            f"unknown accountant {name!r}", remedy=f"use one of {', '.join(sorted(ACCOUNTANTS))}"
        )
    return ACCOUNTANTS[name]()


@dataclass(frozen=True)
class Statement:
    """A privacy guarantee as it may be printed: never an epsilon without its relation and accountant."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    version: str


def statement(events: Sequence[Event], delta: float, preferred: Accountant | None = None) -> Statement:
    """The guarantee of all events together at ``delta``.

    Events of different relations are first restated under the widest relation they share. If the
    preferred accountant (pld by default) covers every event it is used alone; otherwise each event goes
    to the first of (preferred, pld, rdp) that covers it and the epsilons are added at equal shares of delta.

    Raises:
        ConfigError: no events, no shared relation, or an event that no accountant covers.
    """
    check_delta(delta)
    adjacency, events = common_adjacency(compose(events))
    order: list[Accountant] = [preferred or Pld(), Pld(), Rdp()]
    shares: dict[str, tuple[Accountant, list[Event]]] = {}
    for event in compose(events):
        chosen = next((one for one in order if one.refusal(event) is None), None)
        if chosen is None:
            raise ConfigError(f"no accountant covers {event.name} under {event.adjacency}")
        shares.setdefault(chosen.name, (chosen, []))[1].append(event)
    whole = next((one for one in order if all(one.refusal(event) is None for event in events)), None)
    if whole is not None:
        shares = {whole.name: (whole, list(events))}
    parts = sorted(shares)
    epsilon = sum(shares[name][0].epsilon(shares[name][1], delta / len(parts)) for name in parts)
    name = parts[0] if len(parts) == 1 else f"basic composition of {' and '.join(parts)}"
    return Statement(epsilon, delta, adjacency, name, "; ".join(shares[part][0].version for part in parts))


def calibrate(
    epsilon: float,
    delta: float,
    mechanism: Callable[[float], Event],
    *,
    already: Sequence[Event] = (),
    preferred: Accountant | None = None,
    tolerance: float = 1e-3,
) -> float:
    """The smallest noise multiplier that keeps everything within (epsilon, delta), from above.

    Args:
        epsilon: budget, for ``already`` and the new mechanism together.
        delta: as in :func:`statement`.
        mechanism: the event that a noise multiplier would make.
        already: events spent before.
        preferred: accountant; pld by default.
        tolerance: relative width of the search; the upper end is returned.

    Returns:
        A noise multiplier that was *checked* to satisfy the budget.

    Raises:
        ConfigError: the budget is already spent, or no reasonable noise satisfies it.
    """
    check_epsilon(epsilon)

    wanted = preferred or Pld()
    # A coarser grid rounds further up: what satisfies it satisfies the finer one, ten times faster.
    search = Pld(1e-3) if isinstance(wanted, Pld) and wanted.interval < 1e-3 else wanted

    def fits(multiplier: float, by: Accountant = search) -> bool:
        return statement([*already, mechanism(multiplier)], delta, by).epsilon <= epsilon

    high = 1.0
    while not fits(high):
        high *= 2.0
        if high > 1e6:
            raise ConfigError(
                f"no noise reaches epsilon {epsilon:g} at delta {delta:g}",
                remedy="raise epsilon, or take fewer steps or a lower sampling rate",
            )
    low = high / 2.0
    while low > 1e-2 and fits(low):
        low, high = low / 2.0, low
    while high - low > tolerance * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    while not fits(high, wanted):
        high *= 1.0 + tolerance
    return high
