"""A signed file that grows: each record is whole on the disk, or not there, with one wait for the disk.

    u64 size of the content ‖ content ‖ owner's signature ‖ 1
    signed: study, owner, name, signature of the record before, SHA-256 of the content

What a crash can leave behind is one unfinished last record: cut off, zeros where its end should be, or, as a
disk writes in the order it likes, zeros in any sector of it. Nothing was done on the strength of it, so it is
not there; anything else that does not verify is refused. A whole last record may be one that nobody waited
for: it is written once more, and waited for, before anybody reads it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from secfed.crypto.codec import Buffer
from secfed.crypto.identity import SIGNATURE_BYTES
from secfed.errors import TranscriptError
from secfed.storage.atomic import unwritable_errors, write_all
from secfed.storage.failpoints import failpoint
from secfed.storage.signed_files import SignedFiles

_SIZE_BYTES: Final = 8
_END: Final = b"\1"
_SECTOR_BYTES: Final = 512  # what a disk writes whole, or not at all


class SignedLog:
    """One such file among the files of a study; what it holds is read, and made durable, when it is opened.

    Raises:
        ConfigError: it cannot be read or written.
        TranscriptError: this site did not write it, or somebody changed it.
    """

    def __init__(self, files: SignedFiles, name: str) -> None:
        self._files, self._name = files, name
        self._count = self._end = 0  # records that are on the disk, and bytes that they take
        self._signature = b""  # of the last of them
        data, begin = self._data(), 0
        for content, signature in self._found(data):
            begin = self._end
            self._ends_with(len(content), signature)
        if self._count:
            self._write(data[begin : self._end], at=begin)

    def records(self) -> list[memoryview]:
        """The contents that are on the disk, in order; none if there is no such file."""
        found = [content for content, _ in self._found(self._data()[: self._end])]
        if len(found) != self._count:
            raise self._files.changed(self._name)
        return found

    def append(self, *parts: Buffer) -> None:
        """Write one record; it is on the disk when this returns, and the file's name too if it is the first.

        Raises:
            ConfigError: it cannot be written; the records before it are unchanged.
            TranscriptError: somebody made the file shorter.
        """
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        signature = self._files.signature(self._name, *_signed(self._signature, *parts))
        record = (size_bytes.to_bytes(_SIZE_BYTES, "big"), *parts, signature, _END)
        if self._count == 0:
            self._files.put(self._name, *record)
        else:
            self._write(*record, at=self._end)
        self._ends_with(size_bytes, signature)

    def _ends_with(self, size_bytes: int, signature: bytes) -> None:
        self._count += 1
        self._end += _whole(size_bytes)
        self._signature = signature

    def _write(self, *record: Buffer, at: int) -> None:
        """Write the last record, and wait for it."""
        with unwritable_errors(self._path):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_size < self._end:
                    raise self._files.changed(self._name)
                os.ftruncate(descriptor, self._end)  # what a write that failed has left
                os.lseek(descriptor, at, os.SEEK_SET)
                for part in record[:-1]:
                    write_all(descriptor, part)
                failpoint("site: before record ended")
                write_all(descriptor, record[-1])
                os.fsync(descriptor)
            except OSError:
                with suppress(OSError):  # one that is opened again would take it for written
                    os.ftruncate(descriptor, self._end)
                raise
            finally:
                os.close(descriptor)

    @property
    def _path(self) -> Path:
        return self._files.folder / self._name

    def _data(self) -> memoryview:
        with unwritable_errors(self._path):
            try:
                return memoryview(self._path.read_bytes())
            except FileNotFoundError:
                return memoryview(b"")

    def _found(self, data: memoryview) -> Iterator[tuple[memoryview, bytes]]:
        """Contents and signatures of the whole records."""
        at, before = 0, b""
        while (content := _next(data[at:])) is not None:
            signature = bytes(data[at + _SIZE_BYTES + len(content) :][:SIGNATURE_BYTES])
            try:
                self._files.check(self._name, signature, *_signed(before, content))
            except TranscriptError:
                if at == 0 or not _is_torn(data, at, at + _whole(len(content))):
                    raise  # the first has its name only since it is whole
                return
            yield content, signature
            at, before = at + _whole(len(content)), signature


def _signed(before: bytes, *parts: Buffer) -> tuple[bytes, bytes]:
    """Signature before it, and digest: where a reader parts its content does not matter."""
    content = hashlib.sha256()
    for part in parts:
        content.update(part)
    return before, content.digest()


def _whole(size_bytes: int) -> int:
    """Bytes of a record with so much content."""
    return _SIZE_BYTES + size_bytes + SIGNATURE_BYTES + len(_END)


def _next(rest: memoryview) -> memoryview | None:
    """The content of the record that begins here; None where none was finished."""
    size = int.from_bytes(rest[:_SIZE_BYTES], "big")
    if len(rest) < _whole(size) or not rest[_whole(size) - 1]:
        return None
    return rest[_SIZE_BYTES : _SIZE_BYTES + size]


def _is_torn(data: memoryview, begin: int, end: int) -> bool:
    """Whether a record that does not verify is the last, with a sector that was never written."""
    cuts = (begin, *range((begin // _SECTOR_BYTES + 1) * _SECTOR_BYTES, len(data), _SECTOR_BYTES), len(data))
    lost = [(first, behind) for first, behind in pairwise(cuts) if not any(data[first:behind])]
    sized = begin + _SIZE_BYTES  # where the sector with its size is lost, nobody knows its end
    return any(end == len(data) or first < sized <= behind for first, behind in lost)
