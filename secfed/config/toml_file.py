"""TOML files, read with errors that name the file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from secfed.errors import ConfigError
from secfed.storage import private_files


def read_tables(path: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: unreadable, not TOML, nested too deeply, or with a number beyond 64 bits.
    """
    try:
        tables = tomllib.loads(private_files.read(path, what).decode("utf-8-sig"))  # some editors begin so
        private_files.check_depth(tables)
    except ValueError as error:  # also of a number with thousands of digits
        raise ConfigError(f"{path}: not valid TOML: {error}", remedy="correct that line") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply", remedy="write flat lists") from None
    key = _beyond_64_bits(tables)
    if key is not None:  # Python would not even write out 0xfff... of 5,000 digits
        raise ConfigError(f"{path}: {key[1:]}: a number beyond 64 bits", remedy="write a smaller number")
    return tables


def _beyond_64_bits(value: object) -> str | None:
    """Where the first such number is, as `.table.key[0]`; None if there is none, as TOML demands."""
    if isinstance(value, int):
        return None if -(1 << 63) <= value < 1 << 63 else ""
    items: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        items = ((f".{name}", item) for name, item in value.items())
    elif isinstance(value, list):
        items = ((f"[{at}]", item) for at, item in enumerate(value))
    for name, item in items:
        inside = _beyond_64_bits(item)
        if inside is not None:
            return name + inside
    return None
