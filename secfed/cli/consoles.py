"""Where output goes, and how numbers look: results to stdout, progress and errors to stderr."""

from __future__ import annotations

import math

from rich.console import Console


def stdout() -> Console:
    """For results."""
    return Console(highlight=False)


def stderr() -> Console:
    """For progress, notes and errors."""
    return Console(stderr=True, highlight=False)


def plain_text(text: str) -> str:
    """Text from a file or a study without control characters, which could act on the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def show_number(value: float | None) -> str:
    """A metric: four decimals, or four digits when it is large or tiny."""
    if value is None or not math.isfinite(value):
        return "–"
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    return f"{value:.4f}"


def show_bytes(size: float) -> str:
    """A size in decimal units: ``812 B``, ``1.2 kB``, ``40.0 MB``."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def show_seconds(seconds: float) -> str:
    """A duration in seconds, without the unit."""
    if seconds >= 100:
        return f"{seconds:.0f}"
    return f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.3f}"


def plural(count: int, noun: str) -> str:
    """``1 hospital``, ``4 hospitals``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
