"""The file under a chain: append-only, on the disk before a call returns, one writer at a time.

What a crash can leave behind is one unfinished last line. It is dropped when the owner next opens the
file, and only if it really is the beginning of an entry; anything else is left alone and reported.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from secfed.chain import MAX_LINE_BYTES, ChainType, Entry, verify_chain
from secfed.durable import sync_folder
from secfed.errors import TranscriptError


def read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines of a chain, each with its newline; never holds more than one capped line."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line


def verify_file(
    path: Path, public_bytes: bytes, chain_type: ChainType, *, owner: str | None = None
) -> tuple[Entry, ...]:
    """Check a chain in a file, without changing it.

    Raises:
        BrokenChain: names the first bad line.
        TranscriptError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return verify_chain(read_lines(stream), public_bytes, chain_type, owner=owner)
    except OSError as error:
        raise _unreadable(path, error) from None


class ChainFile:
    """An append-only file of lines, locked for one writer.

    Args:
        path: created (mode 0640), with its folder, if it does not exist.

    Raises:
        TranscriptError: it cannot be opened, or another process is writing to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
            self._file = os.fdopen(descriptor, "r+b", buffering=0)
        except OSError as error:
            raise _unreadable(path, error) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise TranscriptError(
                f"{path}: another process is writing to it.", remedy="stop that process first"
            ) from None
        if is_new:
            sync_folder(path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._file.close()

    def append(self, line: bytes) -> None:
        """Write one line and wait until it is on the disk.

        Raises:
            TranscriptError: it could not be written; nothing of it is left in the file if that can be
                helped, and the file takes no more lines.
        """
        if self._failed:
            raise TranscriptError(f"{self.path}: an earlier write failed.", remedy="free space and restart")
        size = os.fstat(self._file.fileno()).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[self._file.write(view) or 0 :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # After a failed write or sync nobody knows what is on the disk: stop, do not try again.
            self._failed = True
            self._cut(size)
            remedy = (
                "free space on that disk and restart" if error.errno == errno.ENOSPC else "check the disk"
            )
            raise TranscriptError(
                f"{self.path}: cannot write: {os.strerror(error.errno or 0)}.", remedy=remedy
            ) from None

    def _cut(self, size: int) -> None:
        try:
            os.ftruncate(self._file.fileno(), size)
        except OSError:
            return  # the unfinished line is dealt with at the next opening

    def recover(
        self, public_bytes: bytes, chain_type: ChainType, *, owner: str
    ) -> tuple[tuple[Entry, ...], bytes]:
        """Verify what the file holds and repair an unfinished last line.

        A last entry that is whole but for its newline is kept and completed. The beginning of an entry
        is cut off. Call it once, before the first :meth:`append`.

        Returns:
            The entries, and the bytes that were cut off (empty if none).

        Raises:
            BrokenChain: names the first bad line; the file is unchanged.
        """
        self._file.seek(0)
        *lines, rest = list(read_lines(self._file)) or [b""]
        if rest.endswith(b"\n"):
            lines, rest = [*lines, rest], b""
        whole = bool(rest) and not is_torn_entry(rest)
        if whole:
            lines = [*lines, rest + b"\n"]
        entries = verify_chain(lines, public_bytes, chain_type, owner=owner) if lines else ()
        if whole:
            self.append(b"\n")
            return entries, b""
        if rest:
            os.ftruncate(self._file.fileno(), os.fstat(self._file.fileno()).st_size - len(rest))
            os.fsync(self._file.fileno())
        return entries, rest


def is_torn_entry(fragment: bytes) -> bool:
    """Whether these bytes are the beginning of an entry whose end was never written.

    Canonical lines are printable ASCII, begin with a brace, and end where that brace closes; a fragment
    that contains anything else (zeros after a power cut, say) was not left by an interrupted write.
    """
    if not fragment.startswith(b"{") or any(not 0x20 <= byte < 0x7F for byte in fragment):
        return False
    depth, in_text, escaped = 0, False, False
    for byte in fragment:
        if in_text:
            if escaped:
                escaped = False
            elif byte == ord("\\"):
                escaped = True
            elif byte == ord('"'):
                in_text = False
        elif byte == ord('"'):
            in_text = True
        elif byte in b"{[":
            depth += 1
        elif byte in b"}]":
            depth -= 1
            if depth == 0:
                return False
    return True


def torn_summary(fragment: bytes) -> dict[str, object]:
    """What to record about a fragment that was cut off."""
    return {"dropped_bytes": len(fragment), "dropped_sha256": hashlib.sha256(fragment).hexdigest()}


def _unreadable(path: Path, error: OSError) -> TranscriptError:
    return TranscriptError(
        f"{path}: {os.strerror(error.errno or 0)}.", remedy="check that the path exists and is permitted"
    )
