"""The rows of a CSV file, read strictly.

A damaged table must be an error, never fewer or other records: an open quote swallows the lines that
follow it, and a cell too many moves the others to columns that they do not belong to.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Final

from secfed.errors import DataError

_OTHER_SEPARATORS: Final = {";": "semicolons", "\t": "tabs"}


def csv_rows(lines: Iterable[str], name: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header of a table; and, as they are asked for, its rows with the number of their first line.

    A row has as many cells as the header. Empty lines are left out; a quoted cell may hold several lines, so
    ``lines`` keep their ends. Errors name the file and the line, never what stands there.
    """
    rows = _numbered(lines, name)
    header: list[str] = next((cells for _, cells in rows if cells), [])
    if not header:
        raise DataError(
            f"{name} is empty", remedy="give it a line with the names of its columns, and records"
        )
    if len(header) == 1:  # as spreadsheets write where the comma is the decimal sign
        for sign, called in _OTHER_SEPARATORS.items():
            if sign in header[0]:
                raise DataError(
                    f"{name}: its columns are separated by {called}",
                    remedy="save it with commas between the columns, and a point as the decimal sign",
                )
    return header, _of_width(rows, len(header), name)


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
        return DataError(
            f"{where}: a cell has more than {csv.field_size_limit():,} characters",
            remedy="shorten it, or close the quote that begins there",
        )
    what = "that nothing ends" if "unexpected end" in reason else "that goes on after its closing quote"
    return DataError(
        f"{where}: a quoted cell begins there {what}",
        remedy='close every quote, and write "" for a quote that belongs to the text of a quoted cell',
    )
