"""The table of ``image-text``: lines to entries, one per pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.image_text.options import SITE, ImageTextOptions
from secfed.algorithms.data.images_and_texts import drawn
from secfed.algorithms.data.table_lines import Line, table_inside
from secfed.algorithms.data.tokens import words_of
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.unfit import unfit
from secfed.errors import DataError


@dataclass(frozen=True, repr=False)
class PairEntry:
    """One pair as its table describes it; the image is not read yet."""

    image: str  # name of the file, relative to the folder or archive
    text: str
    findings: tuple[int, ...]
    held_out: bool
    where: str  # file and line, for errors
    patient: str | None = None  # as the table calls them; None if it does not say


def combined(entries: Sequence[PairEntry], findings: int) -> NDArray[np.int64]:
    """The findings of entries as [n, findings]."""
    return np.array([entry.findings for entry in entries], dtype=np.int64).reshape(len(entries), findings)


class PairTable:
    """Tables of pairs, read as the options of ``image-text`` say."""

    def __init__(self, options: ImageTextOptions, folder: Path, seed: int) -> None:
        self._options, self._root, self._seed = options, folder / options.path, seed

    def read(self, site: SiteId | None = None) -> list[PairEntry]:
        """All entries, or those of one site, in the order of the file."""
        options = self._options
        entries = []
        for name, held_out in ((options.table, None), (options.test_table, True)):
            if name is None:
                continue
            for line in table_inside(self._root, name.replace(SITE, site or SITE)):
                if options.site_column is not None and line.name(options.site_column) != site:
                    continue
                entry = self._entry(line, False if options.test_table and not held_out else held_out)
                if entry is not None:
                    entries.append(entry)
        return entries

    def images(self, site: SiteId | None) -> Path:
        """The folder or archive with the images of a site."""
        inside = self._options.images
        return self._root if inside is None else self._root / inside.replace(SITE, site or SITE)

    def _entry(self, line: Line, held_out: bool | None) -> PairEntry | None:
        """The entry of a line, or None for a line that is not used."""
        options = self._options
        image = line.name(options.image_column)
        who = image if options.patient_column is None else line.name(options.patient_column)
        for column, name in ((options.image_column, image), (options.patient_column, who)):
            if not name:
                unfit(line.wrong(str(column), "is empty", "fill it in, or remove the line"))
        image = options.image_folder + image + options.image_suffix
        if not drawn(options.share, self._seed, "share", who):
            return None
        if options.split_column is not None:
            part = line.name(options.split_column)
            if part not in (*options.train_values, *options.test_values):
                return None
            held_out = part in options.test_values
        elif held_out is None:
            held_out = drawn(options.test_fraction, self._seed, "held out", who)
        text = " ".join(line.text(column) for column in options.text_columns).strip()
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
        uncertain = int(options.uncertain == "present")
        findings = [line.flag(column, uncertain) for column in options.finding_columns]
        for column, values in options.categories.items():
            value = line.text(column)
            if value and value not in values:
                unfit(line.wrong(column, "is not one of the values in data.categories", "list every value"))
            findings += [int(value == one) for one in values]
        return tuple(findings)
