"""A hospital whose privacy ledger was restored from an old backup notices: no spending is forgotten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from secfed.crypto.codec import Buffer
from secfed.errors import Replay, TranscriptError, WrongState
from secfed.records.chain_file import verify_file
from secfed.records.hash_chain import Entry
from secfed.records.transcript import MOVED, SUMMED, TRANSCRIPT
from secfed.runs.run_folder import TRANSCRIPT_FILE, ledger_file
from secfed.site.terms import Terms
from secfed.wire.frames import Task, decode
from tests.secfed.durable_case import NAMES, VICTIM, Consortium, Hospital, Plug, pulling, study, until

ROUNDS = 3


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    made = Consortium(study("masked", "record", ROUNDS), tmp_path / "x")
    yield made
    made.close()


def ledger(hospital: Hospital) -> Path:
    return ledger_file(hospital.state, "wards")


def transcript(hospital: Hospital) -> tuple[Entry, ...]:
    assert hospital.open is not None
    path = hospital.open.folder / TRANSCRIPT_FILE
    return verify_file(path, hospital.identity.public_bytes, TRANSCRIPT)


def summed(hospital: Hospital) -> list[int]:
    """Rounds of the sums that its transcript recorded."""
    return [entry.body["round"] for entry in transcript(hospital) if entry.kind == SUMMED]


def before_work(consortium: Consortium, *steps: Callable[[Hospital], object]) -> None:
    """Call the first function when the victim is asked for the work of round 2, the second in round 3."""
    left = list(enumerate(steps, start=2))

    def deliver(_stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        task = decode(frame)
        if isinstance(task, Task) and hospital.identity.name == VICTIM and left and left[0][0] == task.round:
            left.pop(0)[1](hospital)
        return hospital.handle(frame)

    consortium.deliver = deliver


def test_a_study_is_not_begun_with_an_older_ledger(consortium: Consortium) -> None:
    hospital = consortium.hospitals[VICTIM]
    backup = hospital.state.parent / "backup"
    before_work(consortium, lambda victim: shutil.copy(ledger(victim), backup))
    consortium.run()
    newest = ledger(hospital).read_bytes()
    ledger(hospital).write_bytes(backup.read_bytes())
    with pytest.raises(TranscriptError) as caught:
        hospital.start()
    hospital.open = None
    text = str(caught.value)
    assert str(ledger(hospital)) in text
    assert TRANSCRIPT_FILE in text
    assert "(round 2)" in text
    assert "put its newest copy back" in text
    ledger(hospital).write_bytes(newest)
    hospital.start()
    assert len(hospital.payments()) == ROUNDS


def test_a_withheld_result_leaves_enough_to_notice(consortium: Consortium) -> None:
    """Shares left for a sum whose result never came: the transcript knows the ledger all the same."""
    hospital = consortium.hospitals[VICTIM]
    first = ledger(hospital).read_bytes()

    def deliver(stage: str, one: Hospital, frame: Buffer) -> bytes:
        if stage == "result" and one is hospital:
            raise WrongState("lost on the way")
        return one.handle(frame)

    consortium.deliver = deliver
    consortium.run()
    assert summed(hospital) == []
    ledger(hospital).write_bytes(first)
    with pytest.raises(TranscriptError, match="lacks the state"):
        hospital.start()
    hospital.open = None


@pytest.mark.parametrize("gone", [False, True])
def test_another_study_on_the_same_data_is_not_begun_either(consortium: Consortium, gone: bool) -> None:
    hospital = consortium.hospitals[VICTIM]
    first = ledger(hospital).read_bytes()
    consortium.run()
    if gone:
        ledger(hospital).unlink()
    else:
        ledger(hospital).write_bytes(first)
    other = study("masked", "record", ROUNDS + 1)
    hospital.terms = Terms.of(other, consortium.roster, VICTIM)
    with pytest.raises(TranscriptError, match="lacks the state"):
        hospital.start()
    hospital.open = None
    assert ledger(hospital).exists() != gone


def test_a_ledger_that_is_replaced_between_two_rounds_stops_the_next_one(consortium: Consortium) -> None:
    hospital = consortium.hospitals[VICTIM]
    path = ledger(hospital)
    first, newest = path.read_bytes(), b""

    def replace(_: Hospital) -> None:
        nonlocal newest
        newest = path.read_bytes()
        path.write_bytes(first)

    def put_back(_: Hospital) -> None:
        assert path.read_bytes() == first
        path.write_bytes(newest)

    before_work(consortium, replace, put_back)
    consortium.run()
    told = [stage for stage, name, _, reply in consortium.frames if reply is None and name == VICTIM]
    assert told
    assert all(str(path) in text and "replaced while it was in use" in text for text in told)
    assert summed(hospital) == [1, 3]  # three hospitals, and all must answer: round 2 was given up
    assert [entry.body["round"] for entry in hospital.payments()] == [1, 3]


def test_a_crash_between_payment_and_sum_is_no_reason_to_refuse(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round, so that the transcript has recorded a state; the ledger is ahead of it then."""
    plug = Plug(monkeypatch)
    deliver = pulling(plug)
    begun = []

    def from_round_2(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        task = decode(frame)
        if isinstance(task, Task) and task.round == 2 and hospital.identity.name == VICTIM:
            plug.set("site: after paid")
            begun.append(task)
        return deliver(stage, hospital, frame)

    consortium.deliver = from_round_2
    consortium.run()
    assert len(begun) == plug.pulled == 1
    hospital = consortium.hospitals[VICTIM]
    assert summed(hospital) == [1, 2, 3]
    assert len(hospital.payments()) == ROUNDS
    assert [outcome.survivors for outcome in consortium.outcomes if outcome.sums] == [NAMES] * ROUNDS


@pytest.mark.parametrize("stage", ["train", "advertise", "unmask"])
@pytest.mark.parametrize("changed", [{"dataset": "beds"}, {"granted": b"other limits"}])
def test_work_of_a_study_that_is_opened_otherwise_does_not_leave(
    changed: dict[str, Any], stage: str, consortium: Consortium
) -> None:
    """Its sum would be recorded with the ledger of another data set: nobody would witness the payment."""
    hospital = until(consortium, stage)
    asked = [frame for _, name, frame, _ in consortium.frames if name == VICTIM]
    vars(hospital).update(changed)
    hospital.start()
    assert set(hospital.files) <= {"answer", "position", "local-draws"}
    refused = (Replay, WrongState)
    for frame in asked:
        with pytest.raises(refused):
            hospital.handle(frame)
    assert hospital.trained == 1
    assert len(hospital.payments()) == 1  # by the ledger of wards


@pytest.mark.parametrize(("stage", "rest"), [("train", b""), ("consistency", b'{"body":{"ev')])
def test_what_was_paid_for_another_data_set_is_witnessed_by_the_transcript(
    stage: str, rest: bytes, consortium: Consortium
) -> None:
    hospital = until(consortium, stage)
    before = ledger(hospital).read_bytes()
    ledger(hospital).write_bytes(before + rest)  # a crash can have left the beginning of a line
    hospital.dataset = "beds"
    for _ in range(2):
        hospital.start()
        told = [entry.body for entry in transcript(hospital) if entry.kind == MOVED]
        head = json.loads(before.splitlines()[-1])["hash"]
        assert told == [{"ledgers": {"wards": head}}], "once"
    hospital.dataset = "wards"
    ledger(hospital).write_bytes(b"".join(before.splitlines(keepends=True)[:-1]))
    with pytest.raises(TranscriptError, match="lacks the state"):
        hospital.start()
    hospital.open = None


def test_a_sum_is_witness_enough_and_a_damaged_ledger_of_another_data_set_stops_nothing(
    consortium: Consortium,
) -> None:
    consortium.run()
    hospital = consortium.hospitals[VICTIM]
    hospital.dataset = "beds"
    hospital.start()
    assert MOVED not in [entry.kind for entry in transcript(hospital)]
    ledger(hospital).write_bytes(b"damaged\n")
    hospital.start()
