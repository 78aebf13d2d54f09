"""Options of ``columns``: which columns a table has, and what they may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from secfed.algorithms.data import base
from secfed.algorithms.data.tabular.columns import Column, find_column
from secfed.algorithms.data.tabular.options import Cell, canonical
from secfed.config.schema import Strict, checked
from secfed.errors import ConfigError


class ColumnOptions(Strict):
    """``[data.columns.NAME]``: a number has ``low`` and ``high``, anything else ``categories``.

    A value that is not declared is missing at a hospital, whose people hear of it; in a simulation, and
    when a hospital tries a study before it joins, it is an error. ``outside`` declares another treatment.
    """

    low: float | None = Field(default=None, description="a number: the smallest value that counts")
    high: float | None = Field(default=None, description="a number: the largest value that counts")
    unit: str = Field(default="", max_length=32, description='a text such as "years" or "mg/dl"')
    categories: tuple[Cell, ...] | None = Field(
        default=None, description="an array of all categories; the first is the reference of a formula"
    )
    codes: dict[str, tuple[Cell, ...]] = Field(
        default={}, description="a table: category to the array of recorded values that mean it"
    )
    source: str | None = Field(
        default=None, min_length=1, description="the column of the file or view, if it has another name"
    )
    missing: tuple[Cell, ...] = Field(default=(), description='an array of values that mean "missing"')
    outside: Literal["refuse", "clip", "missing"] = Field(
        default="refuse",
        description='"refuse" (an error, but missing at a hospital), "clip" (to low or high) or "missing"',
    )

    def declared(self, name: str) -> Column:
        """The column of that name; a ConfigError says what does not fit together."""
        where = f"data.columns.{name}"
        if self.categories is None:
            if self.low is None or self.high is None:
                raise ConfigError(
                    f"{where}: declares neither numbers nor categories",
                    remedy="set low and high for numbers, categories for anything else",
                )
            if self.codes:
                raise ConfigError(f"{where}.codes: has no effect without categories", remedy="remove it")
            return Column.number(name, self.low, self.high, self.unit)
        for key in ("low", "high", "unit"):
            if key in self.model_fields_set:
                raise ConfigError(f"{where}.{key}: has no effect with categories", remedy="remove it")
        if self.outside == "clip":
            message = f"{where}.outside: a category cannot be clipped"
            raise ConfigError(message, remedy='set it to "refuse" or "missing"')
        names = tuple(map(str, self.categories))
        base.refuse_unknown(f"columns.{name}.codes", "category", self.codes, names)
        codes = list(self.positions)
        if len(names) < 2 or len(set(names)) < len(names) or len(codes) < len(self._codes()):
            raise ConfigError(
                f"{where}.categories: needs at least two, each with values of its own",
                remedy="list every category once, and every recorded value for one category",
            )
        for value in map(canonical, self.missing):
            if value in codes:
                raise ConfigError(
                    f"{where}.missing: {value!r} is a category, too", remedy="take it out of one of the two"
                )
        return Column.category(name, names)

    @property
    def positions(self) -> dict[str, int]:
        """Recorded value, as :func:`canonical` spells it, to the position of its category."""
        return dict(self._codes())

    def _codes(self) -> list[tuple[str, int]]:
        return [
            (canonical(code), position)
            for position, category in enumerate(self.categories or ())
            for code in self.codes.get(str(category), (category,))
        ]


class ColumnsOptions(base.DataOptions):
    """Options of ``columns``."""

    test_fraction: base.OfficialDivision = 0.0
    path: str = Field(
        description="a .csv, .parquet, .sqlite or .duckdb file, relative to the study file; for by-file with "
        '"{site}" in it'
    )
    view: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$",
        description="the view or table of a database, letters, digits and underscores; files have none",
    )
    columns: dict[str, ColumnOptions] = Field(
        min_length=1, description="a table [data.columns.NAME] for each column: low and high, or categories"
    )
    partition: Literal["by-column", "by-file", "iid", "dirichlet"] = Field(
        default="by-column", description='"by-column", "by-file", "iid" or "dirichlet"'
    )
    site_column: str | None = Field(
        default=None, description="the column of the file or view that names a record's site"
    )
    sites: int | tuple[str, ...] = Field(description="an array of sites, or a number for iid and dirichlet")
    skew_column: str | None = Field(
        default=None, description="for dirichlet: the column whose categories the sites hold unequally"
    )
    alpha: base.Alpha = 0.5
    min_records: base.MinRecords = 10
    patient_column: str | None = Field(
        default=None, description="the column of the file or view that names a record's patient"
    )

    @field_validator("columns", mode="before")
    @classmethod
    def _read_columns(cls, tables: Any) -> Any:
        if not isinstance(tables, Mapping):
            return tables
        for name, table in tables.items():
            if not isinstance(table, Mapping | ColumnOptions):
                raise ConfigError(
                    f"data.columns.{name}: is a value, not a table", remedy=f"write [data.columns.{name}]"
                )
        return {
            name: table
            if isinstance(table, ColumnOptions)
            else checked(ColumnOptions, table, f"data.columns.{name}")
            for name, table in tables.items()
        }

    @model_validator(mode="after")
    def _check(self) -> Self:
        declared = self.declared
        base.refuse_unused_alpha(self, self.partition)
        if self.partition in ("by-column", "by-file"):
            base.check_listed_sites(self.sites, self.partition)
        elif not isinstance(self.sites, int) or self.sites < 1:
            raise ConfigError(
                f"data.sites: {self.partition} divides the table among a number of simulated sites",
                remedy='set data.sites to a number, or use "by-column" or "by-file"',
            )
        self._check_key("site_column", "by-column")
        self._check_key("skew_column", "dirichlet")
        if (
            self.skew_column is not None
            and not find_column(declared, self.skew_column, "data.skew_column").categories
        ):
            message = f"data.skew_column: {self.skew_column!r} has no categories"
            raise ConfigError(message, remedy="name a column with categories")
        if self.partition == "by-file" and "{site}" not in self.path and not self.path.startswith("/"):
            raise ConfigError(
                "data.path: by-file needs a file of each site",
                remedy='write "{site}" where the name of the site stands, as in "tables/{site}.csv"',
            )
        return self

    def _check_key(self, key: str, partition: str) -> None:
        if (getattr(self, key) is not None) != (self.partition == partition):
            raise ConfigError(
                f'data.{key}: belongs to partition = "{partition}", which needs it',
                remedy=f'set data.{key} and data.partition = "{partition}", or neither',
            )

    @property
    def declared(self) -> tuple[Column, ...]:
        """What the columns may hold."""
        return tuple(options.declared(name) for name, options in self.columns.items())

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of the file or view that are read, each once."""
        keys = filter(None, (self.site_column, self.patient_column))
        return tuple(dict.fromkeys([*self._recorded, *keys]))

    @property
    def _recorded(self) -> list[str]:
        return [options.source or name for name, options in self.columns.items()]

    def for_policy(self, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        """``columns`` names those of the file; the bounds and categories that a study gives them are free."""
        return {**super().for_policy(mode), "columns": self._recorded}
