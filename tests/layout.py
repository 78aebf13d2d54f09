"""The layout of the repository, as the packaging tests read it off the tree."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("crypto", "dp", "algorithms", "deploy")
HOMES = ("secfed", *ROOMS)
EXAMPLES = "examples"  # data of the package, from a folder that is no room
with (ROOT / "pyproject.toml").open("rb") as _file:
    PROJECT: dict[str, Any] = tomllib.load(_file)


def files_of(home: str) -> Iterator[Path]:
    """Every file of one top-level package folder, relative to the root; symlinks are not followed."""
    for folder, subfolders, names in os.walk(ROOT / home):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        for name in names:
            if not name.startswith(".") and not name.endswith((".pyc", ".md")):
                yield (Path(folder) / name).relative_to(ROOT)


def in_wheel(path: Path) -> str:
    """Where a file of the tree lies inside the wheel: the rooms move into ``secfed/``."""
    return path.as_posix() if path.parts[0] == "secfed" else f"secfed/{path.as_posix()}"


def slug(heading: str) -> str:
    """The anchor of a heading, as common Markdown renderers make it."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")
