"""Rows as a pandas frame, for those who have pandas: it is no dependency of secfed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from secfed.errors import ConfigError


def frame(rows: Mapping[Any, Mapping[str, object]], index: str, *, whole: Collection[str]) -> Any:
    """A frame with a row per key; the ``whole`` columns stay whole numbers beside rows that have none.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        pandas = import_module("pandas")
    except ImportError:
        remedy = "pip install pandas; to_json() of the report has the same numbers"
        raise ConfigError("pandas is not installed", remedy=remedy) from None
    made = pandas.DataFrame([dict(row) for row in rows.values()], index=list(rows))
    return made.astype({name: "Int64" for name in whole if name in made}).rename_axis(index)
