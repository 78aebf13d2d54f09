"""Files that are whole on the disk, or not there, when a call returns."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from secfed.crypto.codec import Buffer
from secfed.errors import ConfigError, DiskFull


def write_durably(path: Path, data: Buffer) -> None:
    """Write a file whole or not at all, mode 0600; an existing one is replaced.

    Raises:
        ConfigError: it cannot be written; an existing file is unchanged.
    """
    unfinished = path.with_name(path.name + ".part")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(unfinished, path)
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from None


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


def unwritable(path: Path, error: OSError) -> ConfigError:
    """The error to raise for a file that cannot be read or written."""
    text = f"{path}: {os.strerror(error.errno or 0)}"
    if is_full(error):
        return DiskFull(text, remedy="free space on that disk and start it again")
    return ConfigError(text, remedy="check the disk and the file's owner")


def is_full(error: OSError) -> bool:
    """Whether the disk, or what this account may use of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
