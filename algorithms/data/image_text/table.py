"""Tables of image-report pairs: JSON Lines or CSV to entries, one per pair.

Errors name the file, the line and the column; never what stands there.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.csv_rows import csv_rows
from secfed.algorithms.data.image_files import open_source
from secfed.algorithms.data.image_text.options import SITE, ImageTextOptions
from secfed.algorithms.data.tokens import words_of
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.framework.unfit import unfit
from secfed.config.schema import suggestion
from secfed.errors import DataError

MAX_TABLE_BYTES: Final = 1 << 30
_LINE_CHARACTERS: Final = 1 << 22

Row = dict[str, Any]


@dataclass(frozen=True, repr=False)
class PairEntry:
    """One pair as its table describes it; the image is not read yet.

    Attributes:
        image: name of the file, relative to the folder or archive.
        text: the report.
        findings: 0 or 1 each.
        held_out: whether it is kept for evaluation.
        where: file and line, for errors.
        patient: whose it is, as the table calls them; None if the table does not say.
    """

    image: str
    text: str
    findings: tuple[int, ...]
    held_out: bool
    where: str
    patient: str | None = None


@dataclass(frozen=True)
class Line:
    """One row of a table.

    Attributes:
        row: column to value.
        where: file and line, for errors.
        twice: names of more than one column; what stands there is not known.
        alike: whether every row has the same columns, so that a missing one says nothing about this row.
    """

    row: Row
    where: str
    twice: frozenset[str] = frozenset()
    alike: bool = False


def read_table(path: Path) -> Iterator[Line]:
    """The rows of a ``.jsonl`` or ``.csv`` file; ``.gz`` after that is unpacked.

    Raises:
        DataError: a file that is missing, too large, or not what its name says.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                content = packed.read(MAX_TABLE_BYTES + 1)
        else:
            with path.open("rb") as stream:
                content = stream.read(MAX_TABLE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "damaged"
        raise DataError(f"cannot read {path} ({reason})", remedy="check data.path and the rights") from None
    except ValueError:  # a character that no file name can have
        raise DataError("data.path: cannot be the name of a file", remedy="correct data.path") from None
    return parse_table(content, path.name.removesuffix(".gz"))


def parse_table(content: bytes, name: str) -> Iterator[Line]:
    """The rows of a table that is in memory; ``name`` says which kind it is.

    Raises:
        DataError: see :func:`read_table`.
    """
    if len(content) > MAX_TABLE_BYTES:
        raise DataError(
            f"{name} has more than {MAX_TABLE_BYTES >> 20} MiB", remedy="divide it into smaller files"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{name} is not UTF-8", remedy="save it as UTF-8") from None
    if name.endswith(".jsonl"):
        return _json_lines(text, name)
    if name.endswith(".csv"):
        return _csv_lines(text, name)
    raise DataError(f"{name} is neither .jsonl nor .csv", remedy="save the table as one of them")


def value_of(line: Line, column: str) -> Any:
    """What stands in a column; a dot leads into a nested one.

    Returns:
        At a hospital, None where a line has no such column and others may have.

    Raises:
        DataError: there is no such column, or more than one.
    """
    if column in line.twice:
        raise DataError(
            f"{line.where}: the table has the column {column!r} twice",
            remedy="give every column a name of its own",
        )
    if column in line.row:
        return line.row[column]
    node: Any = line.row
    for part in column.split("."):
        if not isinstance(node, dict) or part not in node:
            missing = DataError(
                f"{line.where}: there is no column {column!r}", remedy=suggestion(column, line.row)
            )
            if line.alike:
                raise missing
            unfit(missing)
            return None
        node = node[part]
    return node


def text_of(line: Line, column: str) -> str:
    """The text in a column: "" where it is missing, the first of an array.

    Raises:
        DataError: no such column; in a simulation also something that is no text or number.
    """
    value = value_of(line, column)
    if isinstance(value, list):
        value = value[0] if value else None
    if value is None:
        return ""
    if isinstance(value, dict | list | bool):
        unfit(DataError(f"{line.where}: column {column!r} is not a text", remedy="name a column with texts"))
        return ""
    try:
        str(value).encode()
    except UnicodeEncodeError:  # half a character, as JSON can write it
        unfit(
            DataError(
                f"{line.where}: column {column!r} is not a text", remedy="repair the characters of that line"
            )
        )
        return ""
    return str(value).strip()


def name_of(line: Line, column: str) -> str:
    """The text in a column that names something, such as a site or a patient.

    Raises:
        DataError: see :func:`text_of`; in a simulation also several lines, which a stray quote makes of
            other rows.
    """
    name = text_of(line, column)
    if "\n" in name or "\r" in name:
        unfit(
            DataError(
                f"{line.where}: column {column!r} has more than one line",
                remedy="write it on one line; in a CSV file, look for a quote that is not closed",
            )
        )
        return ""
    return name


def flag_of(line: Line, column: str, uncertain: int = 0) -> int:
    """Whether a finding is present: 0 or 1; a missing value is 0 and -1 is ``uncertain``.

    Raises:
        DataError: anything else, in a simulation; a hospital takes it for 0.
    """
    value = value_of(line, column)
    text = str(int(value)) if isinstance(value, bool) else text_of(line, column).lower()
    known = {"": 0, "nan": 0, "0": 0, "0.0": 0, "1": 1, "1.0": 1, "-1": uncertain, "-1.0": uncertain}
    if text not in known:
        unfit(
            DataError(
                f"{line.where}: column {column!r} is not 0, 1 or -1",
                remedy="write 1 where the finding is present",
            )
        )
    return known.get(text, 0)


def drawn(share: float, seed: int, purpose: str, who: str) -> bool:
    """Whether somebody is drawn, with this probability, by name and seed alone.

    Nobody's draw depends on other records, so adding one changes nothing for the rest.

    Args:
        share: 0 to 1.
        seed: the study's seed.
        purpose: what for.
        who: a patient's or an image's name.
    """
    return derive_seed(seed, "image-text", purpose, who) < share * 2.0**63


def combined(entries: Sequence[PairEntry], findings: int) -> NDArray[np.int64]:
    """The findings of entries as [n, findings]."""
    return np.array([entry.findings for entry in entries], dtype=np.int64).reshape(len(entries), findings)


class PairTable:
    """Tables of pairs, read as the options of ``image-text`` say.

    Args:
        options: the ``[data]`` table.
        folder: where the study file is.
        seed: the study's seed, for the split.
    """

    def __init__(self, options: ImageTextOptions, folder: Path, seed: int) -> None:
        self._options, self._root, self._seed = options, folder / options.path, seed

    def read(self, site: SiteId | None = None) -> list[PairEntry]:
        """All entries, or those of one site, in the order of the file.

        Raises:
            DataError: no such file or column; in a simulation also a value that is not what the options say.
        """
        options = self._options
        entries = []
        for name, held_out in ((options.table, None), (options.test_table, True)):
            if name is None:
                continue
            for line in self._lines(name.replace(SITE, site or SITE)):
                if options.site_column is not None and name_of(line, options.site_column) != site:
                    continue
                entry = self._entry(line, False if options.test_table and not held_out else held_out)
                if entry is not None:
                    entries.append(entry)
        return entries

    def images(self, site: SiteId | None) -> Path:
        """The folder or archive with the images of a site."""
        inside = self._options.images
        return self._root if inside is None else self._root / inside.replace(SITE, site or SITE)

    def _lines(self, name: str) -> Iterator[Line]:
        with open_source(self._root, "data.path") as source:
            return parse_table(source.read(name, MAX_TABLE_BYTES, f"data.table, {name}"), name)

    def _entry(self, line: Line, held_out: bool | None) -> PairEntry | None:
        """The entry of a line, or None for a line that is not used."""
        options = self._options
        image = name_of(line, options.image_column)
        who = image if options.patient_column is None else name_of(line, options.patient_column)
        for column, name in ((options.image_column, image), (options.patient_column, who)):
            if not name:
                unfit(
                    DataError(
                        f"{line.where}: column {column!r} is empty", remedy="fill it in, or remove the line"
                    )
                )
        image = options.image_folder + image + options.image_suffix
        if not drawn(options.share, self._seed, "share", who):
            return None
        if options.split_column is not None:
            part = name_of(line, options.split_column)
            if part not in (*options.train_values, *options.test_values):
                return None
            held_out = part in options.test_values
        elif held_out is None:
            held_out = drawn(options.test_fraction, self._seed, "held out", who)
        text = " ".join(text_of(line, column) for column in options.text_columns).strip()
        if not words_of(text):
            if options.without_text == "skip":
                return None
            unfit(
                DataError(
                    f"{line.where}: there is no report",
                    remedy='check data.text_columns, or set data.without_text = "skip"',
                )
            )
        patient = None if options.patient_column is None else who
        return PairEntry(image, text, self._findings(line), held_out, line.where, patient)

    def _findings(self, line: Line) -> tuple[int, ...]:
        options = self._options
        found = [
            flag_of(line, column, int(options.uncertain == "present")) for column in options.finding_columns
        ]
        for column, values in options.categories.items():
            value = text_of(line, column)
            if value and value not in values:
                unfit(
                    DataError(
                        f"{line.where}: column {column!r} is none of the values in data.categories",
                        remedy="list every value",
                    )
                )
            found += [int(value == one) for one in values]
        return tuple(found)


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
            raise DataError(
                f"{where}: is no JSON object of a usual size", remedy="repair that line"
            ) from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: is no JSON object", remedy="write one object on each line")
        yield Line(row, where)


def _csv_lines(text: str, name: str) -> Iterator[Line]:
    header, rows = csv_rows(io.StringIO(text, newline=""), name)
    twice = frozenset(column for column, count in Counter(header).items() if count > 1)
    for number, cells in rows:
        yield Line(dict(zip(header, cells, strict=True)), f"{name}, line {number}", twice, alike=True)
