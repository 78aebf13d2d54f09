"""A site's memory of which attempts it has served: what makes "one attempt, one use" survive a crash.

Three rules, one table. An attempt begins only if it is larger than every attempt begun in that study. An
update that has left, masked, is spent: no further attempt of its exchange begins, because two survivor
sets for one update could differ by few hospitals. Shares are given out only for the newest attempt, only
after its upload, and only once, whichever session or process asks.

A site that was killed in the middle of an attempt rebuilds it (``durable_store.py``) and asks again. A call
with the *binding* that was noted the first time is therefore the same call: the binding commits to everything
that the site's answers up to there depend on, so what leaves is what would have left.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from secfed.crypto.attempt import AttemptId
from secfed.crypto.refusals import Refusal
from secfed.errors import ConfigError, DiskFull
from secfed.storage.failpoints import failpoint

_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempts (
    study TEXT NOT NULL, round INTEGER NOT NULL, exchange INTEGER NOT NULL, attempt INTEGER NOT NULL,
    uploaded INTEGER NOT NULL DEFAULT 0, unmasked INTEGER NOT NULL DEFAULT 0,
    begun_as BLOB, uploaded_as BLOB, unmasked_as BLOB,
    PRIMARY KEY (study, round, exchange, attempt)
) WITHOUT ROWID
"""
_SPENT = "SELECT 1 FROM attempts WHERE study = ? AND round = ? AND exchange = ? AND uploaded"
_LAST = (
    "SELECT round, exchange, attempt, uploaded, unmasked FROM attempts WHERE study = ? "
    "ORDER BY round DESC, exchange DESC, attempt DESC LIMIT 1"
)
_HERE = "WHERE study = ? AND round = ? AND exchange = ? AND attempt = ?"
_BEGUN, _UPLOADED, _UNMASKED = range(3)  # the steps of an attempt
_NOTE = (
    "INSERT INTO attempts (begun_as, study, round, exchange, attempt) VALUES (?, ?, ?, ?, ?)",
    f"UPDATE attempts SET uploaded = 1, uploaded_as = ? {_HERE}",  # noqa: S608 - constants only
    f"UPDATE attempts SET unmasked = 1, unmasked_as = ? {_HERE}",  # noqa: S608 - constants only
)
_BINDINGS = f"SELECT begun_as, uploaded_as, unmasked_as FROM attempts {_HERE}"  # noqa: S608 - constants only
_NEW_COLUMNS = ("begun_as", "uploaded_as", "unmasked_as")  # tables made by 0.1 lack them


class Journal:
    """The journal in SQLite with full synchronisation: every call is on the disk when it returns.

    Args:
        path: database file; None keeps it in memory, for simulations only.

    Raises:
        ConfigError: the file cannot be opened, or is not a journal. Every call raises it when the file
            cannot be read or written; nothing leaves the site then.

    Security: restoring an older copy of the file makes a site forget. A copy restored while the site is
    running is noticed (refusal 37), because the newest row of every study is remembered in memory too; one
    restored while it is stopped is not. SECURITY.md says what that permits; do not restore the journal from
    a backup while a study is running.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._alone = path, threading.Lock()
        with self._errors():
            # Autocommit: a transaction is open only between BEGIN and COMMIT below.
            # One thread at a time: the lock sees to it where all sites of a simulation share a journal.
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
            # At the latest with the journal: also if it cannot be used, and in a process that forgets it.
            weakref.finalize(self, self._db.close)
            self._db.execute("PRAGMA journal_mode = DELETE")
            self._db.execute("PRAGMA synchronous = EXTRA")
            self._db.execute(_SCHEMA)
            known = {row[1] for row in self._db.execute("PRAGMA table_info(attempts)")}
            for column in _NEW_COLUMNS:
                if column not in known:
                    self._db.execute(f"ALTER TABLE attempts ADD COLUMN {column} BLOB")
        self._file = self._identity_of_file()
        self._newest: dict[str, tuple[int, ...]] = {}  # study -> newest row written or seen here

    def begin(self, study: str, attempt: AttemptId, binding: bytes | None = None) -> None:
        """Note that an attempt starts; ``binding`` says what it and its answers follow from.

        Raises:
            Replay: refusals 11, 12 and 37.
        """
        self._note(_BEGUN, study, attempt, binding)

    def uploaded(self, study: str, attempt: AttemptId, binding: bytes | None = None) -> None:
        """Note that the masked update is about to leave: it is spent.

        Raises:
            Replay: refusals 11, 12 and 37.
        """
        self._note(_UPLOADED, study, attempt, binding)

    def unmasked(self, study: str, attempt: AttemptId, binding: bytes | None = None) -> None:
        """Note that shares are about to leave.

        Raises:
            Replay: refusals 11 and 37.
            UnmaskRefused: refusal 34.
        """
        self._note(_UNMASKED, study, attempt, binding)

    def spent(self, study: str, round_number: int, exchange_index: int) -> bool:
        """Whether the update of an exchange has left."""
        with self._transaction():
            found = self._db.execute(_SPENT, (study, round_number, exchange_index)).fetchone()
        return found is not None

    def is_empty(self) -> bool:
        """Whether no attempt was ever begun."""
        with self._transaction():
            return self._db.execute("SELECT 1 FROM attempts LIMIT 1").fetchone() is None

    def _note(self, step: int, study: str, attempt: AttemptId, binding: bytes | None) -> None:
        """Check and write in one transaction, unless it is there already."""
        here = (attempt.round, attempt.exchange_index, attempt.attempt)
        with self._transaction():
            last = self._last(study)
            if here == last[:3] and self._noted(study, here, step, binding):
                return
            if step == _BEGUN:
                if self._db.execute(_SPENT, (study, *here[:2])).fetchone():
                    raise Refusal.ALREADY_SPENT.refuse(f"round {here[0]}")
                if here <= last[:3]:
                    raise Refusal.OLD_ATTEMPT.refuse(f"round {here[0]}, attempt {here[2]}")
            else:
                _check_newest(step, here, last)
            self._db.execute(_NOTE[step], (binding, study, *here))
        self._newest[study] = (*here, int(step >= _UPLOADED), int(step >= _UNMASKED))

    def _noted(self, study: str, here: tuple[int, int, int], step: int, binding: bytes | None) -> bool:
        """Whether exactly this was noted before, by this site before it was interrupted."""
        row = self._db.execute(_BINDINGS, (study, *here)).fetchone()
        return binding is not None and row is not None and row[step] == binding

    def _last(self, study: str) -> tuple[int, ...]:
        """The newest row of a study: round, exchange, attempt, uploaded, unmasked; -1 if there is none."""
        row = self._db.execute(_LAST, (study,)).fetchone() or (-1, -1, -1, 0, 0)
        if row < self._newest.get(study, row):
            raise Refusal.JOURNAL_ROLLED_BACK.refuse("it knows less than this site remembers")
        self._newest[study] = row
        return tuple(row)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, and alone: two processes on one journal take turns."""
        # A renamed-in copy is another file: what is written to the open one would be lost at the next start.
        if self._identity_of_file() != self._file:
            raise Refusal.JOURNAL_ROLLED_BACK.refuse("it is not the file that was opened")
        with self._alone, self._errors(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield

    def _identity_of_file(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # A full disk is told apart: from its exit code a service is started again.
            kind = (
                DiskFull
                if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
                else ConfigError
            )
            raise kind(
                f"the journal {self._path or '(in memory)'} cannot be used: {error}",
                remedy="check the disk's free space, the file's owner and that only one agent uses it",
            ) from error


def _check_newest(step: int, here: tuple[int, int, int], row: tuple[int, ...]) -> None:
    """Refuse an upload, or shares, of an attempt that is not the newest, and what has left already."""
    if here > row[:3]:
        raise Refusal.JOURNAL_ROLLED_BACK.refuse(f"round {here[0]}, attempt {here[2]} never began")
    if here < row[:3]:
        raise Refusal.OLD_ATTEMPT.refuse(f"round {here[0]}, attempt {here[2]}")
    if step == _UPLOADED:
        if row[3]:
            raise Refusal.ALREADY_SPENT.refuse(f"round {here[0]}")
        return
    if row[4]:
        raise Refusal.SECOND_UNMASK.refuse(f"round {here[0]}")
    if not row[3]:
        raise Refusal.JOURNAL_ROLLED_BACK.refuse(f"round {here[0]}: no upload is known")


class BoundJournal:
    """The journal as one attempt of a durable site sees it: every entry carries the attempt's binding.

    ``binding`` is what the attempt has come to; a repeated entry must bring the same.
    """

    def __init__(self, journal: Journal, binding: Callable[[], bytes]) -> None:
        self._journal, self._binding = journal, binding

    def begin(self, study: str, attempt: AttemptId) -> None:
        """As :class:`secfed.crypto.attempt.AttemptJournal` has it."""
        failpoint("site: before begin journalled")
        self._journal.begin(study, attempt, self._binding())
        failpoint("site: after begin journalled")

    def uploaded(self, study: str, attempt: AttemptId) -> None:
        """As :class:`secfed.crypto.attempt.AttemptJournal` has it."""
        failpoint("site: before upload journalled")
        self._journal.uploaded(study, attempt, self._binding())
        failpoint("site: after upload journalled")

    def unmasked(self, study: str, attempt: AttemptId) -> None:
        """As :class:`secfed.crypto.attempt.AttemptJournal` has it."""
        failpoint("site: before unmask journalled")
        self._journal.unmasked(study, attempt, self._binding())
        failpoint("site: after unmask journalled")
