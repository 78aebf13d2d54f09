"""Every recorded epsilon of a ledger, computed again from its events; and the rules a ledger must have kept.

1. An entry about spending can be read and is not dated before the one above it.
2. It states every budget that was in force, with the limits of the last budget entry, and no other.
3. Its epsilon and its relation are what all events so far give, with the accountant it names.
4. It does not exceed a limit.

How long ledgers are checked without composing everything again each time: :mod:`secfed.dp.accounting.pld`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from secfed.audit.languages import said
from secfed.dp.accounting.budget import Budget, Spent, Standing, disagrees, standing
from secfed.dp.accounting.events import DistributedDiscreteGaussian, Event, Gaussian, PoissonSampledGaussian
from secfed.dp.accounting.interface import ACCOUNTANTS, Accountant, Pld, Statement, accountant
from secfed.dp.accounting.pld import ExpectingPld
from secfed.dp.accounting.unit import Adjacency, Unit
from secfed.dp.ledger.ledger import BUDGETS, SPENT
from secfed.errors import ConfigError, TranscriptError
from secfed.records.hash_chain import OPENED, Entry

Tick = Callable[[], None]

_COARSEST, _FINEST = 1e-2, 1e-5  # grids of a PLD that a ledger may ask for; finer ones cost memory
_MIXED: Final = "basic composition of "
_MOST_STEPS, _MOST_SHARES, _MOST_POINTS = 10**7, 10**5, 2e7  # far beyond any study; more costs gigabytes


@dataclass
class Recomputer:
    """Recomputes ledgers; one object for all ledgers of an audit."""

    checked: int = 0  # epsilons that were computed again
    _accountants: dict[str, Accountant] = field(default_factory=dict)

    def ledger(
        self, entries: Sequence[Entry], tick: Tick = lambda: None
    ) -> tuple[dict[int, tuple[Standing, ...]], list[tuple[int, str]]]:
        """Recompute one verified ledger.

        Returns:
            By the line of each payment, where every budget in force stood after it; and (line, what is wrong)
            for every entry that breaks a rule.
        """
        standings: dict[int, tuple[Standing, ...]] = {}
        wrong: list[tuple[int, str]] = []
        spent: list[Spent] = []
        in_force: list[Any] = []
        before_s = 0
        for entry in entries:
            line = entry.seq + 1
            time_s = entry.body.get("time_s", before_s)
            if entry.kind != OPENED and (type(time_s) is not int or time_s < before_s):
                wrong.append((line, "it is dated before the entry above it"))
            before_s = time_s if type(time_s) is int else before_s
            if entry.kind == BUDGETS:
                budgets = entry.body.get("budgets")
                in_force = budgets if isinstance(budgets, list) else []
            if entry.kind != SPENT:
                continue
            try:
                spent.append(Spent.from_body(entry.body))
                after = entry.body.get("after")
                recorded = after if isinstance(after, list) else []
                if [_limits(item) for item in recorded] != in_force:
                    wrong.append((line, "it does not state the budgets that were in force"))
                for item in recorded:  # one by one: what was found before one that cannot be read stays
                    wrong += [(line, why) for why in self._disagreements(item, spent)]
                standings[line] = tuple(
                    self.standing(Budget.from_value(item), spent, spent[-1].time_s, _statement(item))
                    for item in recorded
                )
            except (TranscriptError, ConfigError) as error:
                wrong.append((line, error.message))
            except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, MemoryError):
                # Correctly signed, and yet not what a ledger writes.
                wrong.append((line, "its record of what was spent cannot be read"))
            tick()
        return standings, wrong

    def standing(
        self, budget: Budget, spent: Sequence[Spent], now_s: int, like: Mapping[str, Any] | None
    ) -> Standing:
        """Where a budget stands; at infinite epsilon if what is recorded is too extreme to compute with.

        ``like`` is a recorded statement, whose accountant is used; pld without one. ``ConfigError``: events
        that no accountant covers together.
        """
        chosen = _expecting(self.accountants_of(like)[0], like)
        try:
            _check_size(spent, chosen)
            return standing(budget, spent, now_s, chosen, exactly=True)
        except (ValueError, ArithmeticError, MemoryError):
            # Events out of all proportion, correctly signed: nothing that can be computed bounds them.
            relation = Adjacency.REPLACE_SITE if budget.protects is Unit.SITE else Adjacency.REPLACE_RECORD
            return Standing(budget, Statement(math.inf, budget.delta, relation, chosen.name, chosen.version))

    def accountants_of(self, recorded: Mapping[str, Any] | None) -> list[Accountant]:
        """Accountants that may have made a recorded statement, the likeliest first."""
        name = str((recorded or {}).get("accountant", "pld"))
        names = [part for part in name.removeprefix(_MIXED).split(" and ") if part in ACCOUNTANTS] or ["pld"]
        interval = _interval(str((recorded or {}).get("version", "")))
        return [self._accountant(part, interval) for part in names]

    def _accountant(self, name: str, interval: float) -> Accountant:
        which = f"{name} {interval:g}"
        if which not in self._accountants:
            self._accountants[which] = ExpectingPld(interval) if name == "pld" else accountant(name)
        return self._accountants[which]

    def _disagreements(self, recorded: Mapping[str, Any], spent: Sequence[Spent]) -> list[str]:
        self.checked += 1
        statement = _statement(recorded)
        wrong: list[str] = []
        for chosen in self.accountants_of(statement):
            _check_size(spent, chosen)
            wrong = _differences(recorded, statement, spent, _expecting(chosen, statement))
            if not wrong:
                break
        return wrong


def _differences(
    recorded: Mapping[str, Any],
    statement: Mapping[str, Any] | None,
    spent: Sequence[Spent],
    chosen: Accountant,
) -> list[str]:
    if why := disagrees(recorded, spent, chosen):
        return [why]
    if statement is None:
        return []
    budget = Budget.from_value(recorded)
    right = standing(budget, spent, spent[-1].time_s, chosen, exactly=True).spent
    wrong: list[str] = []
    if right is not None and statement.get("adjacency") != str(right.adjacency):
        text = "its epsilon is stated under {stated}, not {right}"
        wrong.append(said(text, stated=statement.get("adjacency"), right=right.adjacency))
    if right is not None and statement.get("accountant") != right.accountant:
        text = "the accountant {accountant} cannot have made its epsilon"
        wrong.append(said(text, accountant=statement.get("accountant")))
    if budget.epsilon is not None and float(statement["epsilon"]) > budget.epsilon:
        wrong.append(said("it was paid although it exceeds {limit}", limit=budget.describe()))
    return wrong


def _expecting(chosen: Accountant, recorded: Mapping[str, Any] | None) -> Accountant:
    """The accountant, told which epsilon was recorded."""
    if not isinstance(chosen, ExpectingPld):
        return chosen
    epsilon = (recorded or {}).get("epsilon")
    return replace(chosen, expected=epsilon if isinstance(epsilon, float) else 0.0)


def _check_size(spent: Sequence[Spent], chosen: Accountant) -> None:
    """Raise OverflowError for events that take minutes and gigabytes, which only a hostile ledger has."""
    interval = chosen.interval if isinstance(chosen, Pld) else Pld().interval
    sizes = [_size(item.event) for item in spent]
    widest, variance = max((size[0] for size in sizes), default=0.0), sum(size[1] for size in sizes)
    if not widest + 20 * math.sqrt(variance) <= _MOST_POINTS * interval:
        raise OverflowError


@lru_cache(maxsize=4096)
def _size(event: Event) -> tuple[float, float]:
    """About how far privacy losses of one run reach, and the variance of all runs: what a grid must hold."""
    if isinstance(event, DistributedDiscreteGaussian) and event.shares > _MOST_SHARES:
        return math.inf, 0.0
    if not isinstance(event, Gaussian | PoissonSampledGaussian) or event.noise_multiplier == 0:
        return 0.0, 0.0  # a formula, or no guarantee at all
    signal = event.adjacency.factor / event.noise_multiplier
    if isinstance(event, Gaussian) or event.sampling_rate == 1:
        return 0.0, event.times * signal * signal
    if event.times > _MOST_STEPS:
        return math.inf, 0.0
    reach, rate = signal * signal / 2 + 20 * signal, event.sampling_rate
    # Never more than a loss of full reach with probability q; for much noise, the chi-square divergence.
    return reach, event.times * min(rate * reach * reach, rate * rate * math.expm1(min(signal * signal, 700)))


def _limits(recorded: object) -> dict[str, Any]:
    """A recorded standing without what was spent: the budget itself."""
    content = recorded if isinstance(recorded, dict) else {}
    return {name: value for name, value in content.items() if name != "spent"}


def _statement(recorded: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = recorded.get("spent")
    return found if isinstance(found, Mapping) else None


def _interval(version: str) -> float:
    """The grid that a pld statement names, if it is one we are ready to compute on."""
    try:
        found = float(version.split("interval ")[1].split(";")[0])
    except (IndexError, ValueError):
        return Pld().interval
    return found if _FINEST <= found <= _COARSEST else Pld().interval


def alone(spent: Sequence[Spent], budget: Budget, chosen: Accountant) -> Standing | None:
    """What some payments cost by themselves; None if no accountant covers them."""
    try:
        chosen = _expecting(chosen, None)
        _check_size(spent, chosen)
        whole = Budget(None, budget.delta, None, budget.protects)
        return standing(whole, spent, spent[-1].time_s, chosen, exactly=True)
    except (ConfigError, ValueError, ArithmeticError, MemoryError):
        return None
