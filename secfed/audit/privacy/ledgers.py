"""What a report says about ledgers: budgets, payments, and fields that left without noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from secfed.audit.languages import said
from secfed.audit.privacy.evidence import Amount, Bare, LedgerFacts, Payment, StudySpend, as_int, ranges
from secfed.audit.privacy.findings import CheckedFolder, VerifiedRecord
from secfed.audit.privacy.recompute import alone
from secfed.dp.accounting import events
from secfed.dp.accounting.budget import Budget, Spent, Standing
from secfed.dp.accounting.interface import Accountant
from secfed.dp.accounting.trade_off import found_at, guessed_at, most_found, most_guessed
from secfed.dp.ledger.ledger import BUDGETS, RECOVERED, SPENT, UNPROTECTED
from secfed.errors import ConfigError, TranscriptError
from secfed.records.hash_chain import Entry

FALSE_ALARMS: Final = 0.01


def ledger_facts(state: CheckedFolder, ledger: VerifiedRecord, now_s: int) -> LedgerFacts:
    """What one verified ledger says, its epsilons computed from its events."""
    entries = ledger.entries
    paid = _readable(ledger)
    spent = [item for _, item in paid]
    budgets = [entry.body for entry in entries if entry.kind == BUDGETS]
    limits = _limits(budgets)
    last: list[Mapping[str, Any]] = list(paid[-1][0].body.get("after", [])) if paid else []
    recorded = [one.get("spent") for one in last] + [None] * len(limits)
    standings = [
        state.recomputer.standing(limit, spent, now_s, like)
        for limit, like in zip(limits, recorded, strict=False)
    ]
    payments = _payments(state.standings[ledger.path], paid)
    times = [entry.body["time_s"] for entry in entries if type(entry.body.get("time_s")) is int]
    chosen = state.recomputer.accountants_of(recorded[0] if recorded else None)[0]
    return LedgerFacts(
        site=ledger.owner,
        dataset=ledger.dataset,
        file=str(ledger.path),
        entries=len(entries),
        head=entries[-1].hash.hex(),
        last_s=times[-1] if times else None,
        recoveries=sum(entry.kind == RECOVERED for entry in entries),
        limit_changes=max(0, len(budgets) - 1),
        amounts=tuple(
            _last_amount(state, one, spent, now_s, like)
            for one, like in zip(standings, recorded, strict=False)
        ),
        studies=tuple(_spends(payments, spent, limits, chosen)),
        payments=tuple(payments),
    )


def _last_amount(
    state: CheckedFolder, one: Standing, spent: Sequence[Spent], now_s: int, like: Mapping[str, Any] | None
) -> Amount:
    """Where a budget stands at the end, and what all that was ever paid means."""
    amount, budget, whole = _amount(one, spent), one.budget, one
    if budget.period_days is not None:
        unlimited = replace(budget, epsilon=None, period_days=None)
        whole = state.recomputer.standing(unlimited, spent, now_s, like)
        amount = replace(amount, ever=_amount(whole, spent))
    return replace(amount, found=_found(whole), guessed=_guessed(whole))


def _limits(budgets: Sequence[Mapping[str, Any]]) -> list[Budget]:
    """The budgets in force; none if they cannot be read, which is then a problem of its own."""
    try:
        return [Budget.from_value(value) for value in budgets[-1].get("budgets", [])] if budgets else []
    except ConfigError:
        return []


def _readable(ledger: VerifiedRecord) -> list[tuple[Entry, Spent]]:
    """The payments up to the first that cannot be read, which is already a problem."""
    paid = []
    for entry in ledger.entries:
        if entry.kind == SPENT:
            try:
                paid.append((entry, Spent.from_body(entry.body)))
            except TranscriptError:
                break
    return paid


def _payments(
    standings: Mapping[int, Sequence[Standing]], paid: Sequence[tuple[Entry, Spent]]
) -> list[Payment]:
    spent = [item for _, item in paid]
    return [
        Payment(
            line=entry.seq + 1,
            study=str(entry.body.get("study")),
            round=as_int(entry.body.get("round")) or 0,
            exchange=str(entry.body.get("exchange")),
            time_s=item.time_s,
            mechanism=describe(item.event),
            event=events.to_value(item.event),
            record_private=item.record_private,
            after=tuple(_amount(one, spent[:count]) for one in standings.get(entry.seq + 1, ())),
        )
        for count, (entry, item) in enumerate(paid, start=1)
    ]


def _spends(
    payments: Sequence[Payment], spent: Sequence[Spent], limits: Sequence[Budget], chosen: Accountant
) -> Iterator[StudySpend]:
    """Per study, in the order of their first payment."""
    kinds = {(limit.delta, limit.protects): limit for limit in limits}
    for study in dict.fromkeys(payment.study for payment in payments):
        mine = [payment for payment in payments if payment.study == study]
        items = [item for item, payment in zip(spent, payments, strict=True) if payment.study == study]
        costs = [alone(items, limit, chosen) for limit in kinds.values()]
        yield StudySpend(
            study=study,
            rounds=ranges({payment.round for payment in mine}),
            payments=len(mine),
            first_s=mine[0].time_s,
            last_s=mine[-1].time_s,
            mechanisms=tuple(dict.fromkeys(payment.mechanism for payment in mine)),
            alone=tuple(_amount(cost, items) for cost in costs if cost),
        )


def bare_of(ledger: VerifiedRecord) -> list[Bare]:
    """Fields that left without noise, put together over rounds."""
    rounds_of: dict[tuple[str, str, tuple[str, ...], int | None], list[int]] = {}
    for entry in ledger.entries:
        if entry.kind == UNPROTECTED:
            names = tuple(str(name) for name in entry.body.get("fields", []))
            values = as_int(entry.body.get("values"))
            key = (str(entry.body.get("study")), str(entry.body.get("exchange")), names, values)
            rounds_of.setdefault(key, []).append(as_int(entry.body.get("round")) or 0)
    return [
        Bare(ledger.owner, ledger.dataset, study, exchange, names, ranges(set(rounds)), len(rounds), values)
        for (study, exchange, names, values), rounds in rounds_of.items()
    ]


def describe(event: events.Event) -> str:
    """An event for people who know the field, complete enough to recompute it."""
    times = f", {event.times}\N{MULTIPLICATION SIGN}" if event.times > 1 else ""
    match event:
        case events.PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise, steps=steps):
            text = "DP-SGD: {steps} steps, Poisson rate {rate:.4g}, noise multiplier {noise:.4g}"
            return said(text, steps=steps, rate=rate, noise=noise)
        case events.Gaussian(noise_multiplier=noise):
            return said("Gaussian, noise multiplier {noise:.4g}{times}", noise=noise, times=times)
        case events.Skellam(l2=norm, variance=variance):
            text = "Skellam in the sum, noise {noise:.4g} of the norm{times}"
            if isinstance(event, events.UnitSkellam):
                text = "Skellam in the sum, noise {noise:.4g} of the norm of one unit{times}"
            return said(text, noise=variance**0.5 / norm if norm else 0, times=times)
        case events.DistributedDiscreteGaussian(shares=shares, sigma=sigma):
            text = "discrete Gaussian in the sum, {shares} honest shares of scale {sigma:.4g}{times}"
            if isinstance(event, events.UnitDiscreteGaussian):
                text = (
                    "discrete Gaussian in the sum for one unit, {shares} honest shares of scale "
                    "{sigma:.4g}{times}"
                )
            return said(text, shares=shares, sigma=sigma, times=times)
        case _:
            return f"{event.name}{times}"


def _found(standing: Standing) -> float | None:
    """From the whole of what was spent; from epsilon and delta alone where no accountant covers it all."""
    if standing.spent is None:
        return None
    at_one_point = found_at(standing.epsilon, standing.budget.delta, FALSE_ALARMS)
    try:
        return min(at_one_point, most_found(standing.events, FALSE_ALARMS))
    except (ConfigError, ValueError, ArithmeticError, MemoryError):  # too extreme to compute with
        return at_one_point


def _guessed(standing: Standing) -> float | None:
    """As :func:`_found`."""
    if standing.spent is None:
        return None
    at_one_point = guessed_at(standing.epsilon, standing.budget.delta)
    try:
        return min(at_one_point, most_guessed(standing.events))
    except (ConfigError, ValueError, ArithmeticError, MemoryError):  # too extreme to compute with
        return at_one_point


def _amount(standing: Standing, payments: Sequence[Spent]) -> Amount:
    """Where a budget stands after some payments, and on which noise that number relies."""
    budget, spent = standing.budget, standing.spent
    limit = budget.epsilon
    relies_on = "nothing"
    if spent is not None:
        # A record budget may rest on noise in the sum too, restated; then the weaker footing counts.
        in_sum = any(
            isinstance(item.event, events.IN_SUM)
            for item in payments
            if budget.protects == "site" or not item.record_private
        )
        relies_on = "sum-noise" if in_sum else "local-noise"
    return Amount(
        protects=str(budget.protects),
        limit=limit,
        spent=standing.epsilon,
        left=None if limit is None else max(0.0, limit - standing.epsilon),
        delta=budget.delta,
        period_days=budget.period_days,
        adjacency=None if spent is None else str(spent.adjacency),
        accountant=None if spent is None else spent.accountant,
        version=None if spent is None else spent.version,
        relies_on=relies_on,
    )
