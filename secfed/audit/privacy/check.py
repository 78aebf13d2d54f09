"""Verification of everything an audit found, in one pass, without changing a file.

1. Rosters are consistent. Those that the reader names are believed, and the earlier ones kept beside them.
2. Every chain verifies under the key that a believed roster names for its owner; for a transcript it is the
   roster that its first line names. Where that is not here, the file is unchecked, and not called wrong.
3. Transcripts of one run agree with each other (:func:`secfed.audit.transcript_check.compare_run`), also
   where each party handed in its own folder.
4. Every ledger state that a transcript recorded stands in that ledger; two copies of a ledger agree.
5. Every recorded epsilon is what the events give (:mod:`secfed.audit.privacy.recompute`).
6. Every head that was shown earlier, and that the reader names, is still in one of the chains.

A problem is a fact about a file that must not be so. A note is something a reader should know.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from secfed.audit.privacy.files import find
from secfed.audit.privacy.findings import Believed, CheckedFolder
from secfed.audit.privacy.runs import check_transcripts
from secfed.audit.privacy.site_files import check_heads, longest_copies
from secfed.dp.ledger.ledger import LEDGER, SPENT
from secfed.errors import ConfigError
from secfed.records.decision_log import DECISIONS
from secfed.records.roster_file import read_rosters

Progress = Callable[[int, int], None]


def check(
    folders: Sequence[Path], pinned: Sequence[Path], tick: Progress | None, earlier_heads: Sequence[str]
) -> CheckedFolder:
    """Find and verify everything under some folders; see :func:`secfed.audit.privacy.make_report`."""
    state = CheckedFolder(find(folders), tuple(pinned))
    believed = Believed(state, list(dict.fromkeys(one for path in pinned for one in read_rosters(path))))
    check_transcripts(state, believed)
    state.ledgers = longest_copies(state, believed, LEDGER)
    check_heads(state)
    state.decisions = sorted(longest_copies(state, believed, DECISIONS), key=lambda log: log.owner)
    _check_earlier_heads(state, earlier_heads)
    _recompute(state, tick)
    return state


def _check_earlier_heads(state: CheckedFolder, heads: Sequence[str]) -> None:
    """Look for heads that an earlier report showed: the second witness where the owner holds the key.

    A chain by itself does not show that its end was cut off, or that it was written anew. A chain that ever
    ended at a head has an entry with that hash for ever.
    """
    for head in heads:
        if not re.fullmatch(r"[0-9a-f]{64}", head.lower()):
            raise ConfigError(
                f"--seen {head[:70]}: is not a head",
                remedy="give all 64 hexadecimal digits, as the report shows them under Verification",
            )
    known = {entry.hash.hex() for chain in state.chains for entry in chain.entries}
    for head in heads:
        if head.lower() not in known:
            why = (
                f"no record below it has the head {head.lower()}, which was shown earlier: a record was cut "
                "off, replaced or written anew, does not verify, or is not here"
            )
            state.problem(state.found.folders[0], None, why)


def _recompute(state: CheckedFolder, tick: Progress | None) -> None:
    of = sum(entry.kind == SPENT for ledger in state.ledgers for entry in ledger.entries)
    done = itertools.count(1)

    def one() -> None:
        if tick is not None:
            tick(next(done), of)

    for ledger in state.ledgers:
        state.standings[ledger.path], wrong = state.recomputer.ledger(ledger.entries, one)
        for line, why in wrong:
            state.problem(ledger.path, line, why)
