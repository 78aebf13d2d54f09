"""When a site works: windows of the week in local time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, model_validator

from secfed.config.schema import Strict
from secfed.errors import ConfigError

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_TIME: Final = r"^([01][0-9]|2[0-3]):[0-5][0-9]$|^24:00$"


class Window(Strict):
    """``[[hours]]``: on these days from ``start`` to ``end``; past midnight if ``end`` is the earlier."""

    days: tuple[Day, ...] = Field(
        default=DAYS, min_length=1, description='an array of "mon" to "sun": the days on which it starts'
    )
    start: str = Field(pattern=_TIME, description='a time such as "20:00"')
    end: str = Field(pattern=_TIME, description='a time such as "06:00", or "24:00"')

    @model_validator(mode="after")
    def _check(self) -> Self:
        if _minutes(self.start) in (_minutes(self.end), 24 * 60):
            raise ConfigError(
                f"hours: a window from {self.start} to {self.end} is never open",
                remedy='for the whole day write start = "00:00", end = "24:00"',
            )
        return self

    def is_open(self, local: datetime) -> bool:
        """Whether the window is open at this local time; the end is not part of it."""
        now = local.hour * 60 + local.minute
        start, end = _minutes(self.start), _minutes(self.end)
        today = DAYS[local.weekday()] in self.days
        if start < end:
            return today and start <= now < end
        yesterday = DAYS[(local - timedelta(days=1)).weekday()] in self.days
        return (today and now >= start) or (yesterday and now < end)

    def describe(self) -> str:
        """For people."""
        days = "daily" if set(self.days) == set(DAYS) else ", ".join(self.days)
        return f"{days} {self.start} to {self.end}"


def is_open(windows: Sequence[Window], now: datetime, zone: ZoneInfo | None) -> bool:
    """Whether a site works at this moment; without windows it always does, without zone in the machine's."""
    local = now.astimezone(zone)
    return not windows or any(window.is_open(local) for window in windows)


def time_zone(name: str) -> ZoneInfo:
    """The time zone of that name."""
    if re.fullmatch(r"[A-Za-z0-9_+/-]{1,64}", name):
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise ConfigError(
        f"timezone: {name[:64]!r} is not known on this machine", remedy='write for example "Europe/Berlin"'
    )


def _minutes(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)
