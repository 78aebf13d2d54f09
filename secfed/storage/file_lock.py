"""Turns at a ledger: one process or thread at a time, and nobody waits for ever while others come and go.

With one lock file alone, a study with much to pay starves the others: whoever gives up the lock and wants it
again has it before those who sleep between two tries. So there are two files. Whoever wants the ledger first
takes ``LEDGER.next``, waits for ``LEDGER.lock`` beside nobody but its holder, and then gives up
``LEDGER.next``.

Tries with pauses, because a call that blocks has no time limit without a signal or a helper thread. The locks
of a killed process go with it. They are given up by name, not by closing the file, because a child that was
forked meanwhile has the file open, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from secfed.errors import TranscriptError
from secfed.storage import flock

_PAUSE_S: Final = 0.02


@contextmanager
def locked(ledger: Path, timeout_s: float) -> Iterator[None]:
    """Have the ledger for oneself.

    Raises:
        TranscriptError: no turn in that time, or the folder cannot be written.
    """
    deadline_s = time.monotonic() + timeout_s
    with _locked(ledger, ".lock") as mine:
        with _locked(ledger, ".next") as first:
            _wait(ledger, first, deadline_s, timeout_s)
            _wait(ledger, mine, deadline_s, timeout_s)
        yield


@contextmanager
def _locked(ledger: Path, suffix: str) -> Iterator[int]:
    """A lock file, not locked yet; free again afterwards."""
    path = ledger.with_name(ledger.name + suffix)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    except OSError as error:
        raise TranscriptError(
            f"{path}: {os.strerror(error.errno or 0)}", remedy="check that the folder exists and is writable"
        ) from None
    try:
        yield descriptor
    finally:
        flock.unlock(descriptor)
        os.close(descriptor)


def _wait(ledger: Path, descriptor: int, deadline_s: float, timeout_s: float) -> None:
    while True:
        try:
            flock.lock(descriptor)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise TranscriptError(
                    f"{ledger}: other studies are using it, and no turn came in {timeout_s:g} s",
                    remedy="try again; if that does not help, see which process has it open",
                ) from None
            time.sleep(_PAUSE_S)
        else:
            return
