"""A signed file that grows: whole records only, and none that somebody changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from secfed.crypto.identity import SIGNATURE_BYTES, Identity
from secfed.errors import ConfigError, TranscriptError
from secfed.storage.signed_files import SignedFiles
from secfed.storage.signed_log import SignedLog

NAME = "attempt-0000000000"
CONTENTS = [b"seed", b"a message and its answer", b"another one"]


@pytest.fixture
def files(tmp_path: Path) -> SignedFiles:
    return SignedFiles(tmp_path / "work", Identity.generate("hospital-1"), "tiny")


@pytest.fixture
def path(files: SignedFiles) -> Path:
    log = SignedLog(files, NAME)
    for content in CONTENTS:
        log.append(content[:3], content[3:])
    return files.folder / NAME


def contents(files: SignedFiles) -> list[bytes]:
    return [bytes(record) for record in SignedLog(files, NAME).records()]


def test_what_was_appended_is_read(files: SignedFiles, path: Path) -> None:
    assert contents(files) == CONTENTS
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_file_has_no_records(files: SignedFiles) -> None:
    assert contents(files) == []


def _end_of(count: int) -> int:
    return sum(8 + len(content) + SIGNATURE_BYTES + 1 for content in CONTENTS[:count])


@pytest.mark.parametrize("how", ["cut off", "zeros at its end", "nothing but zeros"])
@pytest.mark.parametrize("left", [1, 8, 20, 70])
def test_a_record_that_a_crash_cut_off_is_not_there_and_the_next_takes_its_place(
    how: str, left: int, files: SignedFiles, path: Path
) -> None:
    data, begin = path.read_bytes(), _end_of(2)
    whole = len(data) - begin
    torn = {
        "cut off": data[begin:][:left],
        "zeros at its end": data[begin:][:left].ljust(whole, b"\0"),
        "nothing but zeros": bytes(left),
    }[how]
    path.write_bytes(data[:begin] + torn)
    assert contents(files) == CONTENTS[:2]
    log = SignedLog(files, NAME)
    log.append(b"instead")
    assert contents(files) == [*CONTENTS[:2], b"instead"]
    assert path.stat().st_size == begin + 8 + len(b"instead") + SIGNATURE_BYTES + 1


@pytest.mark.parametrize("record", [0, 1, 2])
def test_a_changed_record_is_refused(record: int, files: SignedFiles, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[_end_of(record) + 8] ^= 1
    path.write_bytes(data)
    with pytest.raises(TranscriptError, match=NAME):
        contents(files)


def test_records_keep_their_place_and_their_file(files: SignedFiles, path: Path) -> None:
    data = path.read_bytes()
    first, second, third = (data[_end_of(n) : _end_of(n + 1)] for n in range(3))
    path.write_bytes(first + third + second)
    with pytest.raises(TranscriptError):
        contents(files)
    path.write_bytes(data)
    path.rename(path.with_name("attempt-0000000001"))
    with pytest.raises(TranscriptError):
        SignedLog(files, "attempt-0000000001")


def test_after_a_write_that_failed_the_records_before_it_are_there(
    files: SignedFiles, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SignedLog(files, NAME)

    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error", descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(ConfigError, match=NAME):
            log.append(b"lost, and longer than what comes then")
    log.append(b"kept")
    assert contents(files) == [*CONTENTS, b"kept"]
