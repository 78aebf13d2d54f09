"""Decision logs of an audit: verified, copies put together, and what they say."""

from __future__ import annotations

from typing import Any, Final

from secfed.audit.privacy.evidence import DecisionFact, DecisionLogFacts
from secfed.audit.privacy.findings import Believed, CheckedFolder, VerifiedRecord
from secfed.audit.privacy.site_files import longest_copies
from secfed.records.clock import LAST_S
from secfed.records.decision_log import DECISIONS
from secfed.records.hash_chain import OPENED, Entry

_TIMES: Final = ("time_s", "decided_s")
_NUMBERS: Final = ("number", "round", "attempt", "count", "entries")
_NAMES: Final = ("digest", "name")  # of the study
_TEXTS: Final = ("text", "exchange", "policy", "roster", "of")


def check_decisions(state: CheckedFolder, believed: Believed) -> None:
    """Verify every decision log, and keep the longest copy of each."""
    otherwise = "what one says was decided, the other does not say"
    logs = longest_copies(state, believed, state.found.decisions, DECISIONS, _has_form, otherwise)
    state.decisions = sorted(logs, key=lambda chain: chain.owner)


def _has_form(entry: Entry) -> bool:
    """Whether an entry can be shown."""
    body = entry.body
    return (
        all(type(body.get(key, 0)) is int and 0 <= body.get(key, 0) <= LAST_S for key in _TIMES)
        and all(type(body.get(key, 0)) is int for key in _NUMBERS)
        and all(isinstance(body.get(key, ""), str) for key in (*_NAMES, *_TEXTS))
        and isinstance(body.get("keys", []), list)
    )


def decision_log_facts(chain: VerifiedRecord) -> DecisionLogFacts:
    """What a verified log says."""
    decisions = tuple(_fact(entry) for entry in chain.entries if entry.kind != OPENED)
    return DecisionLogFacts(chain.owner, str(chain.path), chain.entries[-1].hash.hex(), decisions)


def _fact(entry: Entry) -> DecisionFact:
    """Named keys only, whose types :func:`_has_form` checked; others do not get into a report."""
    body = entry.body
    values: dict[str, Any] = {key: body[key] for key in (*_TIMES, *_NUMBERS, *_TEXTS) if key in body}
    values.setdefault("time_s", 0)
    with_model = body.get("with_model")
    return DecisionFact(
        line=entry.seq + 1,
        kind=entry.kind,
        study="-".join(part for part in (body.get("name"), body.get("digest")) if part),
        keys=tuple(str(key) for key in body.get("keys", ())),
        with_model=with_model if isinstance(with_model, bool) else None,
        **values,
    )
