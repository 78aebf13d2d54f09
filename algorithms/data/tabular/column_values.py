"""From the texts of a table to raw values within what its columns declare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.column_options import ColumnOptions, ColumnsOptions
from secfed.algorithms.data.tabular.columns import Column, Table, Values
from secfed.algorithms.data.tabular.options import ALWAYS_MISSING, canonical, number_of
from secfed.algorithms.data.tabular.sources import NOT_UTF_8, Source, read_source
from secfed.algorithms.framework.datasets import SiteId, no_records, numbered
from secfed.algorithms.framework.unfit import unfit


def read_table(path: Path, options: ColumnsOptions, site: SiteId | None = None) -> Table:
    """The records of a file or view; of one site where a column names it.

    A value that is not declared is a DataError that names file, row and column; at a hospital it is missing
    (:mod:`secfed.algorithms.framework.unfit`), and the number of records stays what it is.
    """
    readers = [_Reader(column, options.columns[column.name]) for column in options.declared]
    site_column = options.site_column

    def is_record(row: Mapping[str, str]) -> bool:
        here = site_column is None or row[site_column].strip() in options.site_ids()
        return here and not any(reader.value(row[reader.source])[1] for reader in readers)

    source = read_source(path, options.view, options.needed, is_record)
    records = list(range(len(source.numbers)))
    if site is not None and site_column is not None:
        sites = source.cells[site_column]
        records = [record for record in records if sites[record].strip() == site]
    if not records:
        unfit(no_records(site or source.name))
    patients = None
    if options.patient_column is not None:
        patients = numbered(_patient(source, record, options.patient_column) for record in records)
    values = {reader.column.name: reader.values(source, records) for reader in readers}
    return Table(options.declared, values, len(records), patients)


class _Reader:
    """Reads one column."""

    def __init__(self, column: Column, options: ColumnOptions) -> None:
        self.column = column
        self.source = options.source or column.name
        self._outside = options.outside
        self._positions = options.positions
        # A category may be called "none": what is declared counts before what is usual.
        self._missing = ALWAYS_MISSING - self._positions.keys() | set(map(canonical, options.missing))

    def values(self, source: Source, records: list[int]) -> Values:
        """The values of these records; NaN where one is missing, or does not fit and is left out."""
        texts = source.cells[self.source]
        known: dict[str, tuple[float, str]] = {}  # few texts differ, and it takes a while to read one
        values = np.empty(len(records))
        for at, record in enumerate(records):
            text = texts[record]
            if text not in known:
                known[text] = self.value(text)
            values[at], what = known[text]
            if what:
                unfit(source.wrong(record, self.source, what))
        return values

    def value(self, text: str) -> tuple[float, str]:
        """The value that a text stands for, and what is wrong with it: "" for nothing."""
        text = canonical(text)
        if text in self._missing:
            return math.nan, ""
        if self._positions:
            if text in self._positions:
                return float(self._positions[text]), ""
            what = "is not UTF-8" if NOT_UTF_8 in text else "is not one of the declared categories"
            return math.nan, self._unless_declared(what)
        try:
            number = number_of(text)
        except ValueError:
            return math.nan, "is not UTF-8" if NOT_UTF_8 in text else "is not a number"
        if not math.isfinite(number):
            return math.nan, "is not a finite number"
        low, high, unit = self.column.low, self.column.high, self.column.unit
        if low <= number <= high:
            return number, ""
        if self._outside == "clip":
            return min(max(number, low), high), ""
        return math.nan, self._unless_declared(f"is not from {low:g} to {high:g} {unit}".rstrip())

    def _unless_declared(self, what: str) -> str:
        return "" if self._outside == "missing" else what


def _patient(source: Source, record: int, column: str) -> str:
    """Whose record it is. At a hospital, all records without a name count as one patient."""
    patient = source.cells[column][record].strip()
    if patient.lower() in ALWAYS_MISSING:
        unfit(source.wrong(record, column, "names no patient"))
        return ""
    return patient


def labels_of(table: Table, column: str) -> NDArray[np.int64]:
    """The categories of a column as labels; a missing one counts as one more."""
    count = len(table.column(column).categories)
    return np.nan_to_num(table.values[column], nan=float(count)).astype(np.int64)
