"""Image-report pairs in files: ``image-text``, and what the other data sets of real pairs are made of.

A site decodes its own images only. They are held in memory, ``size * size * channels * 4`` bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.data.base import site_index
from secfed.algorithms.data.image_files import ImageSource, open_source
from secfed.algorithms.data.image_text.base import ImageTextData, ImageTextSite, Pairs, check_image_text
from secfed.algorithms.data.image_text.options import SITE, ImageTextOptions, counted
from secfed.algorithms.data.image_text.partition import by_combination, combination
from secfed.algorithms.data.images_and_texts import ImagesAndTexts, PairsOptions, drawn
from secfed.algorithms.data.partition import Partition, Pool, iid
from secfed.algorithms.data.table_lines import Line, table_inside
from secfed.algorithms.data.tokens import words_of
from secfed.algorithms.framework.datasets import SiteId, numbered
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


Entries = Sequence[PairEntry]
Parts = tuple[Entries, Entries]  # training and held-out
Divide = Callable[[Parts, np.random.Generator], tuple[Partition, Partition]]
"""Training and held-out entries to one partition of each."""


class FilePairs(ImagesAndTexts):
    """Pairs that belong to sites: each hospital reads its own.

    ``folder`` is where the study file lies; ``images`` maps a site to its folder or archive.
    """

    def __init__(
        self,
        options: PairsOptions,
        findings: tuple[str, ...],
        folder: Path,
        *,
        read: Callable[[SiteId], Entries],
        images: Callable[[SiteId], Path],
    ) -> None:
        super().__init__(options, options.make_tokenizer(folder))
        self.findings = findings
        self._read, self._images_of, self._distinct_test = read, images, options.distinct_test

    def site(self, site_id: SiteId) -> ImageTextSite:
        """One site's pairs."""
        site_index(self.sites, site_id)
        train, test = _parts(self._read(site_id))
        if self._distinct_test:
            test = self._distinct(test)
        with open_source(self._images_of(site_id)) as source:
            patients = numbered(entry.patient for entry in train)
            site = ImageTextSite(self._pairs(train, source), self._pairs(test, source), patients)
        return check_image_text(site_id, site, self)

    def _distinct(self, entries: Entries) -> list[PairEntry]:
        """The first entry of each report, as the tokenizer sees reports."""
        rows = self._tokenizer.encode([entry.text for entry in entries]).tolist()
        first = {tuple(row): entry for row, entry in zip(reversed(rows), reversed(entries), strict=True)}
        return list(first.values())[::-1]

    def _pairs(self, entries: Entries, source: ImageSource) -> Pairs:
        images = self._images([(entry.image, entry.where) for entry in entries], source)
        findings = combined(entries, len(self.findings))
        tokens = self._tokenizer.encode([entry.text for entry in entries])
        return Pairs(images, tokens, torch.from_numpy(findings))


class PooledPairs(FilePairs):
    """One pool of pairs, divided among simulated sites."""

    def __init__(
        self,
        options: PairsOptions,
        findings: tuple[str, ...],
        folder: Path,
        seed: int,
        *,
        load: Callable[[], Entries],
        images: Path,
        divide: Divide,
    ) -> None:
        super().__init__(options, findings, folder, read=self._share, images=lambda _: images)
        self.pool = Pool(lambda: _parts(load()), divide, seed)

    def _share(self, site_id: SiteId) -> Entries:
        index = self.sites.index(site_id)
        parts = zip(self.pool.records, self.pool.partition, strict=True)
        return [entries[row] for entries, rows in parts for row in rows[index]]


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
            message = f"{line.where}: there is no report"
            unfit(DataError(message, remedy='check data.text_columns, or set data.without_text = "skip"'))
        patient = None if options.patient_column is None else who
        return PairEntry(image, text, self._findings(line), held_out, line.where, patient)

    def _findings(self, line: Line) -> tuple[int, ...]:
        options = self._options
        counts = counted(options.uncertain, options.present)
        findings = [line.flag(column, *counts) for column in options.finding_columns]
        for column, values in options.categories.items():
            value = line.text(column)
            if value and value not in values:
                unfit(line.wrong(column, "is not one of the values in data.categories", "list every value"))
            findings += [int(value == one) for one in values]
        return tuple(findings)


def image_text(options: ImageTextOptions, seed: int, folder: Path) -> ImageTextData:
    """Any table of image-report pairs with a folder or zip of images."""
    table = PairTable(options, folder, seed)
    if options.separate:
        return FilePairs(options, options.findings, folder, read=table.read, images=table.images)
    divide = divided_by(options.partition, len(options.site_ids()), options.alpha, options.min_records)
    return PooledPairs(
        options, options.findings, folder, seed, load=table.read, images=table.images(None), divide=divide
    )


def divided_by(partition: str, sites: int, alpha: float, min_records: int) -> Divide:
    """The division that a study names: ``dirichlet`` (over combinations of findings) or ``iid``."""

    def divide(parts: Parts, rng: np.random.Generator) -> tuple[Partition, Partition]:
        train, test = parts
        if partition == "iid":
            return iid(len(train), sites, min_records, rng), iid(len(test), sites, 0, rng)
        width = len((*train, *test)[0].findings) if (train or test) else 0
        classes = [combination(combined(part, width)) for part in parts]
        return by_combination(classes[0], classes[1], sites, alpha, min_records, rng)

    return divide


def _parts(entries: Entries) -> Parts:
    train = tuple(entry for entry in entries if not entry.held_out)
    return train, tuple(entry for entry in entries if entry.held_out)


def combined(entries: Sequence[PairEntry], findings: int) -> NDArray[np.int64]:
    """The findings of entries as [n, findings]."""
    return np.array([entry.findings for entry in entries], dtype=np.int64).reshape(len(entries), findings)
