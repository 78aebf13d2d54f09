"""The model goes home: every hospital gets the finished model, once, whatever is killed on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from secfed.audit.transcript_check import verify_run
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity
from secfed.errors import InconsistentView, LinkError, WrongState
from secfed.records.chain_file import verify_file
from secfed.records.transcript import MODEL, TRANSCRIPT, Transcript
from secfed.runs.final_model import final_frame
from secfed.runs.model_record import ModelRecord
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE, site_folder
from secfed.site import runtime
from secfed.site.opening_session import OpeningSession
from secfed.wire.frames import Notice, encode_state
from tests.secfed.durable_case import VICTIM, Consortium, Hospital, Killed, study


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    made = Consortium(study("masked", "record"), tmp_path / "x")
    made.run()
    yield made
    made.close()


def frame(consortium: Consortium, data: bytes, identity: Identity | None = None) -> bytes:
    record = ModelRecord(1, 2, hashlib.sha256(data).digest(), len(data))
    aggregator = identity or consortium.rules.identity
    return final_frame(aggregator, consortium.roster, consortium.terms.study_id, record, data)


def a_model(value: float = 1.0) -> bytes:
    return encode_state({"weight": torch.full((3,), value)})


def named(hospital: Hospital) -> list[Any]:
    assert hospital.open is not None
    path = hospital.open.folder / TRANSCRIPT_FILE
    entries = verify_file(path, hospital.identity.public_bytes, TRANSCRIPT)
    return [entry.body for entry in entries if entry.kind == MODEL]


def file_of(hospital: Hospital) -> Path:
    assert hospital.open is not None
    return hospital.open.folder / MODEL_FILE


def test_a_site_keeps_the_model_and_names_it(consortium: Consortium) -> None:
    hospital, data = consortium.hospitals[VICTIM], a_model()
    paid = len(hospital.payments())
    for _ in range(2):  # an aggregator that was restarted sends it again
        assert hospital.handle(frame(consortium, data)) == b"ready"
    assert hospital.open is not None
    hospital.open.finish()
    assert hospital.start().site.handle(frame(consortium, data)) == b"ready"
    assert file_of(hospital).read_bytes() == data
    assert file_of(hospital).stat().st_mode & 0o777 == 0o600
    (body,) = named(hospital)
    assert (body["sha256"], body["round"], body["sums"]) == (hashlib.sha256(data).hexdigest(), 1, 2)
    assert len(hospital.payments()) == paid  # the model follows from totals
    assert hospital.files == ["answer", "position"]


@pytest.mark.parametrize("point", ["before model written", "after model written", "after model recorded"])
def test_a_site_that_is_killed_takes_the_model_once(
    point: str, consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital, data = consortium.hospitals[VICTIM], a_model()

    def killed(name: str) -> None:
        if name == f"site: {point}":
            raise Killed(name)

    with monkeypatch.context() as patch:
        patch.setattr(runtime, "failpoint", killed)
        with pytest.raises(Killed):
            hospital.handle(frame(consortium, data))
    hospital.start()
    assert hospital.handle(frame(consortium, data)) == b"ready"
    assert file_of(hospital).read_bytes() == data
    assert len(named(hospital)) == 1


def test_another_model_than_the_one_taken_and_any_other_notice_are_refused(consortium: Consortium) -> None:
    hospital = consortium.hospitals[VICTIM]
    hospital.handle(frame(consortium, a_model()))
    with pytest.raises(InconsistentView, match="refusal 41"):
        hospital.handle(frame(consortium, a_model(2.0)))
    with pytest.raises(WrongState, match="no messages outside an attempt"):
        hospital.handle(Notice(b"secfed/v1\x0c").encode())
    assert file_of(hospital).read_bytes() == a_model()
    assert len(named(hospital)) == 1


def test_under_encrypted_protection_no_model_is_taken_so_that_guesses_cannot_be_tested(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tenseal")
    consortium = Consortium(study("encrypted", None), tmp_path / "x")
    consortium.run()
    hospital = consortium.hospitals[VICTIM]
    assert hospital.open is not None
    assert isinstance(hospital.open.site, OpeningSession)
    own = encode_state(hospital.open.site.replica.model())
    answers = []
    for guess in (own, a_model()):
        with pytest.raises(InconsistentView, match="refusal 41") as refused:
            hospital.handle(frame(consortium, guess))
        answers.append(str(refused.value))
    assert answers[0] == answers[1]
    hospital.open.finish()
    assert file_of(hospital).read_bytes() == own
    assert len(named(hospital)) == 1
    consortium.close()


def test_a_site_that_was_away_for_the_last_sums_says_that_its_model_is_an_older_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of closed sums it makes the model itself, and nobody brings it the sums that it missed."""
    consortium, gone = Consortium(study("closed", None, rounds=2), tmp_path / "x"), []

    def deliver(stage: str, hospital: Hospital, asked: Buffer) -> bytes:
        if hospital.identity.name == VICTIM and (gone or (stage == "result" and consortium.outcomes)):
            gone.append(stage)
            raise LinkError("away")
        return hospital.handle(asked)

    consortium.deliver = deliver
    consortium.run()
    for name, hospital in consortium.hospitals.items():
        assert hospital.open is not None
        caplog.clear()
        hospital.open.finish()
        (body,) = named(hospital)
        told = [text for text in caplog.messages if "the model is the one after round 1 of 2" in text]
        assert (body["round"], len(told)) == ((1, 1) if name == VICTIM else (2, 0))
    consortium.close()


def test_verification_checks_the_aggregators_signature_in_a_sites_record(
    consortium: Consortium, tmp_path: Path
) -> None:
    hospital = consortium.hospitals[VICTIM]
    hospital.handle(frame(consortium, a_model()))
    folder = site_folder(tmp_path, VICTIM)
    folder.mkdir(parents=True)
    for name in (TRANSCRIPT_FILE, MODEL_FILE):
        (folder / name).write_bytes((file_of(hospital).parent / name).read_bytes())

    def found() -> list[str]:
        problems = verify_run(tmp_path, consortium.roster).problems
        return [problem.why for problem in problems if Path(problem.file).parent == folder]

    assert found() == []
    (body,) = named(hospital)
    with Transcript(
        hospital.identity,
        study=consortium.terms.study_id,
        roster_digest=consortium.roster.digest,
        sink=folder / TRANSCRIPT_FILE,
    ) as log:
        log.append(MODEL, {**body, "sums": 3})
    assert found() == ["the aggregator's signature over the model does not verify"]
