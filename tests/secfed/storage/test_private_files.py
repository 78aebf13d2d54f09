"""Files that survive a crash and that others cannot read."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from secfed.crypto.identity import Identity, Roster
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.rosters import pin, read_pinned
from secfed.errors import ConfigError, RosterError
from secfed.storage import private_files
from secfed.storage.atomic import write_durably
from tests.kill import failing


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_created_file_is_for_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        private_files.create(tmp_path / "secret", b"x")
        private_files.replace(tmp_path / "other", b"x")
        private_files.make_private_folder(tmp_path / "folder")
    finally:
        os.umask(old)
    modes = [mode(tmp_path / name) for name in ("secret", "other", "folder")]
    assert modes == [0o600, 0o600, 0o700]


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 74), (errno.EDQUOT, 74), (errno.EACCES, 2)])
@pytest.mark.parametrize("write", [private_files.create, private_files.replace, write_durably])
def test_a_full_disk_is_no_wrong_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    code: int,
    write: Callable[[Path, bytes], None],
) -> None:
    """systemd starts what ends with 2 never again, and what ends with 74 after a while."""
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(ConfigError, match=f"file: {os.strerror(number)}") as caught:
        write(tmp_path / "file", b"x")
    assert caught.value.exit_code == code
    assert ("free space on that disk" in caught.value.remedy) is (code == 74)


def test_create_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"first")
    with pytest.raises(ConfigError, match="exists already"):
        private_files.create(tmp_path / "key", b"second")
    assert (tmp_path / "key").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["key"]


def test_create_does_not_follow_a_planted_link(tmp_path: Path) -> None:
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="exists already"):
        private_files.create(tmp_path / "key", b"secret")
    assert not (tmp_path / "elsewhere").exists()


def test_content_is_on_the_disk_before_the_name_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("sync"), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("rename"), rename(a, b))[1])
    private_files.replace(tmp_path / "list", b"new")
    assert order == ["sync", "rename", "sync"]


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o601, 0o660])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"x")
    path.chmod(bits)
    with pytest.raises(ConfigError, match="other users can reach it"):
        private_files.check_private(path)
    path.chmod(0o600)
    private_files.check_private(path)


def test_an_empty_folder_is_made_private_and_any_other_is_not_taken(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private_files.make_private_folder(tmp_path)
    assert mode(tmp_path) == 0o700
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match="not empty"):
        private_files.make_private_folder(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"a": 1, "a": 2}',
        '{"a": ',
        "[" * 100_000,
        "\udcff".encode(errors="surrogateescape"),
    ],
)
def test_what_is_not_one_json_object_is_refused(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=r"x\.json: not a request"):
        private_files.read_json(path, "a request")


def test_a_huge_file_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with path.open("wb") as stream:
        stream.truncate(1 << 34)
    with pytest.raises(ConfigError, match="too large"):
        private_files.read_json(path, "a request")


def test_two_processes_take_turns(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from secfed.storage import private_files as safe_files\n"
        "folder = Path(sys.argv[1]); count = folder / 'count'\n"
        "for _ in range(50):\n"
        "    with safe_files.locked(folder):\n"
        "        now = int(count.read_text()); time.sleep(0.0005)\n"
        "        safe_files.replace(count, str(now + 1).encode())\n"
    )
    (tmp_path / "count").write_text("0")
    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert (tmp_path / "count").read_text() == "100"


def test_json_that_is_nested_so_deeply_that_its_readers_would_fail_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for depth, fits in ((31, True), (32, False), (900, False)):
        path.write_text(f'{{"a": {depth * "["}{depth * "]"}}}')
        if fits:
            assert "a" in private_files.read_json(path, "a list")
        else:
            with pytest.raises(ConfigError, match="not a list"):
                private_files.read_json(path, "a list")


@pytest.mark.parametrize("seconds", [private_files.LATEST_S, 10**30])
def test_a_time_that_no_date_reaches_is_damage(tmp_path: Path, seconds: int) -> None:
    path, pinned = tmp_path / "approvals.json", tmp_path / "pinned.json"
    entry = {"name": "tiny", "state": "held", "since_s": seconds}
    for content in ({"studies": {64 * "0": entry}}, {"refused_names": {"tiny": seconds}}):
        path.write_text(json.dumps({"version": 1, **content}))
        with pytest.raises(ConfigError, match=r"since_s|refused_names"):
            Approvals(path).all()
    keys = [Identity.from_seed("ward", bytes([seed]) * 32).public_bytes for seed in (1, 2)]
    roster = Roster(keys[0], (("ward", keys[1]),))
    pin(pinned, roster, utc_now())
    damaged = {**json.loads(pinned.read_text()), "pinned_s": seconds}
    pinned.write_text(json.dumps(damaged))
    with pytest.raises(RosterError, match="is damaged"):
        read_pinned(pinned)
