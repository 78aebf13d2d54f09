"""``csv``: any table with a label column, and a site column or a simulated partition.

What a column means is public and stands in the study, so the shape of a record does not depend on records.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.pool import PooledData, divide_by
from secfed.algorithms.data.prepare import LARGEST, SPLITS, Facts, Preparation, PreparedRecords, PreparedSites
from secfed.algorithms.data.table_lines import csv_rows, has_lines, lines_as_records
from secfed.algorithms.data.tabular.options import ALWAYS_MISSING, TableOptions, canonical, number_of
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.targets import survival_target
from secfed.algorithms.framework.unfit import counted_as_defaults, unfit
from secfed.config.schema import column_remedy
from secfed.errors import DataError

Row = dict[str, str]


class Table:
    """A CSV file, read as its options say."""

    def __init__(self, options: TableOptions, path: Path) -> None:
        self._options = options
        self._path = path
        self._missing = ALWAYS_MISSING | {canonical(value) for value in options.missing_values}

    def read(self, site: SiteId | None = None) -> PreparedRecords:
        """All records, or those of one site; errors name the file, line and column, never the value."""
        options = self._options
        special = (
            *(options.label_column, options.site_column, options.patient_column, options.event_column),
        )
        needed = [*options.feature_columns, *(column for column in special if column is not None)]
        try:
            with self._path.open(newline="", encoding="utf-8-sig") as stream:
                header, numbered = csv_rows(stream, self._path.name)
                for column in needed:
                    if column not in header:
                        message = f"{self._path.name} has no column {column!r}"
                        raise DataError(message, remedy=column_remedy(column, header))
                    # The last of equal names is kept; harmless where no key names it.
                    if header.count(column) > 1:
                        message = f"{self._path.name} has the column {column!r} twice"
                        raise DataError(message, remedy="rename one")
                rows = []
                for line, cells in numbered:
                    self._check_lines(line, header, cells, needed)
                    rows.append((line, dict(zip(header, cells, strict=True))))
        except OSError as error:
            message = f"data.path: cannot read {self._path} ({error.strerror})"
            raise DataError(message, remedy="check path and rights") from None
        except UnicodeDecodeError:
            raise DataError(f"{self._path.name} is not a UTF-8 CSV table", remedy="save it as one") from None
        except ValueError:  # a character that no file name can have
            raise DataError("data.path: cannot be the name of a file", remedy="correct data.path") from None
        if site is not None and options.site_column is not None:
            rows = [(line, row) for line, row in rows if row[options.site_column].strip() == site]
        return self._records(rows, site)

    def _records(self, rows: list[tuple[int, Row]], site: SiteId | None) -> PreparedRecords:
        options = self._options
        numeric = np.full((len(rows), len(options.numeric_columns)), np.nan)
        for at, column in enumerate(options.numeric_columns):
            numeric[:, at] = [self._number(line, row, column) for line, row in rows]
        one_hot = {
            column: self._one_hot(rows, column, [canonical(value) for value in categories])
            for column, categories in options.categorical.items()
        }
        extra = list(one_hot.values())
        for column in options.missing_indicator:
            if column in one_hot:
                missing = ~one_hot[column].any(axis=1)
            else:
                missing = np.isnan(numeric[:, options.numeric_columns.index(column)])
            extra.append(missing.astype(np.float64).reshape(-1, 1))
        kind = np.float64 if options.outcome is not None else np.int64
        labels = np.array([self._label(line, row, site) for line, row in rows], dtype=kind)
        patients = None
        if options.patient_column is not None:
            patients = tuple(self._patient(line, row, options.patient_column) for line, row in rows)
        joined = np.concatenate(extra, axis=1) if extra else None
        where = tuple(f"{self._path.name}, line {line}" for line, _ in rows)
        return PreparedRecords(numeric, labels, joined, patients, where)

    def _check_lines(self, line: int, header: list[str], cells: list[str], needed: list[str]) -> None:
        """Refuse a cell of several lines that a stray quote made of other records.

        Text may have several lines, and commas in them. But a site, a number or a label has one; and where
        the lines of a cell complete each other to whole records of this study, they are records.
        """
        for at, (column, cell) in enumerate(zip(header, cells, strict=True)):
            if "\n" not in cell and "\r" not in cell:
                continue
            if column in needed and has_lines(cell):
                unfit(self._wrong(line, column, "has more than one line"))
            if all(self._is_record(header, one) for one in lines_as_records(cells, at)):
                unfit(
                    DataError(
                        f"{self._path.name}, line {line}: column {column!r} holds other records of "
                        "this table",
                        remedy="remove the quote that begins there, or close it",
                    )
                )

    def _is_record(self, header: list[str], cells: list[str]) -> bool:
        if len(cells) != len(header):
            return False
        row, options = dict(zip(header, cells, strict=True)), self._options
        if options.site_column is not None and row[options.site_column].strip() not in options.site_ids():
            return False
        try:
            with counted_as_defaults(None):
                self._records([(0, row)], None)
        except DataError:
            return False
        return True

    def _is_missing(self, text: str, column: str) -> bool:
        value = canonical(text)
        return value in self._missing or (value == "0.0" and column in self._options.zero_is_missing)

    def _number(self, line: int, row: Row, column: str) -> float:
        if self._is_missing(row[column], column):
            return float("nan")
        centre, spread = self._options.scale.get(column, (0.0, 1.0))
        try:
            scaled = (number_of(row[column]) - centre) / spread
            what = "is too large a number" if np.isfinite(scaled) else "is not a finite number"
        except ValueError:
            scaled, what = np.nan, "is not a number"
        if abs(scaled) <= LARGEST:
            return scaled
        unfit(self._wrong(line, column, what))
        return np.nan

    def _one_hot(
        self, rows: list[tuple[int, Row]], column: str, categories: list[str]
    ) -> NDArray[np.float64]:
        columns = np.zeros((len(rows), len(categories)))
        for at, (line, row) in enumerate(rows):
            if self._is_missing(row[column], column):
                continue  # no category: all zeros
            value = canonical(row[column])
            if value not in categories:
                unfit(self._wrong(line, column, "is not one of data.categorical"))
                continue
            columns[at, categories.index(value)] = 1.0
        return columns

    def _label(self, line: int, row: Row, site: SiteId | None) -> float:
        options, column = self._options, self._options.label_column
        where = "" if site is None else f"site {site!r}: "
        value = canonical(row[column])
        if options.labels is not None:
            known = [canonical(label) for label in options.labels]
            if value not in known:
                unfit(self._wrong(line, column, "is not one of data.labels", where))
                return 0
            return known.index(value)
        try:
            number = number_of(value)
        except ValueError:
            number = float("nan")
        if options.time_grid is not None:
            return self._survival(line, row, number, options.time_grid)
        if options.outcome is not None:
            low, high = options.outcome
            if not low <= number <= high:
                unfit(self._wrong(line, column, "is no number within data.outcome", where))
                return low if np.isnan(number) else min(max(number, low), high)
            return number
        if not np.isfinite(number) or options.label_above is None:
            unfit(self._wrong(line, column, "is not a number", where))
            return 0
        return int(number > options.label_above)

    def _survival(self, line: int, row: Row, time: float, ends: tuple[float, ...]) -> int:
        """At a hospital, a time that is none counts as 0, and what is neither 0 nor 1 as no event."""
        options = self._options
        if not 0 <= time < np.inf:
            unfit(self._wrong(line, options.label_column, "is no time of 0 or more"))
            time = 0.0
        column = options.event_column or ""
        event = canonical(row[column])
        if event not in ("0.0", "1.0"):
            unfit(self._wrong(line, column, "is neither 0 nor 1"))
        return survival_target(time, event == "1.0", ends)

    def _patient(self, line: int, row: Row, column: str) -> str:
        """Whose record it is. At a hospital, all records without a name count as one patient.

        A patient with other records under a name has then two shares in the result, and privacy per patient
        promises the less.
        """
        patient = row[column].strip()
        if patient.lower() in ALWAYS_MISSING:
            unfit(self._wrong(line, column, "is empty"))
            return ""
        return patient

    def _wrong(self, line: int, column: str, what: str, where: str = "") -> DataError:
        message = f"{where}{self._path.name}, line {line}: column {column!r} {what}"
        return DataError(message, remedy="correct the table, or describe the column in [data]")


def table_data(options: TableOptions, path: Path, seed: int) -> PreparedSites:
    """The data set that a table and its partition describe; the file is read when a site is asked for."""
    fixed = tuple(at for at, column in enumerate(options.numeric_columns) if column in options.scale)
    facts = Facts(
        sites=options.site_ids(),
        rules=Preparation(
            options.test_fraction,
            options.standardize,
            fixed,
            options.impute,
            SPLITS[options.split],
            public_scale="set data.standardize = false, or give [centre, spread] for every column in "
            "data.scale",
            known_values='set data.impute = "centre", and public centres in data.scale',
        ),
        input_shape=(options.width,),
        classes=options.classes,
        seed=seed,
        numeric=len(options.numeric_columns),
        other_targets=options.targets,
    )
    table = Table(options, path)
    if isinstance(options.sites, tuple):
        return PreparedSites(table.read, facts)
    divide = divide_by(options.partition, options.sites, options.alpha, options.min_records)
    return PooledData(table.read, facts, divide)
