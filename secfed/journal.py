"""A site's memory of which attempts it has served: what makes "one attempt, one use" survive a crash.

Two rules, one table. An attempt begins only if it is larger than every attempt begun in that study. An
exchange whose shares have been given out is spent: no further attempt of it begins, because a second
survivor set for the same update could differ from the first by one hospital.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from secfed.crypto.attempt import AttemptId
from secfed.crypto.refusals import Refusal

_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempts (
    study TEXT NOT NULL, round INTEGER NOT NULL, exchange INTEGER NOT NULL, attempt INTEGER NOT NULL,
    unmasked INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (study, round, exchange, attempt)
) WITHOUT ROWID
"""


class Journal:
    """The journal in SQLite with full synchronisation: every call is on the disk when it returns.

    Args:
        path: database file; None keeps it in memory, for simulations only.

    Security: restoring an older copy of the file makes a site forget. SECURITY.md says what is and is
    not detectable then; do not restore it from a backup while a study is running.
    """

    def __init__(self, path: Path | None = None) -> None:
        # Autocommit: each statement below is its own transaction, so none is left half done.
        self._db = sqlite3.connect(path or ":memory:", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = DELETE")
        self._db.execute("PRAGMA synchronous = EXTRA")
        self._db.execute(_SCHEMA)

    def begin(self, study: str, attempt: AttemptId) -> None:
        """Note that an attempt starts.

        Raises:
            Replay: refusals 11 and 12.
        """
        here = (attempt.round, attempt.exchange_index, attempt.attempt)
        spent = self._db.execute(
            "SELECT 1 FROM attempts WHERE study = ? AND round = ? AND exchange = ? AND unmasked",
            (study, *here[:2]),
        ).fetchone()
        if spent:
            raise Refusal.ALREADY_UNMASKED.refuse(f"round {attempt.round}")
        last = self._db.execute(
            "SELECT round, exchange, attempt FROM attempts WHERE study = ? "
            "ORDER BY round DESC, exchange DESC, attempt DESC LIMIT 1",
            (study,),
        ).fetchone()
        if last is not None and here <= last:
            raise Refusal.OLD_ATTEMPT.refuse(f"round {attempt.round}, attempt {attempt.attempt}")
        self._db.execute(
            "INSERT INTO attempts (study, round, exchange, attempt) VALUES (?, ?, ?, ?)", (study, *here)
        )

    def unmasked(self, study: str, attempt: AttemptId) -> None:
        """Note that shares are about to leave."""
        self._db.execute(
            "UPDATE attempts SET unmasked = 1 WHERE study = ? AND round = ? AND exchange = ? AND attempt = ?",
            (study, attempt.round, attempt.exchange_index, attempt.attempt),
        )

    def close(self) -> None:
        """Close the database."""
        self._db.close()
