"""The ``[algorithm]`` table of ``statistics``: the analyses of a study, and what is withheld of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field, SerializeAsAny, field_validator

from secfed.config.schema import Options, Strict, checked, suggestion
from secfed.errors import ConfigError

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,30}")


class AnalysisOptions(Strict):
    """What every ``[algorithm.analyses.NAME]`` has."""

    kind: str = Field(description="which analysis")


class CountsOptions(AnalysisOptions):
    """Options of ``counts``."""

    columns: tuple[str, ...] = Field(
        min_length=1, max_length=2, description="one column of categories, or two for a cross table"
    )


class DescribeOptions(AnalysisOptions):
    """Options of ``describe``."""

    columns: tuple[str, ...] = Field(min_length=1, description="the columns to describe")
    by: str | None = Field(default=None, description="a column of categories: one group for each")
    bins: int = Field(
        default=200, ge=2, le=10_000, description="cells from low to high that quantiles are found in"
    )


class HistogramOptions(AnalysisOptions):
    """Options of ``histogram``."""

    column: str = Field(description="a column of numbers")
    by: str | None = Field(default=None, description="a column of categories: one histogram for each")
    bins: int = Field(default=20, ge=2, le=1000, description="cells of equal width from low to high")


class GlmOptions(AnalysisOptions):
    """Options of ``glm``."""

    formula: str = Field(description='for example "disease ~ age + sex + C(stage)"')
    family: Literal["gaussian", "binomial", "poisson"] = Field(
        default="gaussian", description='"gaussian", "binomial" (logistic) or "poisson" (logarithmic)'
    )
    max_steps: int = Field(
        default=15,
        ge=2,
        le=100,
        description="the most sums that estimate it, 2 to 100; with [privacy] never more than 5",
    )
    ridge: float = Field(
        default=0.0,
        ge=0,
        description="half of this, times every squared coefficient but the intercept's, is added",
    )


class CorrelationOptions(AnalysisOptions):
    """Options of ``correlation``."""

    columns: tuple[str, ...] = Field(min_length=2, description="two or more columns of numbers")


class TTestOptions(AnalysisOptions):
    """Options of ``t-test``."""

    column: str = Field(description="a column of numbers")
    by: str = Field(description="a column of two categories")


class RocOptions(AnalysisOptions):
    """Options of ``roc``."""

    of: str = Field(description="the name of a binomial glm of this study")
    bins: int = Field(
        default=500, ge=10, le=10_000, description="cells from 0 to 1 that scores are counted in"
    )


class SurvivalOptions(AnalysisOptions):
    """What analyses of survival have in common."""

    time: str = Field(description="a column of numbers: how long a record was observed")
    event: str = Field(
        description="a column of two categories, or of 0 and 1: whether it ended with the event"
    )
    interval: float = Field(
        gt=0, description="the width of the time grid: times are rounded up to a multiple of it"
    )


class KaplanMeierOptions(SurvivalOptions):
    """Options of ``kaplan-meier``."""

    by: str | None = Field(default=None, description="a column of categories: one curve for each")


class CoxOptions(SurvivalOptions):
    """Options of ``cox``."""

    formula: str = Field(description='the terms of the hazard, for example "age + sex"')
    ties: Literal["efron", "breslow"] = Field(default="efron", description='"efron" or "breslow"')
    max_steps: int = Field(default=15, ge=2, le=100, description="the most sums that estimate it, 2 to 100")
    ridge: float = Field(
        default=0.0, ge=0, description="half of this, times every squared coefficient, is added"
    )


KINDS: Final[Mapping[str, type[AnalysisOptions]]] = {
    "counts": CountsOptions,
    "describe": DescribeOptions,
    "histogram": HistogramOptions,
    "glm": GlmOptions,
    "correlation": CorrelationOptions,
    "t-test": TTestOptions,
    "roc": RocOptions,
    "kaplan-meier": KaplanMeierOptions,
    "cox": CoxOptions,
}


class StatisticsOptions(Options):
    """Options of ``statistics``."""

    analyses: dict[str, SerializeAsAny[AnalysisOptions]] = Field(
        description="one table [algorithm.analyses.NAME] for each analysis, with its kind"
    )
    max_records: int = Field(
        default=100_000, ge=1, le=10**9, description="the most records of a site; bounds the sums"
    )
    min_cell: int = Field(
        default=5, ge=1, description="a number of records from 1 to below this is withheld, at least 1"
    )
    min_hospitals: int = Field(
        default=2, ge=1, description="a cell of a table that fewer hospitals have records in is withheld"
    )
    max_parameter_share: float = Field(
        default=0.33,
        gt=0,
        le=1,
        description="above 0 to 1: the most parameters of an estimate per record, or per event",
    )
    level: float = Field(default=0.95, gt=0, lt=1, description="of confidence intervals, between 0 and 1")

    @field_validator("analyses", mode="before")
    @classmethod
    def _kinds(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given:
            raise ConfigError(
                "algorithm.analyses: names no analysis",
                remedy='add a table, for example [algorithm.analyses.sexes] with kind = "counts" and columns',
            )
        return {name: _analysis(name, table) for name, table in given.items()}


def _analysis(name: str, table: Any) -> AnalysisOptions:
    if isinstance(table, AnalysisOptions):
        return table
    where = f"algorithm.analyses.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: cannot be the name of an analysis",
            remedy="use lower-case letters, digits and hyphens, at most 31",
        )
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: is a value, not a table", remedy=f"write [{where}]")
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        what = "is missing" if kind is None else f"there is no analysis {kind!r}"
        raise ConfigError(f"{where}.kind: {what}", remedy=suggestion(str(kind or ""), KINDS, "use one of: "))
    return checked(KINDS[kind], table, where)
