"""Ledgers of an audit: verified, copies put together, and held against what transcripts recorded of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from secfed.audit.privacy.files import Source
from secfed.audit.privacy.findings import (
    AuditedRun,
    Believed,
    Book,
    CheckedFolder,
    VerifiedRecord,
    verify_source,
)
from secfed.dp.ledger.heads import Recorded, lacking, recorded_in
from secfed.dp.ledger.ledger import LEDGER
from secfed.records.clock import LAST_S
from secfed.records.hash_chain import BrokenChain, ChainType, Entry


def check_ledgers(state: CheckedFolder, believed: Believed) -> None:
    """Verify every ledger file, and make one book of the copies of one ledger."""
    histories: dict[tuple[str, bytes, str], list[VerifiedRecord]] = {}
    for source in state.found.ledgers:
        chain = site_chain(state, believed, source, LEDGER, _has_form)
        if chain.entries:
            dataset = str(chain.entries[0].body.get("dataset", ""))
            histories.setdefault((chain.owner, chain.public_bytes, dataset), []).append(chain)
    for (site, _, dataset), chains in histories.items():
        longest, copies = longest_of(state, chains, "what one spent, the other does not count")
        state.books.append(Book(longest, site, dataset, (), copies))


def longest_of(
    state: CheckedFolder, chains: Sequence[VerifiedRecord], otherwise: str
) -> tuple[VerifiedRecord, tuple[Source, ...]]:
    """The longest of several verified copies of one chain, and the others.

    Args:
        state: gets a problem where two copies are no copies, and a note about an older one.
        chains: of one owner, at least one.
        otherwise: what two histories mean.
    """
    longest = max(chains, key=lambda chain: len(chain.entries))
    hashes = [entry.hash for entry in longest.entries]
    copies = []
    for chain in chains:
        count = len(chain.entries)
        if chain is longest:
            continue
        if hashes[count - 1] != chain.entries[-1].hash:
            what = f"it and {longest.source.path} are two histories of one {chain.name}"
            state.problem(chain.source.path, None, f"{what}: {otherwise}")
            continue
        copies.append(chain.source)
        if count < len(hashes):
            state.notes.append(
                f"{chain.source.path} is an older copy of {longest.source.path}, which is used instead"
            )
    return longest, tuple(copies)


def site_chain(
    state: CheckedFolder,
    believed: Believed,
    source: Source,
    kind: ChainType,
    has_form: Callable[[Entry], bool],
) -> VerifiedRecord:
    """Verify a file that one site writes, and remember it.

    Args:
        state: gets the chain, and what is wrong with it.
        believed: rosters.
        source: the file.
        kind: what it must be.
        has_form: whether an entry can be shown; a report on all must not end at what one site signed.

    Returns:
        The chain, without entries where it does not verify.
    """
    chain = _site_chain(state, believed, source, kind, has_form)
    state.chains.append(chain)
    return chain


def _site_chain(
    state: CheckedFolder,
    believed: Believed,
    source: Source,
    kind: ChainType,
    has_form: Callable[[Entry], bool],
) -> VerifiedRecord:
    claimed = source.named_site or str(source.claims.get("owner", ""))
    near = believed.rosters_for(source)
    rosters = [roster for roster in near if claimed in roster.sites]
    if not rosters:
        if near:
            state.problem(source.path, None, "the roster has no such site")
        else:
            state.unknown_roster(source.path)
        return VerifiedRecord(source, claimed or "?", b"", (), kind.name)
    first: BrokenChain | None = None
    for roster in rosters:
        public = roster.public(claimed)
        entries, broken = verify_source(source, kind, public, claimed)
        if broken is None:
            believed.use(roster)
            odd = next((entry for entry in entries if not has_form(entry)), None)
            if odd is None:
                return VerifiedRecord(source, claimed, public, entries, kind.name)
            state.problem(source.path, odd.seq + 1, f"correctly signed, but not what a {kind.name} writes")
            return VerifiedRecord(source, claimed, b"", (), kind.name)
        first = first or broken
    if first is not None:
        state.problem(source.path, first.line, first.why)
    return VerifiedRecord(source, claimed, b"", (), kind.name)


def _has_form(entry: Entry) -> bool:
    """Whether an entry can be shown."""
    body = entry.body
    time_s, after = body.get("time_s", 0), body.get("after", [])
    return (
        (type(time_s) is not int or 0 <= time_s <= LAST_S)
        and all(isinstance(body.get(name, ""), str) for name in ("study", "exchange", "dataset"))
        and type(body.get("round", 0)) is int
        and isinstance(body.get("fields", []), list)
        and _are_tables(body.get("budgets", []))
        and _are_tables(after)
        and all(isinstance(one.get("spent", {}), Mapping | None) for one in after)
    )


def _are_tables(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(one, Mapping) for one in value)


def check_heads(state: CheckedFolder) -> None:
    """Look for every ledger state that a site's transcript recorded."""
    books = {(book.site, book.chain.public_bytes, book.dataset): book for book in state.books}
    known = {key: {entry.hash.hex() for entry in book.chain.entries} for key, book in books.items()}
    for run in state.runs:
        for site, chain in run.sites.items():
            absent: dict[str, None] = {}  # in order
            missing: dict[Path, list[Recorded]] = {}
            for recorded in recorded_in(chain.entries, chain.source.path):
                key = (site, chain.public_bytes, recorded.dataset)
                book = books.get(key)
                if book is None:
                    absent[recorded.dataset] = None
                elif recorded.head not in known[key]:
                    missing.setdefault(book.chain.source.path, []).append(recorded)
            for path, states in missing.items():
                state.problem(path, None, lacking(states))
            for dataset in absent:
                _absent_ledger(state, run, site, dataset)


def _absent_ledger(state: CheckedFolder, run: AuditedRun, site: str, dataset: str) -> None:
    state.notes.append(
        f"{site}, study {run.study!r}: the ledger of data set {dataset!r} is not among the verified "
        "files, so nothing here says what was spent"
    )
