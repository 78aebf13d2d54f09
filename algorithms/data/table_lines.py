"""Tables in JSON Lines or CSV: rows, and what stands in their columns.

Errors name the file, the line and the column; never what stands there. A damaged table is an error, never
fewer or other records: an open quote swallows lines, and a cell too many moves the others.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from secfed.algorithms.data.image_files import open_source
from secfed.algorithms.framework.unfit import unfit
from secfed.config.schema import column_remedy
from secfed.errors import DataError

MAX_TABLE_BYTES: Final = 1 << 30
_LINE_CHARACTERS: Final = 1 << 22
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_OTHER_SEPARATORS: Final = {";": "semicolons", "\t": "tabs"}


@dataclass(frozen=True)
class Line:
    """One row of a table."""

    row: dict[str, Any]
    where: str  # file and line, for errors
    twice: frozenset[str] = frozenset()  # names of more than one column; what stands there is not known
    alike: bool = False  # every row has the same columns, so that a missing one says nothing about this row

    def wrong(self, column: str, what: str, remedy: str) -> DataError:
        """The error of what stands in a column."""
        return DataError(f"{self.where}: column {column!r} {what}", remedy=remedy)

    def value(self, column: str) -> Any:
        """What stands in a column; a dot leads into a nested one. DataError for none, or more than one.

        At a hospital, None where a line has no such column and others may have.
        """
        if column in self.twice:
            message = f"{self.where}: the table has the column {column!r} twice"
            raise DataError(message, remedy="rename one of them")
        if column in self.row:
            return self.row[column]
        node: Any = self.row
        for part in column.split("."):
            if not isinstance(node, dict) or part not in node:
                message = f"{self.where}: there is no column {column!r}"
                missing = DataError(message, remedy=column_remedy(column, self.row))
                if self.alike:
                    raise missing
                unfit(missing)
                return None
            node = node[part]
        return node

    def text(self, column: str) -> str:
        """The text in a column: "" where it is missing, the first of an array."""
        value = self.value(column)
        if isinstance(value, list):
            value = value[0] if value else None
        if value is None:
            return ""
        # JSON can write half a character, which has no bytes.
        if isinstance(value, dict | list | bool) or not is_unicode(str(value)):
            unfit(self.wrong(column, "is not a text", "name a column with texts, or repair its characters"))
            return ""
        return str(value).strip()

    def name(self, column: str) -> str:
        """The text in a column that names something: one line, as a stray quote makes several of rows."""
        name = self.text(column)
        if "\n" in name or "\r" in name:
            remedy = "write it on one line; in a CSV file, look for a quote that is not closed"
            unfit(self.wrong(column, "has more than one line", remedy))
            return ""
        return name

    def flag(self, column: str, uncertain: int = 0, negative: int = 0) -> int:
        """Whether a finding is present: 0 or 1; missing is 0, -1 is ``uncertain`` and 0 is ``negative``."""
        value = self.value(column)
        text = str(int(value)) if isinstance(value, bool) else self.text(column).lower()
        known = {"": 0, "nan": 0, "0": negative, "0.0": negative, "1": 1, "1.0": 1}
        known |= {"-1": uncertain, "-1.0": uncertain}
        if text not in known:
            unfit(self.wrong(column, "is not 0, 1 or -1", "write 1 where the finding is present"))
        return known.get(text, 0)


def is_unicode(text: str) -> bool:
    """Whether no half of a character stands in a text: such a text has no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_table(path: Path) -> Iterator[Line]:
    """The rows of a ``.jsonl`` or ``.csv`` file; ``.gz`` after that is unpacked."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            content = stream.read(MAX_TABLE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "damaged"
        raise DataError(f"cannot read {path} ({reason})", remedy="check data.path and the rights") from None
    except ValueError:  # a character that no file name can have
        raise DataError("data.path: cannot be the name of a file", remedy="correct data.path") from None
    return parse_table(content, path.name.removesuffix(".gz"))


def parse_table(content: bytes, name: str) -> Iterator[Line]:
    """The rows of a table that is in memory; ``name`` says which kind it is."""
    if len(content) > MAX_TABLE_BYTES:
        raise DataError(f"{name} has more than {MAX_TABLE_BYTES >> 20} MiB", remedy="divide it into several")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{name} is not UTF-8", remedy="save it as UTF-8") from None
    if name.endswith(".jsonl"):
        return _json_lines(text, name)
    if name.endswith(".csv"):
        return _csv_lines(text, name)
    raise DataError(f"{name} is neither .jsonl nor .csv", remedy="save the table as one of them")


def table_inside(source: Path, name: str) -> Iterator[Line]:
    """The rows of a table in a folder or archive."""
    with open_source(source, "data.path") as opened:
        return parse_table(opened.read(name, MAX_TABLE_BYTES, f"data.path, {name}"), name)


def _json_lines(text: str, name: str) -> Iterator[Line]:
    for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
        where = f"{name}, line {number}"
        if not line.strip():
            continue
        try:
            if len(line) > _LINE_CHARACTERS:
                raise ValueError
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"{where}: is not a JSON object of a usual size", remedy="repair it") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: is not a JSON object", remedy="write one object on each line")
        yield Line(row, where)


def _csv_lines(text: str, name: str) -> Iterator[Line]:
    header, rows = csv_rows(io.StringIO(text, newline=""), name)
    twice = frozenset(column for column, count in Counter(header).items() if count > 1)
    for number, cells in rows:
        yield Line(dict(zip(header, cells, strict=True)), f"{name}, line {number}", twice, alike=True)


def csv_rows(lines: Iterable[str], name: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header of a table; and, as they are asked for, its rows with the number of their first line.

    A row has as many cells as the header. Empty lines are left out; a quoted cell may hold several lines, so
    ``lines`` keep their ends. Errors name the file and the line, never what stands there.
    """
    rows = _numbered(lines, name)
    header: list[str] = next((cells for _, cells in rows if cells), [])
    if not header:
        raise DataError(f"{name} is empty", remedy="give it a line with the names of columns, and records")
    if len(header) == 1:  # as spreadsheets write where the comma is the decimal sign
        for sign, called in _OTHER_SEPARATORS.items():
            if sign in header[0]:
                raise DataError(
                    f"{name}: its columns are separated by {called}",
                    remedy="save it with commas between the columns, and a point as the decimal sign",
                )
    return header, _of_width(rows, len(header), name)


def has_lines(cell: str) -> bool:
    """Whether a cell has more than one line, empty ones at its ends aside."""
    return len(_LINE_END.split(cell.strip())) > 1


def lines_as_records(cells: list[str], at: int) -> list[list[str]]:
    """What a row would be, as records, if the quotes around one of its cells were stray."""
    parts = [piece.split(",") for piece in _LINE_END.split(cells[at])]
    return [cells[:at] + parts[0], *parts[1:-1], parts[-1] + cells[at + 1 :]]


def _numbered(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise _damaged(f"{name}, line {line}", str(error)) from None
        yield line, cells


def _of_width(
    rows: Iterator[tuple[int, list[str]]], width: int, name: str
) -> Iterator[tuple[int, list[str]]]:
    for line, cells in rows:
        if not cells or (width > 1 and len(cells) == 1 and not cells[0].strip()):
            continue
        if len(cells) != width:
            counted = f"{len(cells)} cell{'s' if len(cells) > 1 else ''}"
            raise DataError(
                f"{name}, line {line}: {counted}, the header has {width}",
                remedy="give it as many cells as the header; a cell with a comma in it needs quotes",
            )
        yield line, cells


def _damaged(where: str, reason: str) -> DataError:
    """The csv module tells its errors apart by nothing but their text."""
    if "field limit" in reason:
        message = f"{where}: a cell has more than {csv.field_size_limit():,} characters"
        return DataError(message, remedy="shorten it, or close the quote that begins there")
    what = "that nothing ends" if "unexpected end" in reason else "that goes on after its closing quote"
    return DataError(
        f"{where}: a quoted cell begins there {what}",
        remedy='close every quote, and write "" for a quote that belongs to the text of a quoted cell',
    )
