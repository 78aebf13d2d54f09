"""Named places at which a test can pull the plug; they do nothing unless a test asked for it.

``SECFED_CRASH_AT=name`` kills the process when it reaches that place for the first time, ``name:3`` when it
does so for the third time. The process ends as by ``kill -9``: nothing is flushed and nothing is cleaned
up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Final

VARIABLE: Final = "SECFED_CRASH_AT"

_seen: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Die here if the environment says so; tests name the place exactly."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return
    wanted, _, count = asked.rpartition(":") if asked[-1:].isdigit() and ":" in asked else (asked, "", "1")
    if name != wanted:
        return
    _seen[name] += 1
    if _seen[name] == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
