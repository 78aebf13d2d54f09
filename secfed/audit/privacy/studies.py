"""What a report says about studies: settings, what left each site, and what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from secfed.audit.model_check import FoundModel
from secfed.audit.privacy.evidence import Left, ModelFacts, RefusalFact, StudyFacts, as_int, as_text, ranges
from secfed.audit.privacy.findings import (
    AuditedRun,
    Book,
    CheckedFolder,
    VerifiedRecord,
    settings_of,
    sums_of,
)
from secfed.dp.accounting.budget import Budget
from secfed.dp.ledger.ledger import REFUSED, SPENT, UNPROTECTED
from secfed.errors import ConfigError
from secfed.records.transcript import ABORTED
from secfed.records.transcript import REFUSED as MESSAGE_REFUSED


def study_facts(state: CheckedFolder, run: AuditedRun) -> StudyFacts:
    """What the transcripts of one run say."""
    parties = ([run.central] if run.central else []) + [run.sites[site] for site in sorted(run.sites)]
    settings = next((body for one in parties if (body := settings_of(one.entries)) is not None), None)
    stated = settings or {}
    privacy = stated.get("privacy")
    sums = [len(sums_of(one)) for one in parties] or [0]
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
        left=tuple(
            item
            for site in sorted(run.sites)
            for item in _left(state, run, run.sites[site], settings is not None, privacy is not None)
        ),
        models=tuple(_models(run)),
        start=as_text(stated.get("start")),
    )


def _models(run: AuditedRun) -> list[ModelFacts]:
    """Every model that the transcripts name, with those who name it: the one after most sums first."""
    found = []
    kinds: dict[tuple[bytes, int, int, int], list[FoundModel]] = {}
    for model in run.models:
        record = model.record
        kinds.setdefault((record.sha256, record.size_bytes, record.round, record.sums), []).append(model)
    for (sha256, size_bytes, number, sums), same in kinds.items():
        found.append(
            ModelFacts(
                sha256=sha256.hex(),
                size_bytes=size_bytes,
                round=number,
                sums=sums,
                recorded_by=tuple(dict.fromkeys(one.owner for one in same if one.is_own)),
                files=tuple(str(one.path) for one in same if one.is_right),
            )
        )
    return sorted(found, key=lambda model: -model.sums)


def _left(
    state: CheckedFolder, run: AuditedRun, chain: VerifiedRecord, known: bool, private: bool
) -> list[Left]:
    """One site's sums by exchange, held against its ledgers."""
    books = [
        book
        for book in state.books
        if (book.site, book.chain.public_bytes) == (chain.owner, chain.public_bytes)
    ]
    paid, bare = _covered(books, run.study)
    found = []
    by_exchange: dict[tuple[str, tuple[str, ...]], list[tuple[int, int]]] = {}
    for entry, record in sums_of(chain):
        fields = entry.body.get("fields")
        names = tuple(str(name) for name in fields) if isinstance(fields, list) else ()
        place = (record.exchange, names)
        by_exchange.setdefault(place, []).append((record.round, len(record.survivors)))
    for (exchange, names), sums in by_exchange.items():
        rounds = {number for number, _ in sums}
        counts = [count for _, count in sums]
        covered = sum((number, exchange) in paid for number in rounds)
        noted = {name for number in rounds for name in bare.get((number, exchange), ())}
        open_fields = set(names) - noted
        if covered == len(rounds):
            privacy = "paid"
        elif covered:
            privacy = "partly-paid"
        elif noted and not open_fields:
            privacy = "bare"
        elif known and not private:
            privacy = "none"
        else:
            privacy = "unknown"
        found.append(
            Left(
                site=chain.owner,
                exchange=exchange,
                fields=names,
                sums=len(sums),
                rounds=ranges(rounds),
                cohort=(min(counts), max(counts)),
                paid=covered,
                bare=tuple(name for name in names if name in noted),
                privacy=privacy,
            )
        )
    return found


def _covered(
    books: Sequence[Book], study: str
) -> tuple[set[tuple[object, object]], dict[tuple[object, object], tuple[str, ...]]]:
    """(round, exchange) that were paid for, and the fields that were noted as leaving without noise."""
    paid: set[tuple[object, object]] = set()
    bare: dict[tuple[object, object], tuple[str, ...]] = {}
    for book in books:
        for entry in book.chain.entries:
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


def refusals_of(state: CheckedFolder) -> list[RefusalFact]:
    """Everything that was refused or given up, ledgers first."""
    found = []
    for book in state.books:
        for entry in book.chain.entries:
            if entry.kind == REFUSED:
                found.append(_budget_refusal(book, entry.seq + 1, entry.body))
    for run in state.runs:
        for chain in ([run.central] if run.central else []) + list(run.sites.values()):
            for entry in chain.entries:
                if entry.kind not in (MESSAGE_REFUSED, ABORTED):
                    continue
                body = entry.body
                found.append(
                    RefusalFact(
                        what="round" if entry.kind == ABORTED else "message",
                        file=str(chain.source.path),
                        line=entry.seq + 1,
                        site=str(body.get("site") or ("" if entry.kind == ABORTED else chain.owner)),
                        study=run.study,
                        round=as_int(body.get("round")),
                        stage=as_text(body.get("stage")) or "",
                        reason=as_text(body.get("reason")) or "",
                        time_s=None,
                    )
                )
    return found


def _budget_refusal(book: Book, line: int, body: Mapping[str, Any]) -> RefusalFact:
    try:
        limits = [Budget.from_value(value).describe() for value in body.get("budgets", [])]
    except ConfigError:
        limits = []
    return RefusalFact(
        what="budget",
        file=str(book.chain.source.path),
        line=line,
        site=book.site,
        study=str(body.get("study")),
        round=as_int(body.get("round")),
        stage=f"{body.get('exchange')} on data set {book.dataset!r}",
        reason=f"it would have exceeded {' and '.join(limits) or 'a budget'}",
        time_s=as_int(body.get("time_s")),
    )
