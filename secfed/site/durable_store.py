"""What a hospital's site keeps on its disk so that a kill at any moment loses nothing and repeats nothing.

The site, the protection and the programs are deterministic given their inputs and their randomness. So
before anything leaves, what it followed from is on the disk; after a restart the same code reads the same
inputs and arrives at the same state (:meth:`secfed.site.session.Site.resume`).

    begin     work          round, exchange, broadcast digest and one secret key: of all randomness of the
                            exchange's work (steps, noise, rounding); ``opened_with``. Before the ledger pays
    keep      contribution  what the program contributed. Written before any attempt
              program-*     what the program needs for later exchanges; written with the contribution
    open      attempt-*     exchange, and 32 secret bytes: all randomness of one attempt
    answer    (the same)    each of its messages with the answer, in one record, before the answer leaves
    site_seed local-draws   32 secret bytes: batch order, dropout, augmentation; until the study is over
    answer    answer        the last answer outside an attempt, before it leaves. Whatever it was: the same
                            frame once more gets the same answer
    (clear)   position      the exchange is over: everything above but the answer is overwritten and removed
    stop      stopped       this site works on nothing of the study any more; stays when the study is over

A message that a crash cut off before its answer was on the disk was not answered. It comes again, and is
handled by a site that was rebuilt from those before it; the journal takes its entry once more
(docs/adr/029).

Work that a crash cut off after it was paid is done again with the same key on the same broadcast: the same
release, paid once (:meth:`secfed.dp.ledger.ledger.Ledger.spend`). Another broadcast for an exchange whose
work has begun is refused. The journal takes a repeated entry only with the binding of the first time, which
commits to contribution, seed and every message so far.

Security: while an exchange runs, the disk holds this site's update in the clear, and with the seed an
attempt's masks can be computed; forward secrecy begins when the exchange is over. The folder's disk should
be encrypted, and the folder left out of backups.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch

from secfed.crypto import labels
from secfed.crypto.attempt import AttemptJournal, Entropy
from secfed.crypto.codec import Buffer, Reader, Writer, digest
from secfed.crypto.keystream import RoundingStream, derive
from secfed.crypto.seeded_entropy import SEED_BYTES, SeededEntropy
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.errors import ConfigError, InconsistentView, LinkError, Replay, SecfedError, TranscriptError
from secfed.site.attempt_store import AttemptStore, Place
from secfed.site.attempt_work import (
    HEADER_BYTES,
    LAST,
    REFUSED,
    REPLIED,
    Work,
    attempt_file,
    attempt_of,
    decode_taken,
    encode_summands,
    encode_taken,
    given_back,
    header_of,
    parted,
    program_file,
    refusal_of,
)
from secfed.site.journal import BoundJournal, Journal
from secfed.site.parts import Draws
from secfed.storage.failpoints import failpoint
from secfed.storage.signed_files import SignedFiles
from secfed.storage.signed_log import SignedLog
from secfed.wire.frames import decode_state, encode_state
from secfed.wire.layout import State, Summands

STUDY_SECRETS: Final = ("study-key", "seal-key", "uploaded", "taking", "replica")  # of encrypted_store.py
_WORK, _CONTRIBUTION, _ANSWER, _POSITION = "work", "contribution", "answer", "position"
_STOPPED, _LOCAL_DRAWS, _TAKEN = "stopped", "local-draws", "taken"
_MAX_STEPS: Final = 16  # a site gets eight messages in an attempt; a server must not fill the disk

# The disk or the line failed, not the request: asked again, it may succeed.
_PASSING = (ConfigError, TranscriptError, LinkError)


class DurableStore(AttemptStore):
    """A site's memory of one study on the disk; see :class:`~secfed.site.attempt_store.AttemptStore`.

    ``began`` is told the release id before work is paid for. An exchange that was begun with another
    ``opened_with`` (a digest of data set and limits) is over: no transcript would witness its payment.
    """

    def __init__(
        self,
        files: SignedFiles,
        journal: Journal,
        study: str,
        *,
        began: Callable[[str], None] = lambda _release: None,
        opened_with: bytes = b"",
    ) -> None:
        super().__init__(journal, study)
        self.files: SignedFiles = files
        self._began, self._opened_with, self._begun_with = began, opened_with, b""
        self._work = self._read_work()
        answer = files.read(_ANSWER, 32, 1)
        self._asked = None if answer is None else bytes(answer[0])  # digest of the last frame answered
        self._bindings: dict[int, bytes] = {}  # attempt -> binding so far
        self._steps: dict[int, int] = {}  # attempt -> messages noted
        self._logs: dict[int, SignedLog] = {}  # attempt -> its file
        self._noting: SignedLog | None = None  # where the message that is being handled belongs
        self._answered_in: SignedLog | None = None  # where the last answer is; None: in a file of its own
        self._redoes = False  # whether the frame that is being handled gets the same answer from what is kept
        self._contribution, self._over, self._replaying = b"", False, False
        if self._work is None or (answer is not None and self._is_last(*answer[1:])):
            self._clear()  # what a crash cut off
        elif self._begun_with != opened_with:
            files.erase(_ANSWER)  # "ready" would be given again, for work that is not there
            self._asked = None
            self._clear()

    # --- local work -----------------------------------------------------------------------------------

    @property
    def position(self) -> tuple[int, int]:
        """Round and index of the newest exchange that is over; (-1, -1) before the first."""
        found = self.files.read(_POSITION)
        if found is None:
            return -1, -1
        reader = Reader(found[0])
        return reader.uint(4), reader.uint(2)

    def begin(self, here: Place, broadcast_digest: bytes) -> None:
        """Note where and from which broadcast, with a fresh key for all randomness of the work."""
        work = self._work
        if here <= self.position or (work is not None and here < work.here):
            raise Replay(f"round {here[0]}, exchange {here[1]} was already worked on")
        if work is not None and work.here == here:
            if work.broadcast_digest != broadcast_digest:
                # The same randomness on another input would be a second release for one payment.
                raise InconsistentView(f"round {here[0]} was begun from another broadcast")
        else:
            self._clear()
            work = Work(*here, broadcast_digest, secrets.token_bytes(32))
            failpoint("site: before work noted")
            self.files.write(_WORK, header_of(work), work.work_key, self._opened_with)
            self._work = work
        failpoint("site: after work noted")
        self._began(work.release_id(self._study))

    def take(self, round_number: int, taken: Mapping[str, bytes]) -> None:
        """Written at once: after a restart a later task is refused by what was taken, and by nothing else.

        What was taken over another data set, or under other limits, counts for nothing.
        """
        self.files.write(_TAKEN, encode_taken(round_number, taken, self._opened_with))

    def taken(self) -> tuple[int, Mapping[str, bytes]]:
        """What :meth:`take` wrote last."""
        found = self.files.read(_TAKEN)
        return (0, {}) if found is None else decode_taken(found[0], self._opened_with)

    def keep(self, summands: Summands, save: Callable[[], State] = dict) -> None:
        """Write the program's state first, then the contribution that makes it count."""
        failpoint("site: before contribution noted")
        program = save()
        older = self._program_files()
        if program:
            self.files.write(program_file(self._required.here), encode_state(program))
        parts = header_of(self._required), encode_summands(summands)
        self.files.write(_CONTRIBUTION, *parts)
        self._contribution = digest(labels.ATTEMPT_BINDING, *parts)
        if program:
            self.files.erase(*(name for name in older if name != program_file(self._required.here)))
        self._redoes = True
        failpoint("site: after contribution noted")

    def program(self) -> dict[str, torch.Tensor]:
        """What the program kept with the newest contribution; empty if it kept nothing."""
        names = self._program_files()
        if names and self._work is not None and self.contribution() is None:
            # Written by work that was cut off: it will be done again, from what was there before it.
            names = [name for name in names if name != program_file(self._work.here)]
        found = self.files.read(names[-1]) if names else None
        return {} if found is None else decode_state(found[0])

    def _program_files(self) -> list[str]:
        return [name for name in self.files.names() if name.startswith("program-")]

    def contribution(self) -> tuple[Work, dict[str, torch.Tensor]] | None:
        """Read it from the disk."""
        found, work = self.files.read(_CONTRIBUTION, HEADER_BYTES), self._work
        if found is None or work is None or bytes(found[0]) != header_of(work):
            return None
        self._contribution = digest(labels.ATTEMPT_BINDING, *found)
        return work, decode_state(found[1])

    def stop(self) -> None:
        """Write it down; the file stays when the study is over."""
        self.files.write(_STOPPED, b"")  # one part, as it is read: signatures tell none from an empty one

    @property
    def stopped(self) -> bool:
        """Read from the disk."""
        return self.files.read(_STOPPED) is not None

    # --- randomness of the work: one secret key for each exchange ---------------------------------------

    @property
    def draws(self) -> Draws:
        """Rounding, noise in the sum and local steps; see :class:`~secfed.site.parts.Draws`."""
        return Draws(
            self._rounding,
            partial(self._derived, labels.DERIVE_WORK_NOISE),
            lambda number, exchange: SecureRandom(self.local_key(number, exchange)),
        )

    def _rounding(self, number: int, index: int) -> RoundingStream:
        where = number.to_bytes(4, "big"), index.to_bytes(2, "big")
        return RoundingStream(derive(self._required.work_key, labels.DERIVE_ROUNDING, *where))

    def local_key(self, number: int, exchange: str) -> bytes:
        """Key of sampling and noise in local steps."""
        return self._derived(labels.DERIVE_WORK_LOCAL, number, exchange)

    def site_seed(self) -> int:
        """Seed of batch order, dropout and augmentation of this site in this study, 0 <= seed < 2^63.

        Drawn when it is first asked for; another one in every study, and the same after a restart, so that
        work that is done again is the same work.
        """
        found = self.files.read(_LOCAL_DRAWS)
        secret = secrets.token_bytes(SEED_BYTES) if found is None else bytes(found[0])
        if found is None:
            self.files.write(_LOCAL_DRAWS, secret)
        return int.from_bytes(derive(secret, labels.DERIVE_LOCAL_SEED, size_bytes=8), "big") >> 1

    def _derived(self, label: bytes, number: int, exchange: str) -> bytes:
        return derive(self._required.work_key, label, number.to_bytes(4, "big"), exchange.encode())

    @property
    def _required(self) -> Work:
        if self._work is None:
            raise ConfigError("there is no exchange to work on")
        return self._work

    # --- attempts -------------------------------------------------------------------------------------

    def open(self, attempt: int) -> Entropy:
        """From a seed that is on the disk before anything is drawn.

        A seed that is there was drawn before a crash, and no answer has left since: the journal tells whether
        it is asked for the same.
        """
        log = self._logs.get(attempt) or SignedLog(self.files, attempt_file(attempt))
        self._logs[attempt], found = log, log.records()
        header = header_of(self._required)
        if found and bytes(found[0][:HEADER_BYTES]) != header:
            raise self.files.changed(attempt_file(attempt))
        if len(found) > 1 and not self._replaying:
            raise Replay(f"attempt {attempt} was answered")
        seed = bytes(found[0][HEADER_BYTES:]) if found else secrets.token_bytes(SEED_BYTES)
        if not found:
            log.append(header, seed)
        failpoint("site: after attempt opened")
        parts = self._study.encode(), self._contribution, attempt.to_bytes(4, "big"), seed
        self._bindings[attempt], self._steps[attempt] = digest(labels.ATTEMPT_BINDING, *parts), 0
        return SeededEntropy(seed)

    def note(self, attempt: int, frame: Buffer) -> None:
        """Bind the journal's next entry to it; it is written with its answer."""
        count = self._steps.get(attempt)
        if count is None:
            raise Replay(f"attempt {attempt} is over")
        if count >= _MAX_STEPS:
            raise Replay(f"attempt {attempt} has had too many messages")
        self._noting = self._logs[attempt]
        self._steps[attempt] = count + 1
        self._bindings[attempt] = digest(labels.ATTEMPT_BINDING, self._bindings[attempt], frame)
        failpoint("site: after message noted")

    def journal(self, attempt: int) -> AttemptJournal:
        """The journal, bound to everything that the attempt's answers follow from."""
        return BoundJournal(self._journal, lambda: self._bindings[attempt])

    def drop(self, attempts: Callable[[int], bool]) -> None:
        """Erase their seeds and messages."""
        if self._replaying:
            return  # what is being read is not changed meanwhile
        self.files.erase(*self._attempt_files(attempts))
        for attempt in [attempt for attempt in self._logs if attempts(attempt)]:
            self._forget(self._logs.pop(attempt))

    def _forget(self, log: SignedLog) -> None:
        """An attempt is over."""
        if self._noting is log:
            self._noting = None
        if self._answered_in is log:
            self._answered_in, self._asked = None, None

    def _attempt_files(self, attempts: Callable[[int], bool]) -> list[str]:
        return [name for name in self.files.names() if (at := attempt_of(name)) is not None and attempts(at)]

    # --- answers --------------------------------------------------------------------------------------

    def answer(self, frame: Buffer, handle: Callable[[Buffer], Buffer]) -> Buffer:
        """The same frame once more gets the same answer, and nothing is done again."""
        failpoint("site: frame arrived")
        asked = hashlib.sha256(frame).digest()
        if self._asked == asked and (kept := self._last_answer()) is not None:
            return given_back(*kept)
        self._noting, self._redoes = None, False
        self.is_behind = True
        try:
            reply = handle(frame)
        except _PASSING:
            raise
        except SecfedError as error:
            self._store(asked, REFUSED, refusal_of(error))
            self.is_behind = False
            raise
        failpoint("site: before answer noted")
        self._keep_answer(asked, frame, reply)
        self.is_behind = False
        failpoint("site: after answer noted")
        if self._over:
            self._clear()
        return reply

    def _keep_answer(self, asked: bytes, frame: Buffer, reply: Buffer) -> None:
        """Bring it to the disk, where it cannot be made again from what is there."""
        log = self._noting
        if self._over:
            self._store(asked, LAST, header_of(self._required), reply)
        elif log is not None:
            log.append(memoryview(frame).nbytes.to_bytes(8, "big"), frame, reply)
            self._asked, self._answered_in = asked, log
        elif self._redoes:
            self._asked = None  # work that is kept is not done again, and "ready" is all there is to say
        else:
            self._store(asked, REPLIED, reply)

    def _last_answer(self) -> tuple[Buffer, Buffer] | None:
        """Outcome and content of the last answer that was kept."""
        if self._answered_in is not None:
            return REPLIED, parted(self._answered_in.records()[-1])[1]
        kept = self.files.read(_ANSWER, 32, 1)
        return None if kept is None else (kept[1], kept[2])

    def rebuild(self, handle: Callable[[Buffer], Buffer], current: Callable[[], int]) -> None:
        """Handle the messages on the disk once more."""
        answered: set[int] = set()
        self._replaying, self._over = True, False
        try:
            for name in self.files.names():
                if (attempt := attempt_of(name)) is None or name != attempt_file(attempt):
                    continue
                log = self._logs[attempt] = SignedLog(self.files, name)
                for record in log.records()[1:]:
                    frame, _ = parted(record)
                    answered.add(attempt)
                    try:
                        handle(frame)
                    except _PASSING:
                        raise
                    except SecfedError:
                        pass  # answered once, and refused by what this site holds now: that attempt is over
                    self._asked, self._answered_in = hashlib.sha256(frame).digest(), log
        finally:
            self._replaying = False
        # One whose first message was not answered is opened again when that message comes again.
        self.drop(lambda attempt: attempt < current() or (attempt != current() and attempt in answered))
        self.is_behind = False

    def finish(self, here: Place) -> None:
        """Clear after the answer that is being made is on the disk."""
        self._over = self._work is not None and self._work.here <= here

    def forget(self) -> None:
        """Erase all secrets; position and stop mark stay."""
        self._clear()
        self.files.erase(_ANSWER, _LOCAL_DRAWS, _TAKEN, *STUDY_SECRETS, *self._program_files())
        self._asked = None

    def _store(self, asked: bytes, outcome: bytes, *content: Buffer) -> None:
        self.files.write(_ANSWER, asked, outcome, b"".join(content))
        self._asked, self._answered_in = asked, None

    def _is_last(self, outcome: Buffer, content: Buffer) -> bool:
        """Whether this is the answer that ended the exchange whose work is here."""
        header = bytes(memoryview(content)[:HEADER_BYTES])
        return bytes(outcome) == LAST and self._work is not None and header == header_of(self._work)

    def _clear(self) -> None:
        """Destroy what belongs to the exchange so far. Cut off anywhere, it can be done again."""
        work = self._work
        if work is not None:
            failpoint("site: before secrets erased")
            self.files.write(_POSITION, Writer().uint(work.round, 4).uint(work.exchange_index, 2).done())
            failpoint("site: after position noted")
        attempts = () if self._replaying else self._attempt_files(lambda _attempt: True)
        self.files.erase(*attempts, _CONTRIBUTION, _WORK)
        failpoint("site: after secrets erased")
        self._work, self._over, self._contribution = None, False, b""
        for log in self._logs.values():
            self._forget(log)
        self._bindings, self._steps, self._logs = {}, {}, {}

    def _read_work(self) -> Work | None:
        found = self.files.read(_WORK, HEADER_BYTES, SEED_BYTES)
        if found is None:
            return None
        reader, self._begun_with = Reader(found[0]), bytes(found[2])
        work = Work(reader.uint(4), reader.uint(2), reader.fixed(32), bytes(found[1]))
        return None if work.here <= self.position else work
