"""Files that one site writes, ledgers and decision logs: verified, and held against transcripts.

A report on all must not end at what one site signed, so the form of every entry is checked, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from secfed.audit.languages import said
from secfed.audit.privacy.evidence import DecisionFact, DecisionLogFacts
from secfed.audit.privacy.files import Source
from secfed.audit.privacy.findings import CheckedFolder, VerifiedRecord
from secfed.dp.ledger.heads import Recorded, lacking, recorded_in
from secfed.dp.ledger.ledger import LEDGER
from secfed.records.clock import LAST_S
from secfed.records.decision_log import DECISIONS
from secfed.records.hash_chain import OPENED, BrokenChain, ChainType, Entry, verify_chain

_TIMES: Final = ("time_s", "decided_s")
_NUMBERS: Final = ("number", "round", "attempt", "count", "entries")
_NAMES: Final = ("digest", "name")  # of the study
_TEXTS: Final = ("text", "exchange", "policy", "roster", "of", "by")


def _is_of_ledger(body: Mapping[str, Any]) -> bool:
    time_s, after = body.get("time_s", 0), body.get("after", [])
    return (
        (type(time_s) is not int or 0 <= time_s <= LAST_S)
        and all(isinstance(body.get(name, ""), str) for name in ("study", "exchange", "dataset"))
        and type(body.get("round", 0)) is int
        and isinstance(body.get("fields", []), list)
        and type(body.get("values", 0)) is int
        and _are_tables(body.get("budgets", []))
        and _are_tables(after)
        and all(isinstance(one.get("spent", {}), Mapping | None) for one in after)
    )


def _are_tables(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(one, Mapping) for one in value)


def _is_of_decisions(body: Mapping[str, Any]) -> bool:
    return (
        all(type(body.get(key, 0)) is int and 0 <= body.get(key, 0) <= LAST_S for key in _TIMES)
        and all(type(body.get(key, 0)) is int for key in _NUMBERS)
        and all(isinstance(body.get(key, ""), str) for key in (*_NAMES, *_TEXTS))
        and isinstance(body.get("keys", []), list)
        and isinstance(body.get("subjects", []), list)
        and all(isinstance(one, str) for one in body.get("subjects", []))
    )


def check_heads(state: CheckedFolder) -> None:
    """Look for every ledger state that a site's transcript recorded."""
    ledgers = {(one.owner, one.public_bytes, one.dataset): one for one in state.ledgers}
    known = {key: {entry.hash.hex() for entry in chain.entries} for key, chain in ledgers.items()}
    for run in state.runs:
        for site, chain in run.sites.items():
            absent: dict[str, None] = {}  # in order
            missing: dict[Path, list[Recorded]] = {}
            for recorded in recorded_in(chain.entries, chain.path):
                key = (site, chain.public_bytes, recorded.dataset)
                if key not in ledgers:
                    absent[recorded.dataset] = None
                elif recorded.head not in known[key]:
                    missing.setdefault(ledgers[key].path, []).append(recorded)
            for path, states in missing.items():
                state.problem(path, None, lacking(states))
            for dataset in absent:
                text = (
                    "{site}, study {study!r}: the ledger of data set {data_set!r} is not among the verified "
                    "files, so nothing here says what was spent"
                )
                state.notes.append(said(text, site=site, study=run.study, data_set=dataset))


# Of each kind: whether an entry with this body can be shown, and what it means that copies disagree.
_KINDS: Final[dict[ChainType, tuple[Callable[[Mapping[str, Any]], bool], str]]] = {
    LEDGER: (
        _is_of_ledger,
        "it and {file} are two histories of one ledger: what one spent, the other does not count",
    ),
    DECISIONS: (
        _is_of_decisions,
        "it and {file} are two histories of one decision log: what one says was decided, the "
        "other does not say",
    ),
}


def longest_copies(state: CheckedFolder, kind: ChainType) -> list[VerifiedRecord]:
    """Verify files of one kind, and choose the longest of the copies of one site's ledger or log."""
    histories: dict[tuple[str, bytes, str], list[VerifiedRecord]] = {}
    for source in state.found.of(kind):
        chain = _verify(state, source, kind)
        if chain.entries:
            histories.setdefault((chain.owner, chain.public_bytes, chain.dataset), []).append(chain)
    return [_longest(state, chains, kind) for chains in histories.values()]


def _longest(state: CheckedFolder, chains: Sequence[VerifiedRecord], kind: ChainType) -> VerifiedRecord:
    longest = max(chains, key=lambda chain: len(chain.entries))
    for chain in chains:
        count = len(chain.entries)
        if longest.entries[count - 1].hash != chain.entries[-1].hash:
            state.problem(chain.path, None, said(_KINDS[kind][1], file=longest.path))
        elif count < len(longest.entries):
            text = "{older} is an older copy of {newer}, which is used instead"
            state.notes.append(said(text, older=chain.path, newer=longest.path))
    return longest


def _verify(state: CheckedFolder, source: Source, kind: ChainType) -> VerifiedRecord:
    """Try the keys that the believed rosters have for the site that the file claims to be of."""
    claimed = source.named_site or str(source.claims.get("owner", ""))
    near = state.rosters_for(source)
    rosters = [roster for roster in near if claimed in roster.sites]
    if not near:
        state.unknown_roster(source.path)
    elif not claimed:
        state.problem(source.path, 1, "the first line names no owner")
    elif not rosters:
        state.problem(source.path, None, "the roster has no such site")
    first: BrokenChain | None = None
    for roster in rosters:
        public = roster.public(claimed)
        try:
            entries = verify_chain(source.lines, public, kind, owner=claimed)
        except BrokenChain as error:
            first = first or error
            continue
        state.used[roster] = None
        has_form = _KINDS[kind][0]
        odd = next((entry for entry in entries if not has_form(entry.body)), None)
        if odd is None:
            return state.record(source, claimed, public, entries)
        text = "correctly signed, but not what a ledger writes"
        if kind is DECISIONS:
            text = "correctly signed, but not what a decision log writes"
        state.problem(source.path, odd.seq + 1, text)
        return state.record(source, claimed)
    if first is not None:
        state.problem(source.path, first.line, first.why)
    return state.record(source, claimed)


def decision_log_facts(chain: VerifiedRecord) -> DecisionLogFacts:
    """What a verified log says."""
    decisions = tuple(_fact(entry) for entry in chain.entries if entry.kind != OPENED)
    return DecisionLogFacts(chain.owner, str(chain.path), chain.entries[-1].hash.hex(), decisions)


def _fact(entry: Entry) -> DecisionFact:
    """Named keys only, whose types :func:`_is_of_decisions` checked; others do not get into a report."""
    body = entry.body
    values: dict[str, Any] = {key: body[key] for key in (*_TIMES, *_NUMBERS, *_TEXTS) if key in body}
    values.setdefault("time_s", 0)
    with_model = body.get("with_model")
    return DecisionFact(
        line=entry.seq + 1,
        kind=entry.kind,
        study="-".join(part for part in (body.get("name"), body.get("digest")) if part),
        keys=tuple(str(key) for key in body.get("keys", ())),
        subjects=tuple(body.get("subjects", ())),
        with_model=with_model if isinstance(with_model, bool) else None,
        **values,
    )
