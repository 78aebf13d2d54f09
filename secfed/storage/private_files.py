"""Files that survive a crash and that others cannot read.

A file is written under another name, synchronised, and only then given its own; so it is there whole or
not at all. What holds a private key is created for its owner only, and never replaces an existing file.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from secfed.errors import ConfigError
from secfed.storage import flock
from secfed.storage.atomic import hidden_beside, sync_folder, unwritable_errors, write_shared

MAX_BYTES: Final = 1 << 20  # no file of an enrolment is near this size
LATEST_S: Final = 253_402_300_800  # seconds since 1970: the year 10000, which no date of Python reaches

_FOREIGN: Final = stat.S_IRWXG | stat.S_IRWXO
_DEEPEST: Final = 32  # tables and arrays inside each other; no file here has so many


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter, or make an empty one so.

    Raises:
        ConfigError: it exists and is not an empty folder, or it cannot be created.
    """
    with unwritable_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(
                f"{folder}: the folder is not empty", remedy="name a new folder; keys are never overwritten"
            )
        folder.chmod(0o700)  # an empty folder that was there before, or an unusual umask


def make_folder(folder: Path) -> None:
    """Create a folder for this account alone, unless it is there."""
    with unwritable_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)


def check_private(path: Path) -> None:
    """Refuse a file or folder that others can read or write.

    Raises:
        ConfigError: missing, or its mode lets the group or others in.
    """
    with unwritable_errors(path):
        mode = path.stat().st_mode
    if mode & _FOREIGN:
        plain = "700" if stat.S_ISDIR(mode) else "600"
        raise ConfigError(
            f"{path}: other users can reach it (mode {stat.S_IMODE(mode):o})",
            remedy=f"run: chmod {plain} {path}; if others may have read a key, enrol again with a new one",
        )


def create(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a new file, durably; never an existing one.

    Raises:
        ConfigError: it exists already, or it cannot be written.
    """
    with unwritable_errors(path), hidden_beside(path, data, mode=mode) as written:
        try:
            os.link(written, path)  # unlike a rename, this fails when the name is taken
        except FileExistsError:
            raise ConfigError(
                f"{path}: exists already", remedy="nothing was overwritten; move it away first"
            ) from None
        sync_folder(path.parent)


replace = write_shared


def keep(path: Path, data: bytes) -> None:
    """As :func:`replace`, for what is kept every few seconds: an unchanged file is not written."""
    with suppress(OSError):
        if path.read_bytes() == data:
            return
    replace(path, data)


def rename(old: Path, new: Path) -> None:
    """Give a file another name, durably; an existing one of that name is replaced."""
    os.replace(old, new)
    sync_folder(new.parent)


def read(path: Path, what: str) -> bytes:
    """The content of a file of at most 1 MiB.

    Raises:
        ConfigError: missing, unreadable or too large.
    """
    with unwritable_errors(path), path.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: too large for {what}", remedy="check that this is the right file")
    return data


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object in a file.

    Raises:
        ConfigError: unreadable, not JSON, not an object, or an object that says something twice.
    """
    try:
        content = json.loads(read(path, what), object_pairs_hook=_once)
        check_depth(content)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: not {what}", remedy="check that this is the right file, and unchanged")
    return content


def check_depth(content: object) -> None:
    """Refuse what is nested so deeply that whoever walks through it later would fail.

    Raises:
        RecursionError: tables and arrays, more than 32 inside each other.
    """
    level = [content]
    for _ in range(_DEEPEST + 1):
        inside = [item for item in level if isinstance(item, dict | list)]
        if not inside:
            return
        level = [each for item in inside for each in (item.values() if isinstance(item, dict) else item)]
    raise RecursionError


def to_json(content: Mapping[str, Any], *, indent: int | None = 2) -> bytes:
    """A JSON text for a file that people may look at."""
    return (json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False) + "\n").encode()


def finite(content: Any) -> Any:
    """The same content with text for infinity and for what is no number, which JSON does not have."""
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Take turns with other processes that change files in this folder."""
    flock.needed()
    with unwritable_errors(folder):
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        flock.lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):  # readers of the same file could disagree on which one counts
        raise ValueError("a name appears twice")
    return content
