"""Budgets: what a data set may spend, and where it stands.

A budget protects records or sites. Noise in the secure sum protects sites; its event also costs a record
budget, restated as the replacement of one record, unless everything that was summed had already been
made private per record and paid for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from secfed.dp.accounting.events import Event, from_value
from secfed.dp.accounting.interface import Accountant, Statement, statement
from secfed.dp.accounting.unit import Adjacency, Unit
from secfed.errors import ConfigError, TranscriptError

_DAY_S: Final = 86_400


@dataclass(frozen=True)
class Budget:
    """A limit of one data set; ConfigError for values out of range."""

    epsilon: float | None  # None keeps account without a limit
    delta: float
    period_days: int | None = None  # counts what was spent in this many days up to now; None, everything ever
    protects: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        if self.epsilon is not None and not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"budget epsilon = {self.epsilon} is not a positive number")
        if not 0 < self.delta < 1:
            raise ConfigError(f"budget delta = {self.delta} is not between 0 and 1")
        if self.period_days is not None and self.period_days < 1:
            raise ConfigError(f"budget period of {self.period_days} days", remedy="use at least 1 day")
        if self.protects is Unit.GROUP:
            message = "a budget protects records or sites"
            raise ConfigError(message, remedy='use "record": groups protect records')

    def describe(self) -> str:
        """For messages to people."""
        span = "in all" if self.period_days is None else f"per {self.period_days} days"
        limit = "no limit" if self.epsilon is None else f"epsilon {self.epsilon:g}"
        return f"the {self.protects} budget of {limit} at delta {self.delta:g} {span}"

    def to_value(self) -> dict[str, Any]:
        """Plain JSON values."""
        limit = None if self.epsilon is None else float(self.epsilon)
        span = {"period_days": self.period_days, "protects": str(self.protects)}
        return {"epsilon": limit, "delta": float(self.delta), **span}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Budget:
        """Read what :meth:`to_value` wrote; ConfigError for anything else."""
        try:
            return cls(value["epsilon"], value["delta"], value["period_days"], Unit(value["protects"]))
        except (KeyError, TypeError, ValueError):
            raise ConfigError("a recorded budget cannot be read") from None


@dataclass(frozen=True)
class Spent:
    """One paid event."""

    event: Event
    time_s: int  # since 1970
    record_private: bool = False  # it costs records nothing; see `Ledger.spend`

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Spent:
        """Read the body of a ledger entry; TranscriptError if it is incomplete."""
        time_s, covered = body.get("time_s"), body.get("record_private")
        if type(time_s) is not int or not isinstance(covered, bool):
            raise TranscriptError("a ledger entry about spending is incomplete")
        try:
            return cls(from_value(body.get("event")), time_s, covered)
        except ConfigError as error:
            raise TranscriptError(f"a ledger entry about spending: {error.message}") from None


@dataclass(frozen=True)
class Standing:
    """Where a budget stands: the guarantee of everything it counts, None if it counts nothing yet."""

    budget: Budget
    spent: Statement | None
    events: tuple[Event, ...] = ()  # what it counts

    @property
    def epsilon(self) -> float:
        """Spent so far."""
        return 0.0 if self.spent is None else self.spent.epsilon

    @property
    def exceeded(self) -> bool:
        """Whether this is more than the budget allows; so are NaN and no guarantee at all."""
        limit = math.inf if self.budget.epsilon is None else self.budget.epsilon
        return not self.epsilon <= limit or math.isinf(self.epsilon)

    def to_value(self) -> dict[str, Any]:
        """Plain JSON values: the budget, and the statement field by field."""
        if self.spent is None:
            return {**self.budget.to_value(), "spent": None}
        found = self.spent
        named = {"adjacency": str(found.adjacency), "accountant": found.accountant, "version": found.version}
        return {**self.budget.to_value(), "spent": {"epsilon": found.epsilon, **named}}


def standing(
    budget: Budget, spent: Sequence[Spent], now_s: int, accountant: Accountant, *, exactly: bool = False
) -> Standing:
    """Compose what a budget counts: one guarantee for all of it, never a sum of epsilons.

    ``now_s`` is for budgets with a period; ``exactly`` is that of
    :func:`secfed.dp.accounting.interface.statement`.
    """
    start_s = -math.inf if budget.period_days is None else now_s - budget.period_days * _DAY_S
    counted = (item.event for item in spent if item.time_s > start_s and _counts(budget, item))
    events = [_as_protected(budget, event) for event in counted]
    found = statement(events, budget.delta, accountant, exactly=exactly) if events else None
    return Standing(budget, found, tuple(events))


def _as_protected(budget: Budget, event: Event) -> Event:
    """Noise in the sum, in a record's budget: replacing a record replaces the site's contribution."""
    if budget.protects is Unit.RECORD and event.adjacency.protects is Unit.SITE:
        return event.restated(Adjacency.REPLACE_RECORD)
    return event


def _counts(budget: Budget, item: Spent) -> bool:
    protects = item.event.adjacency.protects
    if budget.protects is Unit.SITE:
        return protects is Unit.SITE
    return protects is Unit.RECORD or not item.record_private


def disagrees(recorded: Mapping[str, Any], spent: Sequence[Spent], accountant: Accountant) -> str | None:
    """Recompute one recorded standing from events alone; what is wrong, or None.

    ``spent`` is everything that was paid up to and including its entry, ``accountant`` the one that the
    record names: a ledger may state the smaller of two bounds, either is one, so a record is true if the
    accountant it names says so. Another version of that accountant may differ by 1 %.
    """
    found = standing(Budget.from_value(recorded), spent, spent[-1].time_s, accountant, exactly=True)
    written = recorded.get("spent")
    if not isinstance(written, Mapping) or found.spent is None:
        agrees = written is None and found.spent is None
        return None if agrees else "a recorded epsilon is missing or has no event"
    tolerance = 1e-9 if written.get("version") == found.spent.version else 0.01
    epsilon = float(written.get("epsilon", math.nan))
    if abs(found.epsilon - epsilon) <= tolerance * max(1.0, found.epsilon):
        return None
    return f"recorded epsilon {epsilon:g}, but the events give {found.epsilon:g}"
