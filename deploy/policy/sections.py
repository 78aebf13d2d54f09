"""The tables of ``policy.toml``, one strict model each. What is not named in them is not permitted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Final, Literal, Self, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, model_validator

from secfed.config.schema import Strict
from secfed.crypto import thresholds
from secfed.deploy.policy.rules import Rules
from secfed.errors import ConfigError

Relation = Literal[
    "add-or-remove-record", "replace-record", "replace-patient", "zero-out-site", "replace-site"
]


Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_TIME: Final = r"^([01][0-9]|2[0-3]):[0-5][0-9]$|^24:00$"


class Studies(Strict):
    """``[studies]``: which ones, by name or by digest; either is enough."""

    names: tuple[str, ...] = Field(
        default=(), description='an array of study names; "*" stands for anything, as in "heart-*"'
    )
    digests: tuple[str, ...] = Field(
        default=(), description="an array of study digests, 64 hexadecimal digits each"
    )
    max_rounds: int = Field(default=1000, ge=0, description="the largest number of rounds, at least 0")
    near_twins: Literal["ask", "refuse", "permit"] = Field(
        default="ask",
        description='"ask", "refuse" or "permit": studies that resemble an earlier one on the same data set',
    )
    subtractable: Literal["ask", "refuse", "permit"] = Field(
        default="ask",
        description='"ask", "refuse" or "permit": statistics that tell small numbers together with earlier '
        "ones on the same data set",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for digest in self.digests:
            if not re.fullmatch(r"[0-9a-f]{64}", digest):
                raise ConfigError(
                    f"studies.digests: {digest[:70]!r} is not a study digest",
                    remedy="write all 64 hexadecimal digits in lower case",
                )
        return self


class ProtectionRules(Strict):
    """``[protection]``."""

    names: tuple[Literal["plain", "masked", "encrypted"], ...] = Field(
        default=("masked", "encrypted"), description='an array of "masked" and "encrypted"'
    )
    reveal: tuple[Literal["aggregator", "sites"], ...] = Field(
        default=("aggregator", "sites"),
        description='an array of "aggregator" and "sites": who may read sums; encrypted ones sites only',
    )
    kept_state: Literal["refuse", "permit"] = Field(
        default="refuse",
        description='"refuse" or "permit": algorithms that keep something of this site from round to round, '
        "where the aggregator reads sums without noise",
    )
    keystreams: tuple[Literal["chacha20", "aes-256-ctr"], ...] = Field(
        default=("chacha20", "aes-256-ctr"),
        description='an array of "chacha20" and "aes-256-ctr": what may make masks',
    )
    graphs: tuple[Literal["complete", "sparse"], ...] = Field(
        default=("complete", "sparse"),
        description='an array of "complete" and "sparse": who shares masks with whom; "sparse" promises less',
    )
    schemes: tuple[Literal["bfv", "ckks"], ...] = Field(
        default=("bfv",), description='an array of "bfv" and "ckks": schemes of encrypted protection'
    )
    min_cohort: int = Field(
        default=thresholds.FLOOR, ge=2, description="the least number of sites in a sum, 3 or more"
    )
    min_threshold: int = Field(
        default=thresholds.FLOOR, ge=2, description="the least number of sites that must answer, 3 or more"
    )
    colluders: int | None = Field(
        default=None,
        ge=0,
        description="how many sites a study must tolerate that collude with the aggregator: masked tolerates "
        "ceil(n/3) - 1 of n unless the study says otherwise, encrypted none; leave it out for no demand",
    )
    max_elements: int = Field(
        default=1 << 31, ge=1, description="the largest number of elements of one update"
    )
    max_processes: int = Field(default=0, ge=0, le=64, description="worker processes a study may ask for")


class PrivacyRules(Strict):
    """``[privacy]``: the floor under every study's differential privacy."""

    require: bool = Field(default=True, description="true or false: refuse studies without privacy")
    units: tuple[Literal["record", "group", "site"], ...] = Field(
        default=("record", "group"), description='an array of "record", "group" and "site"'
    )
    noise: tuple[Literal["site", "sum"], ...] = Field(
        default=("site",),
        description='an array of "site" and "sum": who adds the noise that hides a record; under "sum" its '
        "guarantee relies on the other hospitals' shares",
    )
    max_epsilon: float | None = Field(default=None, gt=0, description="the largest epsilon of one study")
    max_delta: float | None = Field(
        default=None, gt=0, lt=1, description="the largest delta of one study, well below 1 / records"
    )
    max_delta_times_records: float = Field(
        default=10.0,
        gt=0,
        description="refuse a study whose delta is this or more divided by the training records here",
    )
    adjacency: tuple[Relation, ...] = Field(
        default=get_args(Relation), description="an array of relations between neighbouring data sets"
    )
    accountants: tuple[Literal["pld", "prv", "rdp"], ...] = Field(
        default=("pld", "prv", "rdp"), description='an array of "pld", "prv" and "rdp"'
    )
    metrics: tuple[Literal["withheld", "private", "unprotected"], ...] = Field(
        default=("withheld", "private"),
        description='an array of "withheld", "private" and "unprotected" (no noise)',
    )
    weights: tuple[Literal["withheld", "unprotected"], ...] = Field(
        default=("withheld",), description='an array of "withheld" and "unprotected" (no noise)'
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("max_epsilon", "max_delta"):
            if self.require and getattr(self, key) is None:
                raise ConfigError(
                    f"privacy.{key}: is missing",
                    remedy=f"set privacy.{key}, or privacy.require = false to permit studies without privacy",
                )
        return self


class BudgetRules(Strict):
    """``[[data.budget]]``: what one data set may spend, over all studies."""

    epsilon: float = Field(gt=0, description="above 0: the limit")
    delta: float = Field(gt=0, lt=1, description="between 0 and 1: at which epsilon is stated")
    period_days: int | None = Field(
        default=None, ge=1, description="counts the last so many days, 365 for a year; without it, everything"
    )
    protects: Literal["record", "site"] = Field(default="record", description='"record" or "site"')


class Compute(Strict):
    """``[compute]``."""

    gpu: bool = Field(default=False, description="true or false: training may use the GPU")


class DataSection(Strict):
    """``[[data]]`` without its rules and budgets."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="a name for its ledger: a-z, 0-9, '.', '_', '-'"
    )
    source: str = Field(min_length=1, description="what studies write as data.name, for example csv")
    path: str | None = Field(default=None, min_length=1, description="where the file is on this machine")
    study_path: str | None = Field(
        default=None,
        min_length=1,
        description="what studies write as data.path; default the name of the file",
    )


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


@dataclass(frozen=True)
class DataSet:
    """A data set that studies may use."""

    section: DataSection
    options: Rules | None  # for the other settings of a study's [data]; None permits all of them
    budgets: tuple[BudgetRules, ...]

    @property
    def name(self) -> str:
        """Name of its ledger."""
        return self.section.name

    @property
    def path(self) -> Path | None:
        """Where it is on this machine. Never part of a message to anyone else."""
        return None if self.section.path is None else Path(self.section.path)

    @property
    def study_path(self) -> str | None:
        """What a study calls it in ``data.path``."""
        if self.section.study_path is not None or self.section.path is None:
            return self.section.study_path
        return PurePosixPath(self.section.path).name

    def matches(self, table: Mapping[str, object]) -> bool:
        """Whether a study's ``[data]`` means this data set."""
        if table.get("name") != self.section.source:
            return False
        asked = table.get("path")
        return asked is None or asked == self.study_path
