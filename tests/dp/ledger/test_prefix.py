"""A ledger verifies what is new, and believes no byte of the rest that is not the byte it verified."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from secfed.crypto.identity import Identity
from secfed.dp.ledger.ledger import LEDGER, RECOVERED, SPENT, Ledger
from secfed.errors import TranscriptError
from secfed.records import hash_chain
from secfed.records.chain_file import ChainFile, Verified
from secfed.records.hash_chain import BrokenChain, Chain
from tests.dp.ledger_child import IDENTITY
from tests.dp.wards import book, kinds, lines, spend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def used(path: Path) -> Ledger:
    """A ledger in use, with six entries, all of which it verified."""
    ledger = book(path)
    for number in range(4):
        spend(ledger, round_number=number + 1)
    assert ledger.head
    return ledger


def overwrite(path: Path, data: bytes) -> None:
    """In place, with the old times: same inode, same length where the data have it."""
    before = path.stat()
    with path.open("r+b") as stream:
        stream.write(data)
        stream.truncate()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_ino == before.st_ino


def test_only_new_lines_are_verified(path: Path, used: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    verified = []
    real = hash_chain.verify

    def counted(*arguments: object, **named: object) -> None:
        verified.append(arguments)
        real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(hash_chain, "verify", counted)
    head = used.head
    assert verified == []
    spend(book(path), round_number=5)  # another study: it knows nothing yet
    verified.clear()
    assert used.head != head
    assert len(verified) == 1
    assert book(path).head == used.head


def test_a_flipped_byte_anywhere_in_what_was_verified_is_found(path: Path, used: Ledger) -> None:
    whole = path.read_bytes()
    starts = [0]
    for line in lines(path):
        starts.append(starts[-1] + len(line))
    for place in sorted({*range(0, len(whole), 211), *starts[:-1], *(start - 1 for start in starts[1:])}):
        changed = bytearray(whole)
        changed[place] ^= 1
        overwrite(path, bytes(changed))
        before = path.read_bytes()
        with pytest.raises(BrokenChain) as caught:
            spend(used, round_number=5)
        bad = sum(start <= place for start in starts)
        assert caught.value.line == bad
        assert caught.value.message.startswith(f"{path}, line {bad}: ")
        assert "put its newest copy back" in caught.value.remedy
        assert path.read_bytes() == before
        overwrite(path, whole)
    spend(used, round_number=5)
    assert kinds(path).count(SPENT) == 5


def test_a_line_that_is_signed_by_somebody_else_is_found_in_and_after_what_was_verified(
    path: Path, used: Ledger
) -> None:
    whole = lines(path)
    other = Identity.from_seed(IDENTITY.name, bytes([7]) * 32)
    for keep in (2, len(whole)):  # a prefix of ours, then a continuation under another key
        entries = hash_chain.verify_chain(whole[:keep], IDENTITY.public_bytes, LEDGER)
        forged: list[bytes] = []
        writer = Chain(other, LEDGER, sink=forged.append, entries=entries)
        for _ in range(len(whole) + 1 - keep):
            writer.append("spent", dict(entries[-1].body))
        overwrite(path, b"".join([*whole[:keep], *forged]))
        with pytest.raises(BrokenChain) as caught:
            _ = used.head
        assert caught.value.line == keep + 1
        overwrite(path, b"".join(whole))
    assert used.head


def test_a_shortened_file_is_found(path: Path, used: Ledger) -> None:
    whole = path.read_bytes()
    for keep in (0, len(lines(path)[0]), len(whole) - len(lines(path)[-1])):
        overwrite(path, whole[:keep])
        with pytest.raises(TranscriptError, match="replaced while it was in use"):
            spend(used)
    overwrite(path, whole)
    spend(used)


def test_what_is_cut_off_after_the_verified_part_does_not_count_as_verified(path: Path, used: Ledger) -> None:
    whole = path.read_bytes()
    for tail in (b'{"body":', b"\0" * 500):
        overwrite(path, path.read_bytes() + tail)
        assert used.head
        assert kinds(path)[-1] == RECOVERED
    assert path.read_bytes().startswith(whole)
    assert used.head == book(path).head


def test_a_last_line_without_its_newline_is_verified_whole(path: Path, used: Ledger) -> None:
    whole = path.read_bytes()
    overwrite(path, whole[:-1])
    head = used.head
    assert path.read_bytes() == whole
    overwrite(path, whole)
    assert used.head == head


def test_bytes_are_known_by_their_digest_only(path: Path, used: Ledger) -> None:
    with ChainFile(path) as file:
        file.recover(IDENTITY.public_bytes, LEDGER, owner=IDENTITY.name)
        known = file.verified
    assert isinstance(known, Verified)
    data = path.read_bytes()
    assert known.size == len(data)
    assert known.begins(data)
    assert known.begins(data + b"more")
    assert not known.begins(data[:-1])
    assert not known.begins(data[:-1] + b" ")
    assert not known.begins(b"")


def test_a_ledger_that_does_not_verify_says_which_file_and_what_its_owner_can_do(path: Path) -> None:
    spend(book(path))
    path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":7'))
    with pytest.raises(BrokenChain) as caught:
        book(path)
    assert caught.value.message == f"{path}, line 3: its content does not match its hash."
    assert "put its newest copy back" in caught.value.remedy
    assert "docs/operators.md, back up and restore" in caught.value.remedy


def test_a_pipe_is_no_ledger(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(TranscriptError, match="it is not a regular file"):
        book(path)
