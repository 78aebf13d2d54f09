"""How the agent of one folder is told from outside what to do: files in its state folder, and one signal.

agent.lock   held by the running agent, with its process id
.lock        held for a moment: by an agent until its process id is written, and by whoever looks for it
paused       while it is there, the agent takes no new work
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from secfed.deploy.policy.absence import PAUSED_TEXT
from secfed.errors import ConfigError, PolicyRefused
from secfed.storage import flock, private_files
from secfed.storage.atomic import unwritable_errors

_LOCK_FILE: Final = "agent.lock"
_PAUSED_FILE: Final = "paused"
_LOOK_S: Final = 0.1


def make_state_folder(state: Path) -> None:
    """Create the state folder for its owner only."""
    with unwritable_errors(state):
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_files.check_private(state)


@contextmanager
def only_agent(state: Path) -> Iterator[None]:
    """Be the only agent of a folder; ``ConfigError`` where another one is running."""
    descriptor = os.open(state / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Whoever looks must not meet the number of an earlier agent, nor be taken for an agent.
        with private_files.locked(state):
            if not _try_lock(descriptor):
                raise ConfigError(
                    f"{state}: another agent is running here", remedy="stop it first: secfed agent stop"
                )
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Whether no other process had the lock."""
    try:
        flock.lock(descriptor)
    except BlockingIOError:
        return False
    return True


def running(state: Path) -> int | None:
    """Process id of the agent that is running; None if there is none."""
    try:
        descriptor = os.open(state / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with private_files.locked(state):
            if _try_lock(descriptor):
                flock.unlock(descriptor)
                return None
            # Only while the lock is held does the number belong to the agent, and not to a later process.
            text = os.read(descriptor, 32).decode(errors="replace").strip()
            return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)


def stop(state: Path, timeout_s: float) -> bool:
    """Ask the running agent to end, and wait for it; whether there was one. ``ConfigError`` if it stays."""
    pid = running(state)
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        raise ConfigError(
            f"the agent (process {pid}) cannot be stopped: {os.strerror(error.errno or 0)}",
            remedy="run this as the agent's user",
        ) from None
    end = time.monotonic() + timeout_s
    while running(state) is not None:
        if time.monotonic() > end:
            raise ConfigError(
                f"the agent (process {pid}) did not end in {timeout_s:g} s",
                remedy="end that process; nothing will be lost",
            )
        time.sleep(_LOOK_S)
    return True


def check_not_paused(state: Path) -> None:
    """Refuse new work with ``PolicyRefused`` while the agent is paused."""
    if is_paused(state):
        raise PolicyRefused(PAUSED_TEXT, remedy="wait")


def is_paused(state: Path) -> bool:
    """Whether the agent takes no new work."""
    return (state / _PAUSED_FILE).exists()


def pause(state: Path) -> None:
    """Take no new work from the next exchange on."""
    make_state_folder(state)
    private_files.replace(state / _PAUSED_FILE, b"")


def resume(state: Path) -> None:
    """Take work again."""
    (state / _PAUSED_FILE).unlink(missing_ok=True)
