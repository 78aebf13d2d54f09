"""Where a table lies: a CSV or Parquet file, or a view in an SQLite or DuckDB database.

Of a database only a named view or table is read, which the hospital made and its policy names; no text of a
study becomes SQL. Errors never repeat what a database says: its messages contain values.

Text that is not UTF-8 is a value that does not fit, as any other, and no reason to read nothing: its bytes
stand as replacement characters.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from secfed.algorithms.data.table_lines import csv_rows, has_lines, lines_as_records
from secfed.algorithms.framework.unfit import unfit
from secfed.config.schema import column_remedy
from secfed.errors import ConfigError, DataError, missing_package

Cells = list[str]
Row = dict[str, str]
IsRecord = Callable[[Row], bool]
_BATCH_ROWS: Final = 10_000
NOT_UTF_8: Final = "\N{REPLACEMENT CHARACTER}"  # stands for bytes that are no text


@dataclass(frozen=True, repr=False)
class Source:
    """The columns of a table that were asked for, as text: "" for a missing value.

    Security: single-site values.
    """

    name: str  # of the file or view, for errors
    row_word: str  # "line" of a file, "row" of anything else
    numbers: list[int]  # [records] line or row of each record
    cells: dict[str, Cells]  # column to [records] texts

    def wrong(self, record: int, column: str, what: str) -> DataError:
        """The error of what stands in a column; it names the place and never the value."""
        return DataError(
            f"{self.name}, {self.row_word} {self.numbers[record]}: column {column!r} {what}",
            remedy=f"correct the table, or what data.columns declares for {column!r}",
        )


def read_source(path: Path, view: str | None, needed: Sequence[str], is_record: IsRecord) -> Source:
    """These columns of a file, or of a view in a database; the ending of the file says what it is.

    ``is_record`` says whether these columns could be a record: to find those that a stray quote hides.

    DataError: names the file and what is wrong with it, or the column that it does not have.
    """
    readers: dict[str, Callable[[], Source]] = {
        ".csv": lambda: _read_csv(path, needed, is_record),
        ".parquet": lambda: _read_parquet(path, needed),
        ".sqlite": lambda: _read_sqlite(path, view, needed),
        ".duckdb": lambda: _read_duckdb(path, view, needed),
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"data.path: {path.name} is none of {', '.join(readers)}",
            remedy="export the table as one of them; the ending of the file says which it is",
        )
    try:
        if not path.is_file():  # a database that is not there would be made
            raise DataError(f"data.path: there is no file {path}", remedy="check data.path")
        return reader()
    except OSError as error:
        message = f"data.path: cannot read {path} ({error.strerror or 'damaged'})"
        raise DataError(message, remedy="check path and rights") from None
    except UnicodeDecodeError:
        raise DataError(f"{path.name} is not UTF-8", remedy="save it as UTF-8") from None


def _check_columns(name: str, known: Sequence[str], needed: Sequence[str]) -> None:
    for column in needed:
        if column not in known:
            raise DataError(f"{name} has no column {column!r}", remedy=column_remedy(column, known))
        if known.count(column) > 1:
            raise DataError(f"{name} has the column {column!r} twice", remedy="rename one")


def _read_csv(path: Path, needed: Sequence[str], is_record: IsRecord) -> Source:
    source = Source(path.name, "line", [], {column: [] for column in needed})
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        header, rows = csv_rows(stream, path.name)
        if any(NOT_UTF_8 in name for name in header):
            raise DataError(f"{path.name} is not UTF-8", remedy="save it as UTF-8")
        _check_columns(path.name, header, needed)

        def fits(cells: list[str]) -> bool:
            row = dict(zip(header, cells, strict=False))
            one_line = not any(has_lines(row.get(column, "")) for column in needed)
            return len(cells) == len(header) and one_line and is_record(row)

        for line, cells in rows:
            source.numbers.append(line)
            for at, column in enumerate(header):
                cell = cells[at]
                if "\n" in cell or "\r" in cell:
                    record = len(source.numbers) - 1
                    if all(map(fits, lines_as_records(cells, at))):
                        unfit(
                            source.wrong(
                                record, column, "holds other records, after a quote that is not closed"
                            )
                        )
                    if column in needed and has_lines(cell):
                        unfit(source.wrong(record, column, "has more than one line"))
                        cell = ""
                if column in needed:
                    source.cells[column].append(cell)
    return source


def _read_parquet(path: Path, needed: Sequence[str]) -> Source:
    try:
        from pyarrow import ArrowException, large_binary, parquet, types
    except ImportError:
        raise missing_package("a Parquet file", "pyarrow") from None
    try:
        _check_columns(path.name, parquet.read_schema(path).names, needed)
        table = parquet.read_table(path, columns=list(needed))
        cells = dict[str, Cells]()
        for name in needed:
            column = table.column(name)
            if types.is_string(column.type) or types.is_large_string(column.type):
                stored = column.cast(large_binary()).to_pylist()
                cells[name] = ["" if text is None else _text_of(text) for text in stored]
            else:
                cells[name] = [_text(value) for value in column.to_pylist()]
    except ArrowException:
        raise DataError(f"{path.name} is not a Parquet file", remedy="write it anew") from None
    return Source(path.name, "row", list(range(1, table.num_rows + 1)), cells)


def _read_sqlite(path: Path, view: str | None, needed: Sequence[str]) -> Source:
    name = _of_view(path, view)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.text_factory = _text_of
            connection.execute("PRAGMA query_only = ON")
            found = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", [view]).fetchone()
            return _read_view(connection, found, name, str(view), needed)
    except sqlite3.Error as error:
        raise _unreadable(name, error) from None


def _read_duckdb(path: Path, view: str | None, needed: Sequence[str]) -> Source:
    name = _of_view(path, view)
    try:
        import duckdb
    except ImportError:
        raise missing_package("a DuckDB database", "duckdb") from None
    try:
        with closing(duckdb.connect(str(path), read_only=True)) as connection:
            # Without this, an unknown name could mean a file or a variable of this program.
            asked = "SELECT 1 FROM information_schema.tables WHERE table_name = ?"
            found = connection.execute(asked, [view]).fetchone()
            return _read_view(connection, found, name, str(view), needed)
    except duckdb.Error as error:
        raise _unreadable(name, error) from None


def _read_view(connection: Any, found: object, name: str, view: str, needed: Sequence[str]) -> Source:
    """The columns of a view: its name is an identifier, and every column is one that the view has."""
    if found is None:
        raise DataError(f"{name}: there is no such view", remedy="create it, or correct data.view")
    known = [item[0] for item in connection.execute(f'SELECT * FROM "{view}" LIMIT 0').description]  # noqa: S608
    _check_columns(name, known, needed)
    quoted = ", ".join('"' + column.replace('"', '""') + '"' for column in needed)
    cells: dict[str, Cells] = {column: [] for column in needed}
    rows = 0
    for row in _rows(connection.execute(f'SELECT {quoted} FROM "{view}"')):  # noqa: S608
        rows += 1
        for column, value in zip(needed, row, strict=True):
            cells[column].append(_text(value))
    return Source(name, "row", list(range(1, rows + 1)), cells)


def _rows(cursor: Any) -> Iterator[tuple[Any, ...]]:
    while batch := cursor.fetchmany(_BATCH_ROWS):
        yield from batch


def _of_view(path: Path, view: str | None) -> str:
    if view is None:
        message = f"data.view: {path.name} is a database, and no view of it is named"
        raise ConfigError(message, remedy="set data.view to the view that holds the records")
    return f"{path.name}, view {view!r}"


def _text_of(stored: bytes) -> str:
    return stored.decode(errors="replace")


def _text(value: object) -> str:
    """A value of a database or Parquet file as a CSV file would have it."""
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value)


def _unreadable(name: str, error: Exception) -> DataError:
    return DataError(
        f"{name}: cannot be read ({type(error).__name__})",
        remedy="try the view in the database's own program, as the user that runs the training",
    )
