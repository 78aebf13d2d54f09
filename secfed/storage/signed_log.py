"""A signed file that grows: each record is whole on the disk, or not there, with one wait for the disk.

    u64 size of the content ‖ content ‖ owner's signature over study, owner, name, number, digest ‖ 1

What a crash can leave behind is one unfinished last record: cut off, or zeros where its end should be.
Nothing was done on the strength of it, so it is not there; anything else that does not verify is refused.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from secfed.crypto.codec import Buffer
from secfed.crypto.identity import SIGNATURE_BYTES
from secfed.storage.atomic import unwritable_errors, write_all
from secfed.storage.failpoints import failpoint
from secfed.storage.signed_files import SignedFiles

_SIZE_BYTES: Final = 8
_END: Final = b"\1"


class SignedLog:
    """One such file among the files of a study.

    Raises:
        ConfigError: it cannot be read.
        TranscriptError: this site did not write it, or somebody changed it.
    """

    def __init__(self, files: SignedFiles, name: str) -> None:
        self._files, self._name = files, name
        self._count = self._end = 0  # records, and bytes that they take
        self.records()

    def records(self) -> list[memoryview]:
        """The contents that are on the disk, in order; none if there is no such file."""
        self._count = self._end = 0
        with unwritable_errors(self._path):
            try:
                data = memoryview(self._path.read_bytes())
            except FileNotFoundError:
                return []
        found = []
        while (content := self._next(data[self._end :])) is not None:
            signature = bytes(data[self._end + _SIZE_BYTES + len(content) :][:SIGNATURE_BYTES])
            self._files.check(self._name, signature, *self._signed(content))
            found.append(content)
            self._count += 1
            self._end += _SIZE_BYTES + len(content) + SIGNATURE_BYTES + len(_END)
        return found

    def append(self, *parts: Buffer) -> None:
        """Write one record; it is on the disk when this returns, and the file's name too if it is the first.

        Raises:
            ConfigError: it cannot be written; the records before it are unchanged.
        """
        size = sum(memoryview(part).nbytes for part in parts).to_bytes(_SIZE_BYTES, "big")
        record = (size, *parts, self._files.signature(self._name, *self._signed(*parts)), _END)
        if self._count == 0:
            self._files.put(self._name, *record)
        else:
            with unwritable_errors(self._path):
                descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.ftruncate(descriptor, self._end)  # what a write that failed has left
                    os.lseek(descriptor, self._end, os.SEEK_SET)
                    for part in record[:-1]:
                        write_all(descriptor, part)
                    failpoint("site: before record ended")
                    write_all(descriptor, record[-1])
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        self._count += 1
        self._end += sum(memoryview(part).nbytes for part in record)

    @property
    def _path(self) -> Path:
        return self._files.folder / self._name

    def _signed(self, *parts: Buffer) -> tuple[bytes, bytes]:
        """Number and digest of the next record: where a reader parts its content does not matter."""
        content = hashlib.sha256()
        for part in parts:
            content.update(part)
        return self._count.to_bytes(4, "big"), content.digest()

    @staticmethod
    def _next(rest: memoryview) -> memoryview | None:
        """The content of the record that begins here; None where none was finished."""
        size = int.from_bytes(rest[:_SIZE_BYTES], "big")
        end = _SIZE_BYTES + size + SIGNATURE_BYTES
        if len(rest) <= end or not rest[end]:
            return None
        return rest[_SIZE_BYTES : _SIZE_BYTES + size]
