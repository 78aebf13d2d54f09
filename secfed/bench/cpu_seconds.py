"""Processor seconds of this process and of all below it, by what they are for.

Wall time of a busy machine says little about an engine; processor seconds can be compared there too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = 100  # of /proc on every platform of Linux that PyTorch comes for
_ACTOR: Final = "ray::_Actor"
_MOST_NAME_CHARS: Final = 24


def cpu_by_kind() -> dict[str, float]:
    """Seconds so far of ``driver``, of ``workers``, and of whatever else is below this process, by its name.

    Without those of processes that have ended; empty where there is no ``/proc``.
    """
    there = _processes()
    below = [os.getpid()] if there else []
    for process in below:  # which grows meanwhile
        below += [child for child, (parent, _) in there.items() if parent == process]
    found: Counter[str] = Counter()
    for process in below:
        found[_kind(process)] += there[process][1]
    return {kind: ticks / _TICKS_PER_S for kind, ticks in found.items()}


def per_round(before: Mapping[str, float], after: Mapping[str, float], rounds: int) -> dict[str, float]:
    """Seconds of one round, by kind."""
    return {kind: (seconds - before.get(kind, 0.0)) / rounds for kind, seconds in after.items()}


def _processes() -> dict[int, tuple[int, int]]:
    """Process -> its parent, and its ticks in user and system time."""
    found = {}
    for file in _PROC.glob("[0-9]*/stat"):
        try:
            fields = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(file.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    return found


def _kind(process: int) -> str:
    if process == os.getpid():
        return "driver"
    command = _command(process)
    if command == _command(os.getpid()) or command[0].startswith(_ACTOR):  # a fork, or an actor
        return "workers"
    script = next((part for part in command if part.endswith(".py")), command[0])
    return Path(script).name[:_MOST_NAME_CHARS]


def _command(process: int) -> list[str]:
    try:
        text = (_PROC / str(process) / "cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = "ended"
    return text.rstrip("\0").split("\0")
