"""What a report says about studies: settings, what left each site, and what was refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from secfed.audit.languages import Said, said
from secfed.audit.model_check import FoundModel
from secfed.audit.privacy.evidence import Left, ModelFacts, RefusalFact, StudyFacts, as_int, as_text, ranges
from secfed.audit.privacy.findings import AuditedRun, CheckedFolder, VerifiedRecord
from secfed.audit.privacy.study_tables import source_and_columns, withheld
from secfed.dp.accounting.budget import Budget
from secfed.dp.ledger.ledger import REFUSED, SPENT, UNPROTECTED
from secfed.errors import ConfigError
from secfed.records.transcript import ABORTED
from secfed.records.transcript import REFUSED as MESSAGE_REFUSED

_Place = tuple[object, object]  # round, exchange
_A_BUDGET = said("a budget")


def study_facts(state: CheckedFolder, run: AuditedRun) -> StudyFacts:
    """What the transcripts of one run say."""
    sites = [run.sites[site] for site in sorted(run.sites)]
    parties = ([run.central] if run.central else []) + sites
    settings = next((body for one in parties if (body := one.settings) is not None), None)
    stated = settings or {}
    privacy = stated.get("privacy")
    without_paying = "none" if settings is not None and privacy is None else "unknown"
    sums = [len(list(one.sums)) for one in parties] or [0]
    source, columns = source_and_columns(run)
    return StudyFacts(
        name=run.study,
        settings_recorded=settings is not None,
        algorithm=as_text(stated.get("algorithm")),
        protection=as_text(stated.get("protection")),
        rounds=as_int(stated.get("rounds")),
        sites=as_int(stated.get("sites")),
        privacy=_scalars(privacy) if isinstance(privacy, Mapping) else None,
        simulated=stated.get("simulated") is True,
        roster_digest=run.roster.digest.hex(),
        roster_sites=run.roster.sites,
        parties=tuple(one.owner for one in parties),
        sums=sums[0] if run.central else max(sums),
        left=tuple(item for chain in sites for item in _left(state, run.study, chain, without_paying)),
        models=tuple(_models(run)),
        start=as_text(stated.get("start")),
        source=source,
        columns=columns,
        withheld=withheld(run),
    )


def _models(run: AuditedRun) -> list[ModelFacts]:
    """Every model that the transcripts name, with those who name it: the one after most sums first."""
    kinds: dict[tuple[bytes, int, int, int], list[FoundModel]] = {}
    for model in run.models:
        record = model.record
        kinds.setdefault((record.sha256, record.size_bytes, record.round, record.sums), []).append(model)
    facts = [
        ModelFacts(
            sha256=sha256.hex(),
            size_bytes=size_bytes,
            round=number,
            sums=sums,
            recorded_by=tuple(dict.fromkeys(one.owner for one in same if one.is_own)),
            files=tuple(str(one.path) for one in same if one.is_right),
        )
        for (sha256, size_bytes, number, sums), same in kinds.items()
    ]
    return sorted(facts, key=lambda model: -model.sums)


def _left(state: CheckedFolder, study: str, chain: VerifiedRecord, without_paying: str) -> Iterator[Left]:
    """One site's sums by exchange, held against its ledgers."""
    paid, bare = _covered(state, study, chain)
    by_exchange: dict[tuple[str, tuple[str, ...]], list[tuple[int, int]]] = {}
    for entry, record in chain.sums:
        fields = entry.body.get("fields")
        names = tuple(str(name) for name in fields) if isinstance(fields, list) else ()
        place = (record.exchange, names)
        by_exchange.setdefault(place, []).append((record.round, len(record.survivors)))
    for (exchange, names), sums in by_exchange.items():
        rounds = {number for number, _ in sums}
        cohorts = [count for _, count in sums]
        covered = sum((number, exchange) in paid for number in rounds)
        noted = {name for number in rounds for name in bare.get((number, exchange), ())}
        privacy = without_paying
        if covered:
            privacy = "paid" if covered == len(rounds) else "partly-paid"
        elif noted and noted >= set(names):
            privacy = "bare"
        yield Left(
            site=chain.owner,
            exchange=exchange,
            fields=names,
            sums=len(sums),
            rounds=ranges(rounds),
            cohort=(min(cohorts), max(cohorts)),
            paid=covered,
            bare=tuple(name for name in names if name in noted),
            privacy=privacy,
        )


def _covered(
    state: CheckedFolder, study: str, chain: VerifiedRecord
) -> tuple[set[_Place], dict[_Place, tuple[str, ...]]]:
    """What a site's ledgers paid for, and the fields that they noted as leaving without noise."""
    paid: set[_Place] = set()
    bare: dict[_Place, tuple[str, ...]] = {}
    key = (chain.owner, chain.public_bytes)
    ledgers = [one for one in state.ledgers if (one.owner, one.public_bytes) == key]
    for entry in (entry for ledger in ledgers for entry in ledger.entries):
        place = (entry.body.get("round"), entry.body.get("exchange"))
        if entry.body.get("study") == study and entry.kind == SPENT:
            paid.add(place)
        elif entry.body.get("study") == study and entry.kind == UNPROTECTED:
            bare[place] = tuple(str(name) for name in entry.body.get("fields", []))
    return paid, bare


def _scalars(table: Mapping[str, Any]) -> dict[str, Any]:
    """The study's own settings; anything that is not a single value does not belong there."""
    return {
        str(name): value
        for name, value in table.items()
        if value is None or isinstance(value, bool | int | float | str)
    }


def refusals_of(state: CheckedFolder) -> Iterator[RefusalFact]:
    """Everything that was refused or given up, ledgers first."""
    for ledger in state.ledgers:
        for entry in ledger.entries:
            if entry.kind == REFUSED:
                yield _budget_refusal(ledger, entry.seq + 1, entry.body)
    for run in state.runs:
        for chain in run.parties:
            for entry in chain.entries:
                if entry.kind not in (MESSAGE_REFUSED, ABORTED):
                    continue
                is_abort, body = entry.kind == ABORTED, entry.body
                yield RefusalFact(
                    what="round" if is_abort else "message",
                    file=str(chain.path),
                    line=entry.seq + 1,
                    site=str(body.get("site") or ("" if is_abort else chain.owner)),
                    study=run.study,
                    round=as_int(body.get("round")),
                    stage=as_text(body.get("stage")) or "",
                    reason=as_text(body.get("reason")) or "",
                    time_s=None,
                )


def _budget_refusal(ledger: VerifiedRecord, line: int, body: Mapping[str, Any]) -> RefusalFact:
    try:
        limits = [_limit(Budget.from_value(value)) for value in body.get("budgets", [])]
    except ConfigError:
        limits = []
    together = reduce(
        lambda one, other: said("{one} and {other}", one=one, other=other), limits or [_A_BUDGET]
    )
    return RefusalFact(
        what="budget",
        file=str(ledger.path),
        line=line,
        site=ledger.owner,
        study=str(body.get("study")),
        round=as_int(body.get("round")),
        stage=said(
            "{exchange} on data set {data_set!r}", exchange=body.get("exchange"), data_set=ledger.dataset
        ),
        reason=said("it would have exceeded {limits}", limits=together),
        time_s=as_int(body.get("time_s")),
    )


def _limit(budget: Budget) -> Said:
    """As :meth:`Budget.describe`, to be said in another language."""
    days, limit = budget.period_days, budget.epsilon
    return said(
        "the {protects} budget of {limit} at delta {delta:g} {span}",
        protects=said(str(budget.protects)),
        limit=said("no limit") if limit is None else said("epsilon {limit:g}", limit=limit),
        delta=budget.delta,
        span=said("in all") if days is None else said("per {days} days", days=days),
    )
