"""Files that are whole on the disk, or not there, when a call returns."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from secfed.crypto.codec import Buffer
from secfed.errors import ConfigError, DiskFull

PART: Final = ".part"  # how the name of an unfinished file ends


def write_atomic(path: Path, *parts: Buffer, mode: int = 0o666) -> None:
    """Write a file whole or leave it as it was; its content is on the disk before it gets its name.

    ``PATH.part`` is its passing name, so nobody else may write it at the same time. From the mode of a new
    file the umask is taken away.
    """
    unfinished = path.with_name(path.name + PART)
    with _synchronised(unfinished, parts, os.O_TRUNC, mode):
        os.replace(unfinished, path)


def write_durably(path: Path, data: Buffer) -> None:
    """As :func:`write_atomic`, mode 0600, with the file's name on the disk, too.

    What a killed process left behind is overwritten by the next write: files of any size may be written so.

    Raises:
        ConfigError: it cannot be written; an existing file is unchanged.
    """
    with unwritable_errors(path):
        write_atomic(path, data, mode=0o600)
        sync_folder(path.parent)


def write_shared(path: Path, *parts: Buffer, mode: int = 0o600, synced: bool = True) -> None:
    """As :func:`write_durably`, beside others who write the same file.

    Args:
        synced: wait for the disk; without it what a crash of the machine leaves behind is not known.

    Raises:
        ConfigError: it cannot be written; an existing file is unchanged.
    """
    with unwritable_errors(path):
        with hidden_beside(path, *parts, mode=mode, synced=synced) as hidden:
            os.replace(hidden, path)
        if synced:
            sync_folder(path.parent)


@contextmanager
def hidden_beside(path: Path, *parts: Buffer, mode: int = 0o600, synced: bool = True) -> Iterator[Path]:
    """The content of a file on the disk, under a random hidden name beside it that is gone afterwards.

    Several processes may write the same file, and nobody can have put a link where this one writes.
    """
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PART}")
    with _synchronised(hidden, parts, os.O_EXCL, mode, synced=synced):
        yield hidden


@contextmanager
def _synchronised(
    unfinished: Path, parts: Iterable[Buffer], how: int, mode: int, *, synced: bool = True
) -> Iterator[None]:
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, mode)
    try:
        try:
            for part in parts:
                write_all(descriptor, part)
            if synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield
    finally:
        unfinished.unlink(missing_ok=True)


def write_all(descriptor: int, data: Buffer) -> None:
    """Write every byte, in pieces."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view[: 1 << 24]) :]


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable, not only the files' content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def unwritable_errors(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` inside the block into the error for a file that cannot be read or written."""
    try:
        yield
    except OSError as error:
        text = f"{path}: {os.strerror(error.errno or 0)}"
        if is_full(error):
            raise DiskFull(text, remedy="free space on that disk and start it again") from None
        remedy = "check the path, the disk, and the file's owner and permissions"
        raise ConfigError(text, remedy=remedy) from None


def is_full(error: OSError) -> bool:
    """Whether the disk, or what this account may use of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
