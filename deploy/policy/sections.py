"""The tables of ``policy.toml``, one strict model each. What is not named in them is not permitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, Self, get_args
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from secfed.config.schema import Strict
from secfed.crypto import thresholds
from secfed.deploy.policy.rules import Rules
from secfed.deploy.policy.time_windows import Window
from secfed.errors import ConfigError

if TYPE_CHECKING:
    from secfed.study.study import Study

Relation = Literal[
    "add-or-remove-record", "replace-record", "replace-patient", "zero-out-site", "replace-site"
]


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


@dataclass(frozen=True)
class PolicyTables:
    """What a policy says, table by table."""

    approve: Literal["manual", "automatic"]
    studies: Studies
    protection: ProtectionRules
    privacy: PrivacyRules
    compute: Compute
    algorithms: Mapping[str, Rules] = field(default_factory=dict)
    models: Mapping[str, Rules] = field(default_factory=dict)
    data: tuple[DataSet, ...] = ()
    hours: tuple[Window, ...] = ()  # empty for always
    zone: ZoneInfo | None = None  # of the hours; None for the machine's own

    def data_set(self, study: Study) -> DataSet | None:
        """The data set that a study means; None if the policy names none that fits."""
        table = study.data.model_dump()
        return next((item for item in self.data if item.matches(table)), None)
