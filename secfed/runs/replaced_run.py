"""A run that takes the place of an earlier one, which stays as it is until the new one is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from secfed.errors import ConfigError
from secfed.runs.run_folder import (
    ANOTHER_FOLDER,
    files_of,
    holds_a_run,
    make_folder,
    refuse_folders,
    remove_files,
)
from secfed.storage import flock
from secfed.storage.atomic import unwritable_errors


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """The folder for a run that replaces the one in ``out``: a new one beside it, which takes its place.

    The earlier run stays until the block has ended without an error. Then two renames put the new one in
    its place: whoever is killed between them has both, whole, and the next call goes on. What no run writes
    moves over.

    Raises:
        ConfigError: as :func:`~secfed.runs.run_folder.prepare`; or there can be no folder beside it; or
            another command is replacing it.
    """
    place = out.resolve()
    new, old = (place.with_name(f".{place.name}.{word}") for word in ("new", "old"))
    with unwritable_errors(place):
        _take_place(place, new, old)
    if not holds_a_run(out, overwrite=True):
        make_folder(out)
        yield out
        return
    refuse_folders(files_of(place))
    if place.is_mount():
        raise ConfigError(f"--out {out}: a disk is mounted there.", remedy="name a folder in it")
    make_folder(new)
    with _alone(new, out):
        try:
            _clear(new)  # of a run that was killed
            yield new
            with unwritable_errors(place):
                place.rename(old)
                _take_place(place, new, old)
        except BaseException:
            if place.exists():
                shutil.rmtree(new, ignore_errors=True)
            raise


def _take_place(place: Path, new: Path, old: Path) -> None:
    """From the first rename on, again and again with the same end; without it nothing happens."""
    if not old.is_dir():
        return
    if not place.exists():
        new.rename(place)
    remove_files(list(files_of(old)))
    _remove_empty(old)
    if old.is_dir():
        _move(old, place)
        _remove_empty(old)
    if old.is_dir():
        old.rmdir()  # says that something is left in it


def _move(old: Path, place: Path) -> None:
    """What no run writes, whole folders as they are."""
    for path in sorted(old.iterdir()):
        target = place / path.name
        if not target.exists():
            path.rename(target)
        elif path.is_dir() and not path.is_symlink():
            _move(path, target)


def _remove_empty(folder: Path) -> None:
    """This folder and those in it, where nothing is in them."""
    for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        with suppress(OSError):  # something is left in it
            path.rmdir()
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def _alone(new: Path, out: Path) -> Iterator[None]:
    """Hold the new folder; the lock of a killed process goes with it."""
    descriptor = os.open(new, os.O_RDONLY)
    try:
        try:
            flock.lock(descriptor)
        except BlockingIOError:
            message = f"--out {out}: another command is replacing this run."
            raise ConfigError(message, remedy=ANOTHER_FOLDER) from None
        yield
    finally:
        os.close(descriptor)


def _clear(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
