"""A ledger that forgot what a transcript recorded of it is not used; one that knows more is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.interface import Rdp
from secfed.dp.ledger.heads import Recorded, read_recorded, recorded_in
from secfed.dp.ledger.ledger import SPENT, Ledger
from secfed.errors import TranscriptError
from secfed.records.transcript import FOLLOWED, RELEASED, SUMMED, Transcript
from secfed.runs.run_folder import TRANSCRIPT_FILE
from tests.dp.ledger_child import IDENTITY
from tests.dp.wards import Clock, book, kinds, spend
from tests.secfed.chain_case import verify as verify_transcript

BUDGET = Budget(8.0, 1e-5)


def opened(path: Path, recorded: Sequence[Recorded] = ()) -> Ledger:
    return Ledger(path, IDENTITY, "wards", [BUDGET], accountant=Rdp(), clock=Clock(), recorded=recorded)


def summed(ledger: Ledger, number: int, dataset: str = "wards") -> Recorded:
    """As a transcript records the ledger with a sum."""
    return Recorded(dataset, ledger.head.hex(), Path("runs") / TRANSCRIPT_FILE, 3 * number, number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger-wards.jsonl"


def test_an_older_copy_is_refused_and_left_alone(path: Path) -> None:
    ledger = opened(path)
    spend(ledger)
    states = [summed(ledger, 1)]
    older = path.read_bytes()
    for number in (2, 3):
        spend(ledger)
        states.append(summed(ledger, number))
    newest = path.read_bytes()
    path.write_bytes(older)
    with pytest.raises(TranscriptError) as caught:
        opened(path, states)
    text = str(caught.value)
    assert str(path) in text
    assert "transcript.jsonl, line 6 (round 2) recorded (2 such states)" in text
    assert "put its newest copy back" in text
    assert "another name in policy.toml" in text
    assert path.read_bytes() == older  # another entry would make a second history of it
    path.write_bytes(newest)
    spend(opened(path, states))
    assert kinds(path).count(SPENT) == 4


def test_a_ledger_that_is_gone_is_not_begun_anew(path: Path) -> None:
    ledger = opened(path)
    states = [summed(ledger, 1)]
    path.unlink()
    for _ in range(2):
        with pytest.raises(TranscriptError, match="lacks the state"):
            opened(path, states)
        assert not path.exists()


def test_a_second_history_is_refused_however_long_it_is(path: Path) -> None:
    ledger = opened(path)
    spend(ledger, sigma=30.0)
    states = [summed(ledger, 1)]
    path.unlink()
    other = book(path, BUDGET)
    for _ in range(3):
        spend(other)
    with pytest.raises(TranscriptError, match="second history"):
        opened(path, states)


def test_a_ledger_ahead_of_the_transcript_is_used_and_states_of_others_do_not_matter(
    path: Path, tmp_path: Path
) -> None:
    """A crash came after the payment and before the sum: the work is done again, and was paid for."""
    ledger = opened(path)
    spend(ledger)
    other = Ledger(tmp_path / "other", IDENTITY, "clinic", [BUDGET], accountant=Rdp(), clock=Clock())
    states = [summed(ledger, 1), summed(other, 1, "clinic")]
    spend(ledger)
    spend(opened(path, states))
    assert kinds(path).count(SPENT) == 3


@pytest.mark.parametrize("gone", [False, True])
def test_a_ledger_that_is_replaced_while_it_is_in_use_is_refused(path: Path, gone: bool) -> None:
    ledger = opened(path)
    spend(ledger)
    older = path.read_bytes()
    spend(ledger)
    newest = path.read_bytes()
    if gone:
        path.unlink()
    else:
        path.write_bytes(older)
    for use in (lambda: spend(ledger), lambda: ledger.head, ledger.standings):
        with pytest.raises(TranscriptError, match="replaced while it was in use") as caught:
            use()
        assert str(path) in str(caught.value)
    assert gone != path.exists()
    path.write_bytes(newest)
    spend(ledger)
    assert kinds(path).count(SPENT) == 3


def test_another_study_may_append_meanwhile(path: Path) -> None:
    one, other = opened(path), opened(path)
    for ledger in (one, other, one):
        spend(ledger)
    assert kinds(path).count(SPENT) == 3


def test_what_transcripts_record_is_read_with_and_without_verification(path: Path, tmp_path: Path) -> None:
    file = tmp_path / TRANSCRIPT_FILE
    heads = {"wards": "aa" * 32, "clinic": "bb" * 32}
    with Transcript(IDENTITY, study="heart", roster_digest=bytes(32), sink=file) as transcript:
        transcript.append(SUMMED, {"round": 1, "ledgers": heads})
        transcript.append(RELEASED, {"round": 2})
        transcript.append(FOLLOWED, {"round": 2, "ledgers": {"wards": "cc" * 32}})
        transcript.append(SUMMED, {"round": 3})  # a study without privacy
    expected = [
        Recorded("clinic", "bb" * 32, file, 2, 1),
        Recorded("wards", "aa" * 32, file, 2, 1),
        Recorded("wards", "cc" * 32, file, 4, 2),
    ]
    with file.open("rb") as lines:
        entries = verify_transcript(lines, IDENTITY.public_bytes, owner=IDENTITY.name)
    assert list(recorded_in(entries, file)) == expected
    assert list(read_recorded(file)) == expected
    whole = file.read_bytes()
    last = json.dumps({"kind": SUMMED, "body": {"ledgers": {"wards": "dd" * 32}}}).encode()
    for torn in (last[:-4], b"\0" * 40, b'[1, 2]\n{"kind": "summed", "body": 3}\n', b"\xff\n"):
        file.write_bytes(whole + torn)
        assert list(read_recorded(file)) == expected


def test_a_transcript_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / TRANSCRIPT_FILE).mkdir()
    with pytest.raises(TranscriptError, match=TRANSCRIPT_FILE):
        list(read_recorded(tmp_path / TRANSCRIPT_FILE))
