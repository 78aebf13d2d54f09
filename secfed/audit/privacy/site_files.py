"""Files that one site writes, ledgers and decision logs: verified, and held against transcripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from secfed.audit.privacy.files import Source
from secfed.audit.privacy.findings import Believed, CheckedFolder, CheckedLedger, VerifiedRecord
from secfed.dp.ledger.heads import Recorded, lacking, recorded_in
from secfed.dp.ledger.ledger import LEDGER
from secfed.records.clock import LAST_S
from secfed.records.hash_chain import BrokenChain, ChainType, Entry, verify_chain


def check_ledgers(state: CheckedFolder, believed: Believed) -> None:
    """Verify every ledger file, and keep the longest copy of each ledger."""
    otherwise = "what one spent, the other does not count"
    chains = longest_copies(state, believed, state.found.ledgers, LEDGER, _has_form, otherwise)
    state.ledgers = [CheckedLedger(chain) for chain in chains]


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
    ledgers = {(one.site, one.chain.public_bytes, one.dataset): one.chain for one in state.ledgers}
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
                state.notes.append(
                    f"{site}, study {run.study!r}: the ledger of data set {dataset!r} is not among the "
                    "verified files, so nothing here says what was spent"
                )


def longest_copies(
    state: CheckedFolder,
    believed: Believed,
    sources: Sequence[Source],
    kind: ChainType,
    has_form: Callable[[Entry], bool],
    otherwise: str,
) -> list[VerifiedRecord]:
    """Verify files, and choose the longest of the copies of one site's ledger or log.

    ``has_form`` says whether an entry can be shown: a report on all must not end at what one site signed.
    ``otherwise`` says what it means that two copies are two histories.
    """
    histories: dict[tuple[str, bytes, str], list[VerifiedRecord]] = {}
    for source in sources:
        chain = _verify(state, believed, source, kind, has_form)
        if chain.entries:
            dataset = str(chain.entries[0].body.get("dataset", ""))
            histories.setdefault((chain.owner, chain.public_bytes, dataset), []).append(chain)
    return [_longest(state, chains, otherwise) for chains in histories.values()]


def _longest(state: CheckedFolder, chains: Sequence[VerifiedRecord], otherwise: str) -> VerifiedRecord:
    longest = max(chains, key=lambda chain: len(chain.entries))
    for chain in chains:
        count = len(chain.entries)
        if longest.entries[count - 1].hash != chain.entries[-1].hash:
            what = f"it and {longest.path} are two histories of one {chain.kind}"
            state.problem(chain.path, None, f"{what}: {otherwise}")
        elif count < len(longest.entries):
            state.notes.append(f"{chain.path} is an older copy of {longest.path}, which is used instead")
    return longest


def _verify(
    state: CheckedFolder,
    believed: Believed,
    source: Source,
    kind: ChainType,
    has_form: Callable[[Entry], bool],
) -> VerifiedRecord:
    """Try the keys that the believed rosters have for the site that the file claims to be of."""
    claimed = source.named_site or str(source.claims.get("owner", ""))
    near = believed.rosters_for(source)
    rosters = [roster for roster in near if claimed in roster.sites]
    if not near:
        state.unknown_roster(source.path)
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
        believed.use(roster)
        odd = next((entry for entry in entries if not has_form(entry)), None)
        if odd is None:
            return state.record(source, kind, claimed, public, entries)
        state.problem(source.path, odd.seq + 1, f"correctly signed, but not what a {kind.name} writes")
        return state.record(source, kind, claimed)
    if first is not None:
        state.problem(source.path, first.line, first.why)
    return state.record(source, kind, claimed)
