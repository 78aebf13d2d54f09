"""Options of ``csv``: what the columns of a table mean."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.data import base
from secfed.algorithms.framework.targets import Targets
from secfed.config.schema import LATER
from secfed.errors import ConfigError, DataError

Cell = str | int | float

ALWAYS_MISSING = frozenset({"", "nan", "na", "n/a", "null", "none"})


class TableOptions(base.SplitOptions):
    """Options of ``csv``.

    A site's own statistics hide what differs *between* sites. Where usual values are known, ``scale`` is the
    better choice: a public constant per column, which reads no record at all.
    """

    path: str = Field(description="the CSV file, relative to the study file")
    partition: Literal["by-column", "iid", "dirichlet"] = Field(
        default="by-column", description='"by-column", "iid" or "dirichlet"'
    )
    site_column: str | None = Field(default=None, description="the column that names a record's site")
    sites: int | tuple[str, ...] = Field(description="an array of sites, or a number for iid and dirichlet")
    alpha: base.Alpha = 0.5
    min_records: base.MinRecords = 10
    patient_column: base.PatientColumn = None
    label_column: str = Field(description="the column that holds the label")
    label_above: float | None = Field(default=None, description="a number: labels above it are class 1")
    labels: tuple[Cell, ...] | None = Field(default=None, description="an array of all labels in class order")
    outcome: tuple[float, float] | None = Field(
        default=None,
        json_schema_extra=LATER,
        description="regression: [low, high], the bounds of the numbers in label_column",
    )
    time_grid: tuple[float, ...] | None = Field(
        default=None,
        json_schema_extra=LATER,
        description="survival: an array of ends of intervals, ascending; label_column holds times",
    )
    event_column: str | None = Field(
        default=None,
        json_schema_extra=LATER,
        description="survival: the column that holds 1 if the event happened at that time, 0 if not by then",
    )
    feature_columns: tuple[str, ...] = Field(min_length=1, description="an array of column names")
    categorical: dict[str, tuple[Cell, ...]] = Field(
        default={}, description="a table: column to the array of all its categories (one-hot)"
    )
    missing_values: tuple[Cell, ...] = Field(default=(), description='an array of values that mean "missing"')
    zero_is_missing: tuple[str, ...] = Field(default=(), description='an array of columns: 0 is "missing"')
    missing_indicator: tuple[str, ...] = Field(
        default=(), description="an array of columns that get a second column: 1 where the value is missing"
    )
    impute: Literal["median", "centre", "none"] = Field(
        default="median",
        description='"median" (of the site), "centre" (the public centre in data.scale) or "none"',
    )
    scale: dict[str, tuple[float, float]] = Field(
        default={}, description="a table: column to [centre, spread], the same at every site"
    )
    standardize: bool = Field(
        default=True, description="true or false: scale the others by each site's own statistics"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        base.refuse_unused_alpha(self, self.partition)
        self._check_sites()
        self._check_labels()
        self._check_columns()
        return self

    def _check_sites(self) -> None:
        if self.partition == "by-column":
            if self.site_column is None:
                raise ConfigError(
                    "data.site_column: is missing",
                    remedy='name the column, or set data.partition = "iid" or "dirichlet"',
                )
            base.check_listed_sites(self.sites, "by-column")
        elif not isinstance(self.sites, int) or self.sites < 1 or self.site_column is not None:
            raise ConfigError(
                f"data.sites: {self.partition} divides the table among a number of simulated sites",
                remedy='set data.sites to a number and remove data.site_column, or use "by-column"',
            )

    def _check_labels(self) -> None:
        kinds = (self.label_above, self.labels, self.outcome, self.time_grid)
        if sum(kind is not None for kind in kinds) != 1:
            raise ConfigError(
                "data.label_above: set either label_above or labels",
                remedy="use label_above = 0 for two classes by threshold, labels = [...] for listed classes, "
                "outcome = [low, high] for numbers, time_grid = [...] for survival",
            )
        if (self.time_grid is None) != (self.event_column is None):
            raise ConfigError(
                "data.event_column: survival needs both event_column and time_grid",
                remedy="name the column of events, and the ends of the intervals of time",
            )
        if self.targets.task != "classification" and self.partition == "dirichlet":
            message = 'data.partition: "dirichlet" divides records by their classes, and there are none'
            raise ConfigError(message, remedy='use "iid" or "by-column"')
        if self.labels is not None and not len(set(map(canonical, self.labels))) == len(self.labels) > 1:
            raise ConfigError("data.labels: needs at least two labels", remedy="list every class once")
        if self.label_column in self.feature_columns:
            message = f"data.feature_columns: contains the label, {self.label_column!r}"
            raise ConfigError(message, remedy="take it out of data.feature_columns")

    def _check_columns(self) -> None:
        for column, (_, spread) in self.scale.items():
            if spread <= 0 or column in self.categorical:
                message = f"data.scale.{column}: needs a spread above 0 and a column that is not categorical"
                raise ConfigError(message, remedy="write [centre, spread], for example age = [55, 10]")
        base.refuse_repeated("feature_columns", "column", self.feature_columns)
        unscaled = [column for column in self.numeric_columns if column not in self.scale]
        if self.impute == "centre" and unscaled:
            message = f"data.impute: {unscaled[0]!r} has no public centre"
            raise ConfigError(message, remedy="give [centre, spread] for every numeric column in data.scale")
        taken = (*self.feature_columns, self.label_column, self.site_column)
        if self.event_column is not None and self.event_column in taken:
            message = "data.event_column: is a feature, the label or the site, too"
            raise ConfigError(message, remedy="name the column that holds the event")
        if self.patient_column is not None and self.patient_column in (*taken, self.event_column):
            message = "data.patient_column: is a feature, the label or the site, too"
            raise ConfigError(message, remedy="name a column that holds nothing but the patient")
        for key in ("categorical", "scale", "zero_is_missing", "missing_indicator"):
            base.refuse_unknown(key, "feature column", getattr(self, key), self.feature_columns)

    @property
    def numeric_columns(self) -> tuple[str, ...]:
        """Feature columns that are not one-hot, in order; they come first in a record."""
        return tuple(column for column in self.feature_columns if column not in self.categorical)

    @property
    def width(self) -> int:
        """Features of one record: numeric, one-hot, indicators."""
        one_hot = sum(len(categories) for categories in self.categorical.values())
        return len(self.numeric_columns) + one_hot + len(self.missing_indicator)

    @property
    def classes(self) -> int:
        """How many labels, or other outputs of a model, there are."""
        return self.targets.outputs

    @property
    def targets(self) -> Targets:
        """What a record's target is."""
        try:
            if self.outcome is not None:
                return Targets.of_outcomes(*self.outcome)
            if self.time_grid is not None:
                return Targets.of_times(self.time_grid)
        except DataError as error:
            key = "outcome" if self.outcome is not None else "time_grid"
            raise ConfigError(f"data.{key}: {error.message}", remedy=error.remedy or "") from None
        return Targets.of_classes(2 if self.labels is None else len(self.labels))


def canonical(value: Cell) -> str:
    """One spelling per value: "1", "1.0" and 1 are the same label or category, "-0.0" and 0 too."""
    text = str(value).strip()
    try:
        return str(number_of(text) + 0.0)  # which makes 0.0 of -0.0
    except ValueError:
        return text.lower() if text.lower() in ALWAYS_MISSING else text


def number_of(text: str) -> float:
    """The number in a cell; ValueError for none, and for "1_2", which Python by itself reads as 12."""
    if "_" in text:
        raise ValueError
    return float(text)
