"""Verification of everything an audit found, in one pass, without changing a file.

1. Rosters are consistent. Those that the reader names are believed, and the earlier ones kept beside them.
2. Every chain verifies under the key that a believed roster names for its owner; for a transcript it is the
   roster that its first line names. Where that is not here, the file is unchecked, and not called wrong.
3. Transcripts of one run agree with each other (:func:`secfed.audit.transcript_check.verify_run`), also where
   each party handed in its own folder.
4. Every ledger state that a transcript recorded stands in that ledger; two copies of a ledger agree.
5. Every recorded epsilon is what the events give (:mod:`secfed.audit.privacy.recompute`).
6. Every head that was shown earlier, and that the reader names, is still in one of the chains.

A problem is a fact about a file that must not be so. A note is something a reader should know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from secfed.audit.privacy.decision_section import check_decisions
from secfed.audit.privacy.files import find
from secfed.audit.privacy.findings import Believed, CheckedFolder
from secfed.audit.privacy.known_heads import check_seen
from secfed.audit.privacy.ledger_checks import check_heads, check_ledgers
from secfed.audit.privacy.runs import check_transcripts
from secfed.dp.ledger.ledger import SPENT
from secfed.records.roster_file import read_rosters

Progress = Callable[[int, int], None]


def check(
    folders: Sequence[Path],
    pinned: Sequence[Path] = (),
    tick: Progress | None = None,
    seen: Sequence[str] = (),
) -> CheckedFolder:
    """Find and verify everything under some folders.

    Args:
        folders: searched recursively.
        pinned: roster files to believe, with the earlier ones kept beside them; without any, those found in
            the folders are.
        tick: told (done, of) after every payment whose epsilon was computed again.
        seen: heads that an earlier report showed, hexadecimal.

    Raises:
        ConfigError: a folder that does not exist, or a head that is none.
        RosterError: a pinned roster that cannot be used.
        TranscriptError: nothing to check, or a file that cannot be read.
    """
    state = CheckedFolder(find(folders), tuple(pinned))
    believed = Believed(state, list(dict.fromkeys(one for path in pinned for one in read_rosters(path))))
    check_transcripts(state, believed)
    check_ledgers(state, believed)
    check_heads(state)
    check_decisions(state, believed)
    check_seen(state, seen)
    _recompute(state, tick)
    return state


def _recompute(state: CheckedFolder, tick: Progress | None) -> None:
    of = sum(entry.kind == SPENT for book in state.books for entry in book.chain.entries)
    done = 0

    def one() -> None:
        nonlocal done
        done += 1
        if tick is not None:
            tick(done, of)

    for place, book in enumerate(state.books):
        points, wrong = state.recomputer.ledger(book.chain.entries, one)
        state.books[place] = replace(book, points=tuple(points))
        for line, why in wrong:
            state.problem(book.chain.source.path, line, why)
