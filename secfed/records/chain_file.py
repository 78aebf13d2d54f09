"""The file under a chain: append-only, on the disk before a call returns, one writer at a time.

What a crash can leave behind is one unfinished last line, or, where the file's length reached the disk and
its content did not, zeros in its place. Nothing was done on the strength of either. It is dropped when the
owner next opens the file; anything else is left alone and reported.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Final, Self

from secfed.errors import DiskFull, TranscriptError
from secfed.records.hash_chain import MAX_LINE_BYTES, BrokenChain, ChainType, Entry, verify_chain
from secfed.storage import flock
from secfed.storage.atomic import is_full, sync_folder

RESTORE: Final = (
    "keep this file, and put its newest intact copy back; what is lost without one: docs/operators.md, "
    "back up and restore"
)
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?$)')  # a JSON text; the last may be cut off


@dataclass(frozen=True)
class Verified:
    """The beginning of a chain's file that was verified before: its next use is spared the signatures.

    Security: only the digest counts, over bytes that are read once, hashed and parsed; any other byte, and
    everything is verified from its first line. Digest and entries are in this process' memory only. A file
    cut off at a newline is a good chain here as well: the ledger knows by the heads it saw, or transcripts
    recorded.
    """

    size: int  # so many bytes
    sha256: bytes  # their SHA-256
    entries: tuple[Entry, ...] = field(repr=False)  # what they say

    def begins(self, data: bytes) -> bool:
        """Whether these bytes begin with those that were verified."""
        if len(data) < self.size:
            return False
        return hashlib.sha256(memoryview(data)[: self.size]).digest() == self.sha256


def read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines of a chain, each with its newline; never holds more than one capped line."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line


def verify_file(
    path: Path, public_bytes: bytes, chain_type: ChainType, *, owner: str | None = None
) -> tuple[Entry, ...]:
    """Check a chain in a file, without changing it.

    Raises:
        BrokenChain: names the file and its first bad line.
        TranscriptError: the file cannot be read.
    """
    try:
        with os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as stream:
            return verify_chain(read_lines(stream), public_bytes, chain_type, owner=owner)
    except BrokenChain as error:
        raise error.at(path, RESTORE) from None
    except OSError as error:
        raise _unreadable(path, error) from None


def verify_whole_lines(
    path: Path, public_bytes: bytes, chain_type: ChainType, *, owner: str
) -> tuple[Entry, ...]:
    """As :func:`verify_file`, for a file that its writer may have left with an unfinished last line."""
    try:
        with os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as stream:
            lines, rest = _split(stream.read(), 0)
        if not _is_torn(rest):
            lines.append(rest + b"\n")
        return verify_chain(lines, public_bytes, chain_type, owner=owner)
    except BrokenChain as error:
        raise error.at(path, RESTORE) from None
    except OSError as error:
        raise _unreadable(path, error) from None


class ChainFile:
    """An append-only file of lines, locked for one writer; created (mode 0640) if there is none.

    Without ``synced`` a crash of the machine may lose lines. :meth:`recover` leaves in ``verified`` what it
    verified, for the next use. ``TranscriptError``: not a regular file, in use by another process, or it
    cannot be opened.
    """

    def __init__(self, path: Path, *, synced: bool = True) -> None:
        self.path, self._synced = path, synced
        self.verified: Verified | None = None
        self._failed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unreadable(path, error) from None
        is_new = not path.exists()
        self._file = self._opened()
        if is_new and synced:
            sync_folder(path.parent)

    def _opened(self) -> io.FileIO:
        try:
            descriptor = _open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            file = io.FileIO(descriptor, "r+b")
        except OSError as error:
            raise _unreadable(self.path, error) from None
        try:
            flock.lock(descriptor)
        except OSError:
            file.close()
            raise TranscriptError(
                f"{self.path}: another process is writing to it.", remedy="stop that process first"
            ) from None
        return file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give up the lock, also where a child that was forked has the file open, too."""
        if not self._file.closed:
            flock.unlock(self._file.fileno())
            self._file.close()

    @property
    def has_failed(self) -> bool:
        """Whether a write failed: the file takes no more lines until it is opened and verified again."""
        return self._failed

    def append(self, line: bytes) -> None:
        """Write one line and wait until it is on the disk, unless the file is not ``synced``.

        ``TranscriptError``: it could not be written; nothing of it is left in the file if that can be helped,
        and the file takes no more lines.
        """
        if self._failed:
            raise TranscriptError(f"{self.path}: an earlier write failed.", remedy="free space and restart")
        size = os.fstat(self._file.fileno()).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[self._file.write(view) or 0 :]
            if self._synced:
                os.fsync(self._file.fileno())
        except OSError as error:
            # After a failed write or sync nobody knows what is on the disk: stop, do not try again.
            self._failed = True
            with suppress(OSError):  # the unfinished line is dealt with at the next opening
                os.ftruncate(self._file.fileno(), size)
            raise _failed(f"{self.path}: cannot write", error, "check the disk") from None

    def recover(
        self,
        public_bytes: bytes,
        chain_type: ChainType,
        *,
        owner: str,
        known: Verified | None = None,
        remedy: str = RESTORE,
    ) -> tuple[tuple[Entry, ...], bytes]:
        """Verify what the file holds and repair an unfinished last line; once, before any :meth:`append`.

        A last entry that is whole but for its newline is completed; the beginning of an entry, and zeros
        after the last newline, are cut off. ``known`` is :attr:`verified` of an earlier use with the same
        key, type and owner: its signatures are not checked again where the file still begins with the very
        same bytes. Gives the entries, and the bytes that were cut off. ``BrokenChain`` names the file and its
        first bad line; nothing is changed.
        """
        self._file.seek(0)
        data = self._file.read()  # once: what is hashed is what is parsed
        if known is not None and not known.begins(data):
            known = None
        begin, before = (known.size, known.entries) if known is not None else (0, ())
        lines, rest = _split(data, begin)
        torn = rest if _is_torn(rest) else b""
        whole = bool(rest) and not torn
        if whole:
            lines.append(rest + b"\n")
        try:
            found = [*before, *lines]
            entries = (
                verify_chain(lines, public_bytes, chain_type, owner=owner, after=before) if found else ()
            )
        except BrokenChain as error:
            raise error.at(self.path, remedy) from None
        if whole:
            self.append(b"\n")
        if torn:
            try:
                os.ftruncate(self._file.fileno(), len(data) - len(torn))
                os.fsync(self._file.fileno())
            except OSError as error:
                what = f"{self.path}: cannot be repaired"
                raise _failed(what, error, "free space on that disk, and check it") from None
        covered = hashlib.sha256(memoryview(data)[:begin])
        for line in lines:
            covered.update(line)
        self.verified = Verified(begin + sum(map(len, lines)), covered.digest(), entries)
        return entries, torn


class BriefChainFile(ChainFile):
    """Open only while it is used: a simulation has more parties than a process may have open files.

    For simulations: nothing is synced, and between two lines another process could write.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, synced=False)

    def append(self, line: bytes) -> None:
        """As :meth:`ChainFile.append`."""
        if not self._file.closed:
            return super().append(line)
        self._file = self._opened()
        try:
            super().append(line)
        finally:
            self.close()

    def recover(
        self,
        public_bytes: bytes,
        chain_type: ChainType,
        *,
        owner: str,
        known: Verified | None = None,
        remedy: str = RESTORE,
    ) -> tuple[tuple[Entry, ...], bytes]:
        """As :meth:`ChainFile.recover`; the file is closed afterwards."""
        try:
            return super().recover(public_bytes, chain_type, owner=owner, known=known, remedy=remedy)
        finally:
            self.close()


def _split(data: bytes, begin: int) -> tuple[list[bytes], bytes]:
    """The lines from there on, and what stands after the last newline."""
    stream = io.BytesIO(data)
    stream.seek(begin)
    lines, rest = list(read_lines(stream)), b""
    while lines and not lines[-1].endswith(b"\n"):  # more than one where it is longer than a line may be
        rest = lines.pop() + rest
    return lines, rest


def _is_torn(rest: bytes) -> bool:
    """Whether a crash left these bytes after the last newline: the beginning of an entry, or only zeros."""
    return not rest.strip(b"\0") or (len(rest) < MAX_LINE_BYTES and is_torn_entry(rest))


def is_torn_entry(fragment: bytes) -> bool:
    """Whether these bytes are the beginning of an entry whose end was never written.

    Canonical lines are printable ASCII, begin with a brace, and end where that brace closes; a fragment
    that contains anything else was not left by an interrupted write.
    """
    if not fragment.startswith(b"{") or any(not 0x20 <= byte < 0x7F for byte in fragment):
        return False
    outside = _TEXT.sub(b"", fragment)
    return 0 not in accumulate((byte in b"{[") - (byte in b"}]") for byte in outside)


def torn_summary(fragment: bytes) -> dict[str, object]:
    """What to record about a fragment that was cut off."""
    return {"dropped_bytes": len(fragment), "dropped_sha256": hashlib.sha256(fragment).hexdigest()}


def _open_regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file: a pipe could keep us waiting for ever, and forgets what is written."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o640)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise TranscriptError(f"{path}: it is not a regular file.", remedy="move it away, and put the file back")


def _unreadable(path: Path, error: OSError) -> TranscriptError:
    return _failed(str(path), error, "check that the path exists and is permitted")


def _failed(what: str, error: OSError, remedy: str) -> TranscriptError:
    """The error of a system call. After the exit code of a full disk, units start a service again."""
    full = is_full(error)
    failed = TranscriptError(
        f"{what}: {os.strerror(error.errno or 0)}.",
        remedy="free space on that disk and restart" if full else remedy,
    )
    if full:
        failed.exit_code = DiskFull.exit_code
    return failed
