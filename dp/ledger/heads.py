"""What a site's transcripts recorded of its ledgers, and what a ledger lacks of it.

With every sum a site's transcript records its ledger's head, and where the policy gives a running study
another data set that of the ledger it leaves: a second witness. An older copy of the ledger lacks the newest
of these states, a second history all since it began; either would let budgets be spent again. A ledger may be
ahead: it is written before the work, the transcript after the sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secfed.errors import TranscriptError
from secfed.records.chain_file import read_lines
from secfed.records.hash_chain import Entry
from secfed.records.transcript import FOLLOWED, MOVED, RELEASED, SUMMED

_KEY: Final = "ledgers"
_PAID: Final = ("spent", "unprotected")  # kinds of entries in a ledger that something left after
_KINDS: Final = (RELEASED, SUMMED, FOLLOWED, MOVED)


@dataclass(frozen=True)
class Recorded:
    """One state of a ledger that a transcript recorded."""

    dataset: str
    head: str  # hash of its last entry then; hexadecimal
    file: Path  # the transcript
    line: int  # in it, counted from 1
    round: object  # of the sum, as the transcript has it


def recorded_in(entries: Iterable[Entry], file: Path) -> Iterator[Recorded]:
    """What the verified entries of a transcript recorded, in order."""
    for entry in entries:
        yield from _of(entry.kind, entry.body, file, entry.seq + 1)


def read_recorded(file: Path) -> Iterator[Recorded]:
    """What a site's own transcript recorded, without verifying it; TranscriptError if it cannot be read.

    Damage to a transcript of long ago must not stop a new study. What an entry claims here permits nothing,
    it can only make the site refuse. ``secfed audit verify`` verifies.
    """
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(read_lines(stream), start=1):
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(entry, dict):
                    yield from _of(entry.get("kind"), entry.get("body"), file, number)
    except OSError as error:
        message = f"{file}: {error.strerror}."
        raise TranscriptError(message, remedy="check that the file exists and is permitted") from None


def read_copy(dataset: str, file: Path) -> Recorded:
    """The last state that a copy from a backup shows: the ledger must be there, and go on from it."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        message = f"{file}: {error.strerror}."
        raise TranscriptError(message, remedy="check that the file exists and is permitted") from None
    try:
        last = dict(json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError, RecursionError):
        last = {}  # has no head, so no ledger has it
    place = last.get("body")
    number = place.get("round") if isinstance(place, Mapping) else None
    return Recorded(dataset, str(last.get("hash")), file, len(lines), number)


def left_behind(
    ledgers: Iterable[tuple[str, Sequence[Entry]]], transcript: Sequence[Entry], study: str
) -> dict[str, str]:
    """Heads of ledgers that a study paid from and its transcript has no state of since, by data set.

    ``ledgers`` are data sets with the verified entries of their ledgers.
    """
    known = {one.head for one in recorded_in(transcript, Path())}
    found = {}
    for dataset, entries in ledgers:
        own = [entry.body.get("study") == study and entry.kind in _PAID for entry in entries]
        since = entries[len(own) - own[::-1].index(True) - 1 :] if any(own) else ()
        if since and all(entry.hash.hex() not in known for entry in since):
            found[dataset] = entries[-1].hash.hex()
    return found


def lacking(missing: Sequence[Recorded]) -> str:
    """What is wrong with a ledger that lacks these states, for people; its file is theirs to name."""
    first = missing[0]
    more = f" ({len(missing)} such states)" if len(missing) > 1 else ""
    return (
        "it is an older copy or a second history: it lacks the state that "
        f"{first.file}, line {first.line} (round {first.round}) recorded{more}"
    )


def _of(kind: object, body: object, file: Path, line: int) -> Iterator[Recorded]:
    if kind not in _KINDS or not isinstance(body, Mapping):
        return
    heads = body.get(_KEY)
    for dataset, head in heads.items() if isinstance(heads, Mapping) else ():
        yield Recorded(str(dataset), str(head), file, line, body.get("round"))
