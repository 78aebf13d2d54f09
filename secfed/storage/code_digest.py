"""Which code runs: one digest over every file of the installed package but the examples.

A wheel and a checkout of equal files have equal digests; `make release` writes the digest beside the wheel.
Security: it tells versions apart. Software that was changed to lie can also lie about this.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent.parent
_EXAMPLES: Final = "examples"  # in a wheel only


@cache
def code_digest(package: Path = PACKAGE) -> str:
    """SHA-256 over names and digests of the files, in hexadecimal; notes and caches are left out."""
    lines = []
    for folder, below, names in os.walk(package, followlinks=True):  # the rooms are links in a checkout
        skipped = ("__pycache__", _EXAMPLES) if folder == str(package) else ("__pycache__",)
        below[:] = [name for name in below if name not in skipped]
        for name in names:
            path = Path(folder) / name
            if not name.startswith(".") and path.suffix not in (".pyc", ".md"):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                lines.append(f"{digest}  {path.relative_to(package).as_posix()}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
