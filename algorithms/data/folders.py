"""Where data sets lie."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """The folder that holds data sets which are not part of secfed: SECFED_DATA or ``../shared/data``."""
    return Path(os.environ.get("SECFED_DATA") or Path("..") / "shared" / "data")
