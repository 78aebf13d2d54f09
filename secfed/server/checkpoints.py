"""A run that outlives its process: checkpoints, a transcript without repetitions, the running exchange.

    RUN/transcript.jsonl           what was summed; also names the checkpoint that counts
    RUN/resume/checkpoint          the server program's state before the running exchange
    RUN/resume/checkpoint.next     the same, on its way
    RUN/resume/000003-00.asks      what the sites answered in the running exchange (``exchange_log.py``)

A checkpoint is written under its second name, its SHA-256 is appended to the transcript, and only then it
gets its first name: after a crash the transcript tells which file counts. Entries about sums that follow it
are expected again, word for word, when the running exchange is repeated; they are not appended twice.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors.torch import load, save

from secfed.errors import TranscriptError
from secfed.records.hash_chain import Entry, canonical_json
from secfed.records.transcript import ABORTED, MODEL, STOPPED, SUMMED, Log
from secfed.server.coordinator import Position
from secfed.server.exchange_log import ReplayableExchange
from secfed.server.round import Ask
from secfed.storage import failpoints
from secfed.storage.atomic import sync_folder, unwritable_errors, write_durably
from secfed.wire.frames import untied
from secfed.wire.layout import State

CHECKPOINT: Final = "checkpoint"  # a kind of transcript entry: the state before an exchange, by its SHA-256
RESUME_FOLDER: Final = "resume"

_FACTS: Final = "secfed"  # the name of our facts in the safetensors header


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint."""

    study: str  # study id
    position: Position  # the next exchange
    state: State  # what the server program saved; empty where only the sites read sums
    facts: Mapping[str, Any]  # what else its protection needs: plain JSON
    # what the run reports about its past: plain JSON, nothing of a single site's data
    notes: Mapping[str, Any]

    def encode(self) -> bytes:
        """A safetensors file with the rest in its header."""
        place = [self.position.round, self.position.exchange_index]
        rest = {"study": self.study, "position": place, "facts": self.facts, "notes": self.notes}
        return save(untied(self.state), metadata={_FACTS: json.dumps(rest, allow_nan=True)})

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Read bytes whose digest the transcript has vouched for."""
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        rest = json.loads(header["__metadata__"][_FACTS])
        return cls(rest["study"], Position(*rest["position"]), load(data), rest["facts"], rest["notes"])


class ReplayedLog:
    """A transcript to which a repeated exchange appends nothing twice; ``entries`` since the checkpoint."""

    def __init__(self, log: Log, entries: Sequence[Entry]) -> None:
        self._log = log
        self._recorded = {
            _subject(entry.kind, entry.body): entry for entry in entries if _is_once(entry.kind)
        }

    def append(self, kind: str, body: Mapping[str, object]) -> object:
        """Append one entry, unless it is there."""
        entry = self._recorded.get(_subject(kind, body)) if _is_once(kind) else None
        if entry is None:
            failpoints.failpoint(f"aggregate: before {kind} is in the transcript")
            appended = self._log.append(kind, body)
            failpoints.failpoint(f"aggregate: after {kind} is in the transcript")
            return appended
        # An exchange that an earlier version began is repeated without what that version did not record.
        now = {name: value for name, value in body.items() if name in entry.body or name != "exchange_index"}
        if canonical_json(dict(entry.body)) != canonical_json(now):
            what = "the finished model" if kind == MODEL else "what the running exchange came to"
            raise TranscriptError(
                f"round {body.get('round')}: {what} differs from what the transcript says about it",
                remedy="do not go on with this run; keep its folder and look into it",
            )
        return entry

    def forget(self) -> None:
        """What was recorded belongs to a finished exchange."""
        self._recorded = {}


def _is_once(kind: str) -> bool:
    return kind in (SUMMED, ABORTED, MODEL, STOPPED)


def _subject(kind: str, body: Mapping[str, object]) -> tuple[object, ...]:
    """What an entry is about: there is one of each."""
    if kind == MODEL:
        return (kind,)
    return kind, body.get("round"), body.get("exchange") if kind == SUMMED else None


class KeptRun:
    """Keeps one run of a study; see :class:`secfed.server.coordinator.Keeper`.

    Attributes:
        resumed: whether there is something to go on with.
        asks: carries requests, and answers from the record what was asked before.
        notes: kept with the next checkpoint; from the last one after a restart.

    Raises:
        TranscriptError: the folder's checkpoint is not the one that its transcript names.
        ConfigError: a file cannot be read or written.
    """

    def __init__(self, folder: Path, study: str, log: Log, entries: Sequence[Entry], carry: Ask) -> None:
        self._folder, self._study, self._transcript = folder / RESUME_FOLDER, study, log
        with unwritable_errors(self._folder):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(folder)
        self._path = self._folder / "checkpoint"
        last = max((at for at, entry in enumerate(entries) if entry.kind == CHECKPOINT), default=None)
        named = None if last is None else str(entries[last].body.get("sha256"))
        found = self._find(named)
        kept = None if found is None else Checkpoint.decode(found)
        self._at = None if kept is None else kept.position
        self._sha256 = named or ""
        self.start = kept.position if kept is not None else Position()
        self.state: State | None = kept.state if kept is not None else None
        self.facts: Mapping[str, Any] = kept.facts if kept is not None else {}
        self.notes: dict[str, Any] = dict(kept.notes) if kept is not None else {}
        self.asks = ReplayableExchange(carry, self._folder)
        self.log = ReplayedLog(log, entries if last is None else entries[last + 1 :])
        self.resumed = kept is not None

    def is_due(self, position: Position) -> bool:  # noqa: ARG002 - another process begins nowhere else
        """Always: what is summed once must not be summed again."""
        return True

    def keep(self, position: Position, state: State, facts: Mapping[str, Any]) -> None:
        """Write a checkpoint, and begin the record of the exchange that follows."""
        if self._at != position:
            self._write(Checkpoint(self._study, position, state, facts, self.notes))
        name = f"{position.round:06d}-{position.exchange_index:02d}"
        self.asks.open(name, hashlib.sha256(f"{self._study} {name} {self._sha256}".encode()).digest())
        self._at, self.state = position, None  # the state is the caller's; its memory is free

    def _write(self, checkpoint: Checkpoint) -> None:
        data = checkpoint.encode()
        self._sha256 = hashlib.sha256(data).hexdigest()
        coming = self._path.with_suffix(".next")
        failpoints.failpoint("aggregate: before a checkpoint is written")
        write_durably(coming, data)
        failpoints.failpoint("aggregate: after a checkpoint is written")
        place = {"round": checkpoint.position.round, "exchange_index": checkpoint.position.exchange_index}
        self._transcript.append(CHECKPOINT, {**place, "sha256": self._sha256})
        failpoints.failpoint("aggregate: after a checkpoint is in the transcript")
        self._install(coming)
        failpoints.failpoint("aggregate: after a checkpoint is in place")
        self.log.forget()

    def _install(self, coming: Path) -> None:
        with unwritable_errors(self._path):
            os.replace(coming, self._path)
            sync_folder(self._folder)

    def _find(self, named: str | None) -> bytes | None:
        """The checkpoint that the transcript names; None if it names none."""
        if named is None:
            return None
        coming = self._path.with_suffix(".next")
        for path in (coming, self._path):
            with unwritable_errors(path):
                if not path.exists():
                    continue
                data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == named:
                if path == coming:
                    self._install(coming)
                return data
        raise TranscriptError(
            f"{self._path}: is not the checkpoint that the transcript names",
            remedy="restore the whole folder of the run from your backup, transcript included",
        )
