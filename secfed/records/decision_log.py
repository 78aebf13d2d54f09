"""The decision log: what a hospital decided, beside its ledgers (spent) and transcripts (summed).

A signed hash chain for all studies of a site, ``decisions.jsonl`` in its state folder: what its people
approved or refused, what its policy let in or kept out, and what its agent refused. The agent and the command
line take turns: each verifies what is there, and adds what that does not say yet
(:mod:`secfed.records.decision_state`).

Security: the site holds the key, so the chain proves that nothing *inside* it changed, not that its end is
there, nor that there is no second history: compare with a head of an earlier report (``audit verify
--seen``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from secfed.crypto import labels
from secfed.crypto.identity import Identity
from secfed.errors import TranscriptError
from secfed.records.chain_file import ChainFile, Verified, torn_summary
from secfed.records.clock import checked_s
from secfed.records.decision_state import RECOVERED, DecisionState, Made
from secfed.records.hash_chain import OPENED, Chain, ChainType, Entry
from secfed.storage.file_lock import locked

DECISIONS = ChainType("decision log", labels.DECISION_CHAIN, labels.SIGN_DECISION)

_RESTORE: Final = (
    "keep this file, and put its newest intact copy back; without one, move it away: the agent begins a new "
    "log (docs/operators.md, back up and restore)"
)

Decide = Callable[[DecisionState, int], Sequence[Made]]


class DecisionLog:
    """The decision log of one site; created on first use, in a folder that exists."""

    def __init__(
        self,
        path: Path,
        identity: Identity,
        *,
        clock: Callable[[], float] = time.time,
        lock_timeout_s: float = 10.0,
        open_file: Callable[[Path], ChainFile] = ChainFile,
    ) -> None:
        self.path = path
        self._identity, self._clock = identity, clock
        self._lock_timeout_s, self._open_file = lock_timeout_s, open_file
        self._state: DecisionState | None = None  # after the last use here
        self._newest: bytes | None = None  # head after it
        self._verified: Verified | None = None

    def note(self, decide: Decide) -> tuple[Entry, ...]:
        """Add what follows; it is on the disk when this returns. Gives the new entries.

        ``decide`` gives the entries that follow from what the log says and the time in seconds since 1970; it
        is asked again if the log says more than it did here before. ``TranscriptError``: the log does not
        verify, was replaced by an older copy, or cannot be written.
        """
        now_s = checked_s(self.path, self._clock())
        if self._state is not None and not decide(self._state, now_s):
            return ()
        with self._writing(now_s) as (chain, state):
            made = []
            for kind, body in decide(state, now_s):
                made.append(chain.append(kind, {**body, "time_s": now_s}))
                state.take(kind, made[-1].body)
            return tuple(made)

    def state(self) -> DecisionState:
        """What the log says, as it was last used here."""
        if self._state is None:
            self.note(lambda _state, _now_s: ())
        return self._state or DecisionState()

    @contextmanager
    def _writing(self, now_s: int) -> Iterator[tuple[Chain, DecisionState]]:
        """The verified chain, ready to append to, while no other process can."""
        with locked(self.path, self._lock_timeout_s):
            file = self._open_file(self.path)
            try:
                owner = self._identity.name
                entries, torn = file.recover(
                    self._identity.public_bytes, DECISIONS, owner=owner, known=self._verified, remedy=_RESTORE
                )
                self._verified = file.verified
                if self._newest is not None and self._newest not in {entry.hash for entry in entries}:
                    raise TranscriptError(
                        f"{self.path}: it was replaced while it was in use, by an older copy or a second "
                        "history",
                        remedy="put the newest copy back, and start the agent again",
                    )
                chain = Chain(self._identity, DECISIONS, sink=file.append, entries=entries)
                state = DecisionState()
                if not entries:
                    entries = (chain.append(OPENED, {"owner": owner, "time_s": now_s}),)
                if torn:
                    entries = (*entries, chain.append(RECOVERED, {**torn_summary(torn), "time_s": now_s}))
                for entry in entries:
                    state.take(entry.kind, entry.body)
                try:
                    yield chain, state
                    self._state = state
                finally:
                    self._newest = chain.head
            except OSError as error:  # of reading; a failed append or repair says it by itself
                raise TranscriptError(
                    f"{self.path}: cannot be read: {os.strerror(error.errno or 0)}",
                    remedy="free space on that disk, and check it",
                ) from None
            finally:
                file.close()
