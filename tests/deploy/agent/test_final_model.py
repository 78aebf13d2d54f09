"""Every hospital that is connected when a study ends, or comes while it is still served, has the model."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from secfed.crypto.codec import Buffer
from secfed.deploy.agent import agent as agent_module
from secfed.deploy.agent import control, full_disk
from secfed.deploy.agent.status import StatusBoard, read_status
from secfed.deploy.transport.study_server import Refused
from secfed.errors import ConfigError, DiskFull
from secfed.records.chain_file import verify_file
from secfed.records.transcript import CLOSED, MODEL, TRANSCRIPT
from secfed.runs.final_model import final_frame
from secfed.runs.model_record import ModelRecord
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE, study_folder
from secfed.site.runtime import SiteStudy
from secfed.storage.atomic import write_durably
from secfed.study.limits import study_id
from secfed.wire.frames import encode_state
from tests.deploy.agent_case import NAMES, Centre, status
from tests.deploy.link_case import wait_until

pytestmark = pytest.mark.usefixtures("trains_here")


def final(centre: Centre, data: bytes) -> dict[str, Buffer]:
    record = ModelRecord(1, 2, hashlib.sha256(data).digest(), len(data))
    identity = centre.consortium.aggregator_identity(None)
    frame = final_frame(identity, centre.roster, study_id(centre.study), record, data)
    return dict.fromkeys(NAMES, frame)


def model_of(centre: Centre, name: str) -> Path:
    return study_folder(centre.folders[name].state, study_id(centre.study)) / MODEL_FILE


def test_agents_get_the_model_before_they_are_told_that_the_study_is_over(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        centre.start(name)
    finish, sent = centre.server.finish, []

    def with_model() -> None:
        data = encode_state(centre.model)
        sent.append(data)
        finish(final(centre, data))

    monkeypatch.setattr(centre.server, "finish", with_model)
    centre.run()
    centre.ended()
    for name in NAMES:
        assert model_of(centre, name).read_bytes() == sent[0]
    assert not centre.errors
    assert centre.server.informed() == set(NAMES)


def test_a_hospital_that_comes_late_gets_the_model_and_one_that_declines_is_told_all_the_same(
    centre: Centre,
) -> None:
    data = encode_state(centre.terms.algorithm.server().model())
    centre.server.finish(final(centre, data))
    control.pause(centre.folders[NAMES[1]].state)
    centre.start(NAMES[0])
    centre.start(NAMES[1])
    wait_until(lambda: centre.server.informed() >= {NAMES[0], NAMES[1]})
    wait_until(model_of(centre, NAMES[0]).exists)
    assert model_of(centre, NAMES[0]).read_bytes() == data
    assert not model_of(centre, NAMES[1]).exists()


def test_a_hospital_that_had_failed_gets_the_model_when_it_is_put_right(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode_state(centre.terms.algorithm.server().model())
    really, failed = agent_module.open_site_study, []

    def opened(*arguments: Any, **options: Any) -> SiteStudy:
        if len(failed) < 3:
            assert not centre.server.informed()
            failed.append(centre.declined())
            raise ConfigError("something here has to be put right")
        return really(*arguments, **options)

    monkeypatch.setattr(agent_module, "open_site_study", opened)
    centre.server.finish(final(centre, data))
    centre.start(NAMES[0])
    centre.ended()
    assert failed[-1] == "SecfedError: this site cannot do this now"
    assert model_of(centre, NAMES[0]).read_bytes() == data
    assert centre.server.informed() == {NAMES[0]}


def test_a_full_disk_at_the_end_is_waited_for(
    centre: Centre, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = encode_state(centre.terms.algorithm.server().model())
    full: list[Path] = []

    def write(path: Path, content: Buffer) -> None:
        if path.name == MODEL_FILE and len(full) < 3:
            full.append(path)
            assert not centre.server.informed()
            raise DiskFull(f"{path}: No space left on device")
        write_durably(path, content)

    monkeypatch.setattr("secfed.site.runtime.write_durably", write)
    monkeypatch.setattr(full_disk, "AGAIN_S", 0.01)
    centre.server.finish(final(centre, data))
    centre.start(NAMES[0])
    centre.ended()
    assert len(full) == 3
    assert model_of(centre, NAMES[0]).read_bytes() == data
    assert not isinstance(centre.server.arrivals.get(timeout=60), Refused)
    assert caplog.text.count("a finished model waits for room on the disk") == 1
    assert status(centre.folders[NAMES[0]])["state"] == "stopped"


def test_a_disk_that_is_full_when_the_model_is_named_in_the_transcript_is_waited_for(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode_state(centre.terms.algorithm.server().model())
    record = model_of(centre, NAMES[0]).parent / TRANSCRIPT_FILE
    full: list[str] = []

    def fsync(descriptor: int) -> None:
        for kind in (MODEL, CLOSED):
            new = kind not in full and record.exists() and f'"kind":"{kind}"' in record.read_text()
            if new and os.path.samestat(os.fstat(descriptor), record.stat()):
                full.append(kind)
                raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(full_disk, "AGAIN_S", 0.01)
    centre.server.finish(final(centre, data))
    centre.start(NAMES[0])
    centre.ended()
    assert full == [MODEL, CLOSED]
    assert not isinstance(centre.server.arrivals.get(timeout=60), Refused)
    public = centre.folders[NAMES[0]].identity(None).public_bytes
    assert [entry.kind for entry in verify_file(record, public, TRANSCRIPT)][-2:] == [MODEL, CLOSED]


def test_an_agent_that_is_to_end_waits_for_no_room(tmp_path: Path) -> None:
    board = StatusBoard(tmp_path / "status.json", NAMES[0])

    def act() -> None:
        raise DiskFull("No space left on device")

    with pytest.raises(DiskFull):
        full_disk.when_there_is_room(act, board, lambda _seconds: True)
    assert (read_status(tmp_path / "status.json") or {})["state"] == "failed"


def test_a_hospital_that_refuses_the_model_says_so_and_the_study_ends(centre: Centre) -> None:
    frames = {
        name: bytes(frame)[:-1] + bytes([frame[-1] ^ 1]) for name, frame in final(centre, b"no model").items()
    }
    centre.server.finish(frames)
    centre.start(NAMES[0])
    wait_until(lambda: NAMES[0] in centre.server.informed())
    said = centre.server.arrivals.get(timeout=60)
    assert isinstance(said, Refused)
    assert "refusal 41" in said.reason
    assert not model_of(centre, NAMES[0]).exists()
