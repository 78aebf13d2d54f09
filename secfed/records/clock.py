"""Dates in a ledger, and a clock that disagrees with them.

An entry is never dated before the one above it. So a clock that was once ahead leaves dates ahead of the
clock, and while it is ahead a period can end too early. Nothing is paid until the clock agrees with the
ledger again: which of the two is right is for people to find out, and no guess may free budget.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from secfed.errors import TranscriptError
from secfed.records.hash_chain import Entry

LAST_S: Final = 253_402_300_799  # the end of the year 9999, after which there is no date
AHEAD_S: Final = 3600  # two clocks that are right differ by less


def checked_s(ledger: Path, now_s: float) -> int:
    """What a clock says, if that is a date."""
    if not 0 <= now_s <= LAST_S:
        raise TranscriptError(
            f"{ledger}: {own_clock()} says {now_s:.0f} s since 1970, which is not a date",
            remedy="set that clock",
        )
    return int(now_s)


def time_s(entry: Entry) -> int:
    """When an entry was made; 0 if it does not say."""
    return int(entry.body.get("time_s", 0))


def is_ahead(dated_s: int, now_s: float) -> bool:
    """Whether a date is further ahead of the clock than two clocks differ."""
    return dated_s > now_s + AHEAD_S


def refuse_ahead(ledger: Path, entries: Iterable[Entry], now_s: int, anew: str) -> None:
    """Refuse to pay before the time of an earlier entry; ``anew`` is the remedy where the clock is right.

    ``TranscriptError``: names the first entry that is too far ahead.
    """
    for entry in entries:
        if is_ahead(time_s(entry), now_s):
            raise TranscriptError(
                f"{ledger}, line {entry.seq + 1} is dated {shown(time_s(entry))}; {own_clock()} says "
                f"{shown(now_s)}, {apart(time_s(entry) - now_s)} earlier",
                remedy="set that clock; if it is right now, and was wrong when that line was written, "
                f"{anew}",
            )


def own_clock() -> str:
    """How messages name the clock of the machine that says something: several machines write into one log."""
    return f"the clock of this machine ({platform.node() or 'without a name'})"


def apart(seconds: float) -> str:
    """How far two clocks differ, such as "2 days, 3 hours"; the two largest units that count."""
    left, parts = round(abs(seconds)), []
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return ", ".join(parts[:2]) or "0 seconds"


def shown(moment_s: int) -> str:
    """A date for people."""
    return f"{datetime.fromtimestamp(min(moment_s, LAST_S), UTC):%Y-%m-%d %H:%M} UTC"
