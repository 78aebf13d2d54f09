"""Tables with declared columns: raw values, as statistics read them.

What a column may hold stands in the study (bounds and unit of a number, the list of categories), so that the
shape of every sum and its bounds are public, and no hospital shows by an answer what its records contain.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.framework.datasets import FederatedData, SiteId
from secfed.config.schema import suggestion
from secfed.errors import ConfigError, DataError

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """What a column may hold: numbers from ``low`` to ``high``, or one of ``categories``.

    The first category is the reference of a formula.
    """

    name: str
    kind: Literal["number", "category"]
    low: float = 0.0  # of a number, in its unit; of a category, its first position
    high: float = 0.0  # of a number, in its unit; of a category, its last position
    unit: str = ""
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or not self.name.isascii() or keyword.iskeyword(self.name):
            raise ConfigError(
                f"data.columns: {self.name!r} cannot be the name of a column",
                remedy="use letters, digits and underscores, and name the file's column in source",
            )
        if not -math.inf < self.low < self.high < math.inf:
            raise ConfigError(
                f"data.columns.{self.name}: low and high are not bounds", remedy="set low below high"
            )

    @classmethod
    def number(cls, name: str, low: float, high: float, unit: str = "") -> Column:
        """A column of numbers."""
        return cls(name, "number", float(low), float(high), unit)

    @classmethod
    def category(cls, name: str, categories: tuple[str, ...]) -> Column:
        """A column of categories; a table holds their positions in this order."""
        return cls(name, "category", 0.0, float(len(categories) - 1), categories=categories)

    @property
    def bound(self) -> float:
        """The largest magnitude that a value can have."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, repr=False)
class Table:
    """One site's records, column by column.

    Numbers are as recorded, within the declared bounds; of a category stands its position in the declared
    list; NaN is a missing value.

    Security: single-site values; nothing of it may leave except inside a protected sum.
    """

    columns: tuple[Column, ...]
    values: Mapping[str, Values]  # column to [records] float64
    records: int
    patients: tuple[int, ...] | None = None  # whose each record is, as numbers; None if unknown

    def __post_init__(self) -> None:
        wrong = [column.name for column in self.columns if len(self.values[column.name]) != self.records]
        if wrong or (self.patients is not None and len(self.patients) != self.records):
            raise DataError(
                f"the column {(*wrong, 'of patients')[0]!r} has not one value for each record",
                remedy="give every column as many values as there are records",
            )

    def column(self, name: str) -> Column:
        """What a column may hold; a ConfigError names an unknown one."""
        return find_column(self.columns, name)

    def complete(self, names: tuple[str, ...]) -> NDArray[np.bool_]:
        """For each record, whether none of these columns is missing."""
        known = np.ones(self.records, dtype=np.bool_)
        for name in names:
            known &= ~np.isnan(self.values[self.column(name).name])
        return known

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Table:
        """The records at these positions, or where a mask is true."""
        values = {column.name: self.values[column.name][rows] for column in self.columns}
        positions = np.arange(self.records)[rows]
        patients = self.patients
        if patients is not None:
            patients = tuple(patients[int(row)] for row in positions)
        return Table(self.columns, values, len(positions), patients)


@runtime_checkable
class TableData(FederatedData, Protocol):
    """A data set of tables with declared columns."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Public: what the columns may hold, the same at every site."""

    def table(self, site_id: SiteId) -> Table:
        """One site's records; a DataError names the file, row and column of what does not fit."""


def find_column(columns: tuple[Column, ...], name: str, where: str = "data.columns") -> Column:
    """The column of that name; ``where`` says who asks for it.

    ConfigError: there is none; the remedy names one that is spelt alike.
    """
    for column in columns:
        if column.name == name:
            return column
    raise ConfigError(
        f"{where}: there is no column {name!r}",
        remedy=suggestion(name, [column.name for column in columns]),
    )
