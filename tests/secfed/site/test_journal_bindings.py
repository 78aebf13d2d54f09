"""The journal takes an entry again only from the attempt that made it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from secfed.crypto.attempt import AttemptId
from secfed.errors import Replay, UnmaskRefused
from secfed.site.journal import Journal

FIRST, SECOND = AttemptId(1, 0, 0), AttemptId(1, 0, 1)
A, B = bytes(32), bytes([1]) * 32


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.sqlite")


def test_the_same_attempt_may_ask_again_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        journal = Journal(tmp_path / "journal.sqlite")
        journal.begin("heart", FIRST, A)
        journal.uploaded("heart", FIRST, B)
        journal.unmasked("heart", FIRST, A)
        journal.close()


@pytest.mark.parametrize("binding", [B, None])
def test_another_attempt_of_the_same_number_may_not(journal: Journal, binding: bytes | None) -> None:
    journal.begin("heart", FIRST, A)
    with pytest.raises(Replay):
        journal.begin("heart", FIRST, binding)
    journal.uploaded("heart", FIRST, A)
    with pytest.raises(Replay):
        journal.uploaded("heart", FIRST, binding)
    journal.unmasked("heart", FIRST, A)
    with pytest.raises(UnmaskRefused):
        journal.unmasked("heart", FIRST, binding)
    journal.close()


def test_an_entry_without_binding_is_never_taken_again(journal: Journal) -> None:
    journal.begin("heart", FIRST)
    with pytest.raises(Replay):
        journal.begin("heart", FIRST)
    with pytest.raises(Replay):
        journal.begin("heart", FIRST, A)
    journal.close()


def test_an_attempt_that_is_not_the_newest_is_over_whatever_its_binding(journal: Journal) -> None:
    journal.begin("heart", FIRST, A)
    journal.begin("heart", SECOND, B)
    for call in (journal.begin, journal.uploaded, journal.unmasked):
        with pytest.raises(Replay):
            call("heart", FIRST, A)
    journal.close()


def test_what_was_spent_is_known(journal: Journal) -> None:
    journal.begin("heart", FIRST, A)
    assert not journal.spent("heart", 1, 0)
    journal.uploaded("heart", FIRST, A)
    assert journal.spent("heart", 1, 0)
    assert not journal.spent("heart", 2, 0)
    journal.close()


def test_a_journal_of_an_older_version_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE attempts (study TEXT NOT NULL, round INTEGER NOT NULL, exchange INTEGER NOT NULL, "
        "attempt INTEGER NOT NULL, uploaded INTEGER NOT NULL DEFAULT 0, unmasked INTEGER NOT NULL DEFAULT 0, "
        "PRIMARY KEY (study, round, exchange, attempt)) WITHOUT ROWID"
    )
    database.execute("INSERT INTO attempts VALUES ('heart', 1, 0, 0, 1, 0)")
    database.commit()
    database.close()
    journal = Journal(path)
    with pytest.raises(Replay):
        journal.begin("heart", SECOND, A)
    journal.begin("heart", AttemptId(2, 0, 0), A)
    journal.begin("heart", AttemptId(2, 0, 0), A)
    journal.close()
