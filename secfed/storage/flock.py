"""Locks of open files that the system gives up with their process: flock(2) of Linux and macOS.

Where Python has no ``fcntl``, :func:`lock` locks nothing: a simulation is one process, and works there.
Whatever more than one process changes (a hospital's folder, a study centre's) asks :func:`needed` first.
"""

from __future__ import annotations

import platform

from secfed.errors import ConfigError

try:
    import fcntl
except ModuleNotFoundError:
    AVAILABLE = False
else:
    AVAILABLE = True


def lock(descriptor: int, *, wait: bool = False) -> None:
    """Have the open file for oneself.

    Raises:
        BlockingIOError: somebody else has it, and this was not to ``wait``.
    """
    if AVAILABLE:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(descriptor: int) -> None:
    """Give it up, also where a child that was forked has the file open, too."""
    if AVAILABLE:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def needed() -> None:
    """Refuse a system without locks.

    Raises:
        ConfigError: processes could change the same file at the same time.
    """
    if not AVAILABLE:
        raise ConfigError(
            f"this system ({platform.system()}) has no file locks (fcntl), which keys and studies need",
            remedy="run it on Linux; simulations and verification work here",
        )
