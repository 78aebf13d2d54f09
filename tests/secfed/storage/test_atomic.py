"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from secfed.crypto.identity import Identity, Roster
from secfed.errors import ConfigError, DiskFull
from secfed.records.roster_file import read_roster, write_roster
from secfed.storage import private_files
from secfed.storage.atomic import hidden_beside, write_atomic, write_durably
from tests.kill import failing, kills_itself

ROSTERS = [
    Roster.of(Identity.from_seed("aggregator", bytes(32)), [Identity.from_seed(name, bytes([7]) * 32)])
    for name in ("north", "south")
]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))


def test_parts_are_one_file_of_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "table.csv", b"a,b\n", memoryview(b"1,2\n"))
        write_durably(tmp_path / "model", b"m" * (1 << 25))
    finally:
        os.umask(before)
    assert (tmp_path / "table.csv").read_bytes() == b"a,b\n1,2\n"
    assert (mode(tmp_path / "table.csv"), mode(tmp_path / "model")) == (0o640, 0o600)
    assert (tmp_path / "model").stat().st_size == 1 << 25
    assert len(list(tmp_path.iterdir())) == 2


def test_what_an_earlier_write_left_behind_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "run.json.part").write_bytes(b"half of a longer fi")
    write_atomic(tmp_path / "run.json", b"{}")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"{}"]


def test_processes_that_are_killed_while_they_write_leave_nothing_once_a_write_succeeds(
    tmp_path: Path,
) -> None:
    def half_of_it() -> None:
        os.fsync = lambda _descriptor: os.kill(os.getpid(), signal.SIGKILL)
        write_durably(tmp_path / "model", b"half of it")

    for _ in range(2):
        kills_itself(half_of_it)
    write_durably(tmp_path / "model", b"all of it")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("model", b"all of it")]


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda path: write_atomic(path, b"new"), OSError),
        (lambda path: write_durably(path, b"new"), DiskFull),
        (lambda path: private_files.replace(path, b"new"), ConfigError),
        (lambda path: write_roster(path, ROSTERS[1]), OSError),
    ],
)
@pytest.mark.usefixtures("full_disk")
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, write: Callable[[Path], None], error: type[Exception]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error):
        write(path)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("file", b"old")]


def test_a_hidden_file_is_found_by_nobody_and_gone_afterwards(tmp_path: Path) -> None:
    with hidden_beside(tmp_path / "key", b"secret") as first, hidden_beside(tmp_path / "key", b"") as second:
        assert first != second
        assert first.name.startswith(".key.")
        assert (first.read_bytes(), mode(first)) == (b"secret", 0o600)
    assert list(tmp_path.iterdir()) == []


def test_a_roster_is_replaced_by_another(tmp_path: Path) -> None:
    for roster in ROSTERS:
        write_roster(tmp_path / "roster.json", roster)
        assert read_roster(tmp_path / "roster.json") == roster
