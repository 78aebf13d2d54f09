"""A hospital whose disk is full takes no part until there is room, and the study waits for it."""

from __future__ import annotations

import errno
import shutil
from collections import namedtuple
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from secfed.deploy.admission.admission import frame_caps
from secfed.deploy.agent import full_disk
from secfed.deploy.agent.full_disk import Room, is_full, room_bytes
from secfed.errors import ConfigError, DiskFull, TranscriptError
from secfed.storage.atomic import hidden_beside
from secfed.storage.signed_files import SignedFiles
from tests.deploy.agent_case import TOML, Agents, permit
from tests.deploy.agent_case import Centre as Plain
from tests.deploy.centre_case import Centre, events
from tests.deploy.link_case import wait_until

Usage = namedtuple("Usage", "total used free")


def test_work_begins_when_a_whole_exchange_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Plain(tmp_path)) as centre:
        needed, free = room_bytes(frame_caps(centre.terms, centre.roster)), 0
        monkeypatch.setattr(full_disk.shutil, "disk_usage", lambda _path: Usage(0, 0, free))
        clock = [1000.0]
        room = Room(tmp_path, lambda: clock[0])

        def is_refused() -> bool:
            clock[0] += full_disk.AGAIN_AFTER_S
            try:
                room.check(centre.terms, centre.roster)
            except DiskFull:
                return True
            return False

        assert is_refused(), "also by an agent that has just been started"
        free = needed - 1
        assert is_refused()
        free = needed
        assert not is_refused()
        free = 0
        assert not is_refused(), "nothing has failed since"
        room.note(ConfigError("another policy"))
        assert not is_refused()
        room.note(DiskFull("full"))
        assert is_refused()


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("code", [errno.EDQUOT, errno.ENOSPC])
def test_free_space_behind_a_quota_or_without_inodes_is_no_room(
    left: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, clock = 0, [1000.0]

    @contextmanager
    def beside(path: Path, *parts: Any, **more: Any) -> Iterator[Path]:
        nonlocal tried
        tried += 1
        if tried > left:
            raise OSError(code, "no")
        with hidden_beside(path, *parts, **more) as written:
            yield written

    folder = tmp_path / "state"
    folder.mkdir()
    (folder / ".room.0123.part").write_bytes(b"a process was killed")
    with closing(Plain(tmp_path / "centre")) as centre, monkeypatch.context() as patch:
        patch.setattr(full_disk, "hidden_beside", beside)
        room = Room(folder, lambda: clock[0])
        for _ in range(2):  # the second time nothing is written: it may take long
            with pytest.raises(DiskFull, match="do not fit"):
                room.check(centre.terms, centre.roster)
        assert tried == left + 1
        assert not list(folder.iterdir())
        patch.undo()
        clock[0] += full_disk.AGAIN_AFTER_S
        room.check(centre.terms, centre.roster)
    assert not list(folder.iterdir())


def test_a_full_disk_is_told_from_its_exit_code() -> None:
    failed = TranscriptError("the transcript")
    assert not is_full(failed)
    failed.exit_code = DiskFull.exit_code
    assert is_full(failed)
    assert not is_full(None)


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, TOML.replace("rounds = 1", "rounds = 3"))
    for site in made.folders.values():
        permit(site)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
def test_a_study_waits_for_a_needed_hospital_whose_disk_is_full_and_goes_on(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, full = sorted(centre.folders)[0], False
    usage, write = shutil.disk_usage, SignedFiles.write
    state = str(centre.folders[victim].state)

    def written(self: SignedFiles, name: str, *parts: Any) -> None:
        if full and str(self.folder).startswith(state):
            raise DiskFull(f"{self.folder}: No space left on device")
        write(self, name, *parts)

    monkeypatch.setattr(full_disk, "AGAIN_AFTER_S", 1.0)
    monkeypatch.setattr(SignedFiles, "write", written)
    monkeypatch.setattr(full_disk.shutil, "disk_usage", lambda path: Usage(0, 0, 0) if full else usage(path))
    log = centre.folder / "log"
    with closing(Agents()) as agents, log.open("w") as output:
        for site in centre.folders.values():
            agents.serve(site, poll_s=0.1, simulated_randomness=True, once=True)
        process = centre.aggregate("--farewell", "30", stderr=output)
        try:
            wait_until(lambda: '"message": "round"' in log.read_text() or process.poll() is not None, 120.0)
            full = True
            said = f'"{victim}": "failed"'
            wait_until(lambda: said in log.read_text() or process.poll() is not None, 120.0)
            assert process.poll() is None, log.read_text()
            full = False
            process.communicate(timeout=300)
        finally:
            process.kill()
        agents.ended()
        assert not agents.errors
    assert process.returncode == 0, log.read_text()
    waiting = [event for event in events(log.read_text()) if event["message"] == "waiting"]
    assert any("secfed agent status says why" in str(event.get("why")) for event in waiting)
    assert "No space" not in log.read_text()
    assert (centre.out / "model.safetensors").exists()
