"""Image-report pairs in files: ``image-text``, and what the other data sets of real pairs are made of.

Tables are read first and images last: a site decodes its own images only. They are then held in memory,
``size * size * channels * 4`` bytes each (0.2 MB at 224 pixels in grey), so a large collection is used with
``share`` below 1, or divided among real sites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch

from secfed.algorithms.data.image_files import ImageSource, Preparation, open_source, prepared_image
from secfed.algorithms.data.image_text.base import ImageTextData, ImageTextSite, Pairs, check_image_text
from secfed.algorithms.data.image_text.options import ImageTextOptions
from secfed.algorithms.data.image_text.pairs_options import PairsOptions
from secfed.algorithms.data.image_text.partition import by_combination, combination, mean_total_variation
from secfed.algorithms.data.image_text.table import PairEntry, PairTable, combined
from secfed.algorithms.data.partition import Partition, iid
from secfed.algorithms.data.pool import site_index
from secfed.algorithms.data.tokens import Tokenizer
from secfed.algorithms.framework.datasets import SiteId, numbered
from secfed.algorithms.framework.randomness import numpy_generator
from secfed.algorithms.framework.unfit import unfit
from secfed.errors import DataError

Divide = Callable[
    [Sequence[PairEntry], Sequence[PairEntry], np.random.Generator], tuple[Partition, Partition]
]
"""Training and held-out entries to one partition of each."""


class FilePairs:
    """What both kinds of data sets share: public facts, and entries to tensors.

    Args:
        options: how images and reports are prepared.
        sites: of the study.
        findings: names.
        tokenizer: of the reports.
    """

    def __init__(
        self,
        options: PairsOptions,
        *,
        sites: tuple[SiteId, ...],
        findings: tuple[str, ...],
        tokenizer: Tokenizer,
    ) -> None:
        self.sites = sites
        self.image_shape: tuple[int, int, int] = options.image_shape
        self.findings = findings
        self.text_length = tokenizer.length
        self.vocabulary = tokenizer.vocabulary
        self._tokenizer = tokenizer
        self._rules: Preparation = options.preparation()
        self._distinct_test = options.distinct_test

    def for_record_privacy(self, *, slots: bool = False) -> Self:
        """The same pairs: each is prepared by itself, and its part follows from its own line of the table.

        Args:
            slots: whether neighbours replace records. A line whose content changes may then change its
                part, or be left out: what is hidden is a replacement that does neither.
        """
        del slots
        return self

    def finished(
        self, site_id: SiteId, train: Sequence[PairEntry], test: Sequence[PairEntry], images: Path
    ) -> ImageTextSite:
        """Read the images of one site's entries and check the pairs.

        Raises:
            DataError: see :func:`check_image_text`; in a simulation also an image that cannot be used.
        """
        if self._distinct_test:
            test = self._distinct(test)
        with open_source(images) as source:
            patients = numbered(entry.patient for entry in train)
            site = ImageTextSite(self._pairs(train, source), self._pairs(test, source), patients)
        return check_image_text(site_id, site, self)

    def _distinct(self, entries: Sequence[PairEntry]) -> list[PairEntry]:
        """The first entry of each report, as the tokenizer sees reports."""
        rows = self._tokenizer.encode([entry.text for entry in entries]).tolist()
        first = {tuple(row): entry for row, entry in zip(reversed(rows), reversed(entries), strict=True)}
        return list(first.values())[::-1]

    def _pairs(self, entries: Sequence[PairEntry], source: ImageSource) -> Pairs:
        images = torch.empty((len(entries), *self.image_shape), dtype=torch.float32)
        for at, entry in enumerate(entries):
            try:
                content = source.read(entry.image, self._rules.max_bytes, entry.where)
                images[at] = torch.from_numpy(prepared_image(content, self._rules, entry.where))
            except DataError as error:
                unfit(error)
                images[at] = 0.0
        findings = combined(entries, len(self.findings))
        tokens = self._tokenizer.encode([entry.text for entry in entries])
        return Pairs(images, tokens, torch.from_numpy(findings))

    def site(self, site_id: SiteId) -> ImageTextSite:
        """One site's pairs; see the two kinds of data sets."""
        raise NotImplementedError


class PooledPairs(FilePairs):
    """One pool of pairs, divided among simulated sites by the study's seed.

    Args:
        options: how images and reports are prepared.
        load: reads all entries; called once, when the first site asks for its pairs.
        images: the folder or archive.
        divide: see :data:`Divide`. It is how a simulation makes hospitals, and no part of any guarantee: in
            reality a pair belongs where it is.
        sites: names, one per share.
        findings: names.
        tokenizer: of the reports.
        seed: the study's seed.
    """

    def __init__(
        self,
        options: PairsOptions,
        load: Callable[[], Sequence[PairEntry]],
        images: Path,
        divide: Divide,
        *,
        sites: tuple[SiteId, ...],
        findings: tuple[str, ...],
        tokenizer: Tokenizer,
        seed: int,
    ) -> None:
        super().__init__(options, sites=sites, findings=findings, tokenizer=tokenizer)
        self._load, self._images, self._divide, self._seed = load, images, divide, seed

    @cached_property
    def entries(self) -> tuple[tuple[PairEntry, ...], tuple[PairEntry, ...]]:
        """Training and held-out entries of the whole pool."""
        found = self._load()
        return (
            tuple(entry for entry in found if not entry.held_out),
            tuple(entry for entry in found if entry.held_out),
        )

    @cached_property
    def partition(self) -> tuple[Partition, Partition]:
        """Positions in the two parts of :attr:`entries`, one array per site each."""
        return self._divide(*self.entries, numpy_generator(self._seed, "partition"))

    @property
    def total_variation(self) -> float:
        """How different the sites' training findings are, 0 to 1; see :func:`mean_total_variation`."""
        findings = combined(self.entries[0], len(self.findings))
        return mean_total_variation([findings[rows] for rows in self.partition[0]])

    def site(self, site_id: SiteId) -> ImageTextSite:
        """One site's share.

        Raises:
            DataError: no such site, or pairs that cannot be used.
        """
        index = site_index(self.sites, site_id)
        train, test = (
            [entries[row] for row in rows[index]]
            for entries, rows in zip(self.entries, self.partition, strict=True)
        )
        return self.finished(site_id, train, test, self._images)


class SeparatePairs(FilePairs):
    """Pairs that already belong to sites: each hospital reads its own.

    Args:
        options: how images and reports are prepared.
        read: a site to its entries.
        images: a site to its folder or archive.
        sites: of the study.
        findings: names.
        tokenizer: of the reports.
    """

    def __init__(
        self,
        options: PairsOptions,
        read: Callable[[SiteId], Sequence[PairEntry]],
        images: Callable[[SiteId], Path],
        *,
        sites: tuple[SiteId, ...],
        findings: tuple[str, ...],
        tokenizer: Tokenizer,
    ) -> None:
        super().__init__(options, sites=sites, findings=findings, tokenizer=tokenizer)
        self._read, self._images = read, images

    def site(self, site_id: SiteId) -> ImageTextSite:
        """One site's pairs.

        Raises:
            DataError: no such site, or pairs that cannot be used.
        """
        site_index(self.sites, site_id)
        entries = self._read(site_id)
        train = [entry for entry in entries if not entry.held_out]
        test = [entry for entry in entries if entry.held_out]
        return self.finished(site_id, train, test, self._images(site_id))


def image_text(options: ImageTextOptions, seed: int, folder: Path) -> ImageTextData:
    """Any table of image-report pairs with a folder or zip of images.

    Args:
        options: the ``[data]`` table.
        seed: the study's seed.
        folder: where the study file is.

    Raises:
        ConfigError: the tokenizer's files are missing or unusable.
    """
    table = PairTable(options, folder, seed)
    tokenizer = options.make_tokenizer(folder)
    if options.separate:
        return SeparatePairs(
            options,
            table.read,
            table.images,
            sites=options.site_ids(),
            findings=options.findings,
            tokenizer=tokenizer,
        )
    sites = options.site_ids()
    return PooledPairs(
        options,
        table.read,
        table.images(None),
        divided_by(options.partition, len(sites), options.alpha, options.min_records),
        sites=sites,
        findings=options.findings,
        tokenizer=tokenizer,
        seed=seed,
    )


def divided_by(partition: str, sites: int, alpha: float, min_records: int) -> Divide:
    """The division that a ``[data]`` table names: ``dirichlet`` or ``iid``."""
    if partition == "dirichlet":
        return over_combinations(sites, alpha, min_records)
    return evenly(sites, min_records)


def over_combinations(sites: int, alpha: float, min_records: int) -> Divide:
    """Divide every combination of findings by the same Dirichlet proportions in both parts."""

    def divide(
        train: Sequence[PairEntry], test: Sequence[PairEntry], rng: np.random.Generator
    ) -> tuple[Partition, Partition]:
        width = len((*train, *test)[0].findings) if (train or test) else 0
        classes = [combination(combined(part, width)) for part in (train, test)]
        return by_combination(classes[0], classes[1], sites, alpha, min_records, rng)

    return divide


def evenly(sites: int, min_records: int) -> Divide:
    """Random shares of equal size."""

    def divide(
        train: Sequence[PairEntry], test: Sequence[PairEntry], rng: np.random.Generator
    ) -> tuple[Partition, Partition]:
        return iid(len(train), sites, min_records, rng), iid(len(test), sites, 0, rng)

    return divide
