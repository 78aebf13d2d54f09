"""Decision logs of an audit: verified, copies put together, and what they say."""

from __future__ import annotations

from typing import Final

from secfed.audit.privacy.evidence import DecisionFact, DecisionLogFacts, as_int, as_text
from secfed.audit.privacy.findings import Believed, CheckedFolder, VerifiedRecord
from secfed.audit.privacy.ledger_checks import longest_of, site_chain
from secfed.records.clock import LAST_S
from secfed.records.decision_log import DECISIONS
from secfed.records.hash_chain import OPENED, Entry

_TIMES: Final = ("time_s", "decided_s")
_NUMBERS: Final = ("number", "round", "attempt", "count", "entries")
_TEXTS: Final = ("digest", "name", "text", "exchange", "policy", "roster", "of")


def check_decisions(state: CheckedFolder, believed: Believed) -> None:
    """Verify every decision log, and keep the longest copy of each."""
    histories: dict[tuple[str, bytes], list[VerifiedRecord]] = {}
    for source in state.found.decisions:
        chain = site_chain(state, believed, source, DECISIONS, _has_form)
        if chain.entries:
            histories.setdefault((chain.owner, chain.public_bytes), []).append(chain)
    for chains in histories.values():
        longest, _ = longest_of(state, chains, "what one says was decided, the other does not say")
        state.decisions.append(longest)
    state.decisions.sort(key=lambda chain: chain.owner)


def decision_log_facts(chain: VerifiedRecord) -> DecisionLogFacts:
    """What a verified log says."""
    said = tuple(_fact(entry) for entry in chain.entries if entry.kind != OPENED)
    return DecisionLogFacts(chain.owner, str(chain.source.path), chain.entries[-1].hash.hex(), said)


def _fact(entry: Entry) -> DecisionFact:
    """Named keys only: what does not belong into a decision log does not get into a report either."""
    body = entry.body
    digest, name = as_text(body.get("digest")) or "", as_text(body.get("name")) or ""
    with_model = body.get("with_model")
    return DecisionFact(
        line=entry.seq + 1,
        time_s=as_int(body.get("time_s")) or 0,
        kind=entry.kind,
        study="-".join(part for part in (name, digest) if part),
        decided_s=as_int(body.get("decided_s")),
        number=as_int(body.get("number")),
        text=as_text(body.get("text")) or "",
        round=as_int(body.get("round")),
        exchange=as_text(body.get("exchange")) or "",
        attempt=as_int(body.get("attempt")),
        count=as_int(body.get("count")),
        keys=tuple(str(key) for key in body.get("keys", ())),
        policy=as_text(body.get("policy")) or "",
        roster=as_text(body.get("roster")) or "",
        with_model=with_model if isinstance(with_model, bool) else None,
        of=as_text(body.get("of")) or "",
        entries=as_int(body.get("entries")),
    )


def _has_form(entry: Entry) -> bool:
    """Whether an entry can be shown."""
    body = entry.body
    return (
        all(type(body.get(key, 0)) is int and 0 <= body.get(key, 0) <= LAST_S for key in _TIMES)
        and all(type(body.get(key, 0)) is int for key in _NUMBERS)
        and all(isinstance(body.get(key, ""), str) for key in _TEXTS)
        and isinstance(body.get("keys", []), list)
    )
