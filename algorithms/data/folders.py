"""Where data sets lie."""

from __future__ import annotations

import os
from pathlib import Path

from secfed.errors import DataError


def data_folder() -> Path:
    """The folder that holds data sets which are not part of secfed: SECFED_DATA or ``../shared/data``."""
    return Path(os.environ.get("SECFED_DATA") or Path("..") / "shared" / "data")


def existing_file(data_set: str, path: Path) -> Path:
    """The path of a published file, if it exists."""
    if not path.is_file():
        raise DataError(
            f"{data_set}: {path} {'is a folder, not a file' if path.is_dir() else 'does not exist'}",
            remedy="set the environment variable SECFED_DATA to the folder that contains the file, or "
            "data.path where the data set has it",
        )
    return path
