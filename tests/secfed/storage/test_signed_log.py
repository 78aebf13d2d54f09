"""A signed file that grows: whole records only, and none that somebody changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from secfed.crypto.identity import SIGNATURE_BYTES, Identity
from secfed.errors import ConfigError, TranscriptError
from secfed.storage.signed_files import SignedFiles
from secfed.storage.signed_log import SignedLog

NAME = "attempt-0000000000"
SECTOR_BYTES = 512
CONTENTS = [b"seed", b"a message and its answer", b"another one"]

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files")


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


@pytest.mark.parametrize("shift", [0, 180, 285, 300])
def test_a_last_record_with_sectors_that_were_never_written_is_not_there(
    shift: int, files: SignedFiles, path: Path
) -> None:
    """However its parts lie in sectors: among others its size across two of them."""
    path.unlink()
    log = SignedLog(files, NAME)
    for content in (CONTENTS[0], bytes([7]) * shift, bytes([7]) * 2000):
        log.append(content)
    data, begin = path.read_bytes(), _end_of(1) + 73 + shift
    for sector in range(begin // SECTOR_BYTES, (len(data) - 1) // SECTOR_BYTES):
        first, behind = max(begin, sector * SECTOR_BYTES), (sector + 1) * SECTOR_BYTES
        if not any(data[first:behind]):
            continue
        path.write_bytes(data[:first] + bytes(behind - first) + data[behind:])
        assert len(contents(files)) == 2, sector
    path.write_bytes(data)
    SignedLog(files, NAME).append(b"after it")
    whole = path.read_bytes()
    lost = (begin // SECTOR_BYTES + 1) * SECTOR_BYTES
    path.write_bytes(whole[:lost] + bytes(SECTOR_BYTES) + whole[lost + SECTOR_BYTES :])
    with pytest.raises(TranscriptError):  # not the last: it was there
        contents(files)


def test_a_first_record_is_never_torn(files: SignedFiles) -> None:
    """It was whole before it had its name: zeros in it are somebody's work."""
    SignedLog(files, NAME).append(bytes([7]) * 2000)
    path = files.folder / NAME
    data = path.read_bytes()
    path.write_bytes(data[:SECTOR_BYTES] + bytes(SECTOR_BYTES) + data[2 * SECTOR_BYTES :])
    with pytest.raises(TranscriptError):
        contents(files)


def _calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """Each write and each wait, with what the file held then."""
    found: list[tuple[str, bytes]] = []

    def spy(call: str) -> Callable[..., object]:
        real = getattr(os, call)

        def called(descriptor: int, *rest: object) -> object:
            name = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            got = real(descriptor, *rest)
            found.append((call, name.read_bytes() if name.is_file() else b"the folder"))
            return got

        return called

    for call in ("write", "fsync"):
        monkeypatch.setattr(os, call, spy(call))
    return found


@needs_proc
def test_what_is_waited_for_is_the_whole_record(
    files: SignedFiles, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, calls = SignedLog(files, NAME), _calls(monkeypatch)
    log.append(b"more")
    assert calls[-1] == ("fsync", path.read_bytes())


@needs_proc
def test_a_record_that_nobody_may_have_waited_for_is_written_again_before_it_is_read(
    files: SignedFiles, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process was killed before it waited, or the wait failed."""
    data, calls = path.read_bytes(), _calls(monkeypatch)
    SignedFiles(files.folder, Identity.generate("hospital-1"), "tiny")
    assert calls == [("fsync", b"the folder")]  # of a name, too
    SignedLog(files, NAME)
    assert calls[1:] == [("write", data), ("fsync", data)]


def test_a_file_that_became_shorter_gets_no_more_records(files: SignedFiles, path: Path) -> None:
    log = SignedLog(files, NAME)
    path.write_bytes(path.read_bytes()[: _end_of(2)])
    with pytest.raises(TranscriptError, match=NAME):
        log.append(b"behind a hole")
    with pytest.raises(TranscriptError, match=NAME):
        log.records()


def test_records_of_two_versions_of_a_file_are_not_mixed(files: SignedFiles, path: Path) -> None:
    older = path.read_bytes()
    path.unlink()
    log = SignedLog(files, NAME)
    for content in CONTENTS:
        log.append(bytes(reversed(content)))
    first, second = _end_of(1), _end_of(2)
    path.write_bytes(older[:first] + path.read_bytes()[first:second] + older[second:])
    with pytest.raises(TranscriptError):
        contents(files)
