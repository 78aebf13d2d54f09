"""Ledgers of an audit: verified, and held against what transcripts recorded of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from secfed.audit.privacy.findings import Believed, CheckedFolder, CheckedLedger
from secfed.audit.privacy.site_files import longest_copies
from secfed.dp.ledger.heads import Recorded, lacking, recorded_in
from secfed.dp.ledger.ledger import LEDGER
from secfed.records.clock import LAST_S
from secfed.records.hash_chain import Entry


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
