"""A site's memory of which attempts it has served: what makes "one attempt, one use" survive a crash.

Three rules, one table. An attempt begins only if it is larger than every attempt begun in that study. An
exchange whose shares have been given out is spent: no further attempt of it begins, because a second
survivor set for the same update could differ from the first by one hospital. Shares are given out only
for an attempt that the table knows, and only once per exchange, whichever session or process asks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secfed.crypto.attempt import AttemptId
from secfed.crypto.refusals import Refusal
from secfed.errors import ConfigError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempts (
    study TEXT NOT NULL, round INTEGER NOT NULL, exchange INTEGER NOT NULL, attempt INTEGER NOT NULL,
    unmasked INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (study, round, exchange, attempt)
) WITHOUT ROWID
"""
_SPENT = "SELECT attempt FROM attempts WHERE study = ? AND round = ? AND exchange = ? AND unmasked"
_LAST = (
    "SELECT round, exchange, attempt FROM attempts WHERE study = ? "
    "ORDER BY round DESC, exchange DESC, attempt DESC LIMIT 1"
)
_BEGIN = "INSERT INTO attempts (study, round, exchange, attempt) VALUES (?, ?, ?, ?)"
_SPEND = "UPDATE attempts SET unmasked = 1 WHERE study = ? AND round = ? AND exchange = ? AND attempt = ?"


class Journal:
    """The journal in SQLite with full synchronisation: every call is on the disk when it returns.

    Args:
        path: database file; None keeps it in memory, for simulations only.

    Raises:
        ConfigError: the file cannot be opened, or is not a journal. Every call raises it when the file
            cannot be read or written; nothing leaves the site then.

    Security: restoring an older copy of the file makes a site forget. A copy restored while the site is
    running is noticed (refusal 37); one restored while it is stopped is not. SECURITY.md says what that
    permits; do not restore the journal from a backup while a study is running.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        with self._errors():
            # Autocommit: a transaction is open only between BEGIN and COMMIT below.
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None)
            self._db.execute("PRAGMA journal_mode = DELETE")
            self._db.execute("PRAGMA synchronous = EXTRA")
            self._db.execute(_SCHEMA)
        self._file = self._identity_of_file()

    def begin(self, study: str, attempt: AttemptId) -> None:
        """Note that an attempt starts.

        Raises:
            Replay: refusals 11, 12 and 37.
        """
        here = (attempt.round, attempt.exchange_index, attempt.attempt)
        with self._transaction():
            if self._db.execute(_SPENT, (study, *here[:2])).fetchone():
                raise Refusal.ALREADY_UNMASKED.refuse(f"round {attempt.round}")
            last = self._db.execute(_LAST, (study,)).fetchone()
            if last is not None and here <= last:
                raise Refusal.OLD_ATTEMPT.refuse(f"round {attempt.round}, attempt {attempt.attempt}")
            self._db.execute(_BEGIN, (study, *here))

    def unmasked(self, study: str, attempt: AttemptId) -> None:
        """Note that shares are about to leave.

        Raises:
            Replay: refusals 12 and 37.
            UnmaskRefused: refusal 34.
        """
        here = (attempt.round, attempt.exchange_index, attempt.attempt)
        with self._transaction():
            spent = self._db.execute(_SPENT, (study, *here[:2])).fetchone()
            if spent is not None:
                same = spent[0] == attempt.attempt
                refusal = Refusal.SECOND_UNMASK if same else Refusal.ALREADY_UNMASKED
                raise refusal.refuse(f"round {attempt.round}")
            if self._db.execute(_SPEND, (study, *here)).rowcount != 1:
                raise Refusal.JOURNAL_ROLLED_BACK.refuse(f"round {attempt.round}, attempt {attempt.attempt}")

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, and alone: two processes on one journal take turns."""
        # A renamed-in copy is another file: what is written to the open one would be lost at the next start.
        if self._identity_of_file() != self._file:
            raise Refusal.JOURNAL_ROLLED_BACK.refuse(f"{self._path} is not the file that was opened")
        with self._errors(), self._db:
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
            raise ConfigError(
                f"the journal {self._path or '(in memory)'} cannot be used: {error}",
                remedy="check the disk's free space, the file's owner and that only one agent uses it",
            ) from error
