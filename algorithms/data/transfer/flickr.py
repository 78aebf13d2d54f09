"""``flickr-transfer``: real images, real texts and real image-caption pairs at simulated sites.

Image sites hold 30 classes of CIFAR-100 or OrganCMNIST (11), text sites AG News (4) or abstracts of medical
articles (5), pairs sites Flickr8k or COCO; images and texts divided by Dirichlet proportions, pairs evenly.
With two sets of a kind, the second half of its sites holds the second, whose classes follow the first's.
Official divisions are kept (OrganCMNIST's validation part is left out); a text is held out by what it says
and the study's seed, so equal texts share a side everywhere.

Source: Krizhevsky, CIFAR-100, 2009; Yang et al., "MedMNIST v2", Scientific Data 10, 2023 (OrganCMNIST);
    Zhang, Zhao, LeCun, NeurIPS 2015 (AG News); Schopf, Braun, Matthes, NLPIR 2022 (medical abstracts);
    Hodosh, Young, Hockenmaier, JAIR 47, 2013 (Flickr8k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.data.base import site_index
from secfed.algorithms.data.folders import data_folder, existing_file
from secfed.algorithms.data.image_files import open_source
from secfed.algorithms.data.images_and_texts import ImagesAndTexts, drawn
from secfed.algorithms.data.multiview.files import ViewFile
from secfed.algorithms.data.partition import (
    Partition,
    Pool,
    check_enough,
    class_shares,
    cut,
    drawn_until,
    iid,
    joined,
)
from secfed.algorithms.data.prepare import PreparedRecords
from secfed.algorithms.data.table_lines import Line, read_table, table_inside
from secfed.algorithms.data.tokens import words_of
from secfed.algorithms.data.transfer.base import Kind, Samples, TransferSite, check_transfer
from secfed.algorithms.data.transfer.coco import PARTS, Captioned, captioned
from secfed.algorithms.data.transfer.files import integers, pixels, prepared_images
from secfed.algorithms.data.transfer.options import FlickrTransferOptions
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.randomness import numpy_generator
from secfed.errors import DataError

IMAGES: Final = {"cifar-100": ("cifar100_30classes.npz", 30), "organcmnist": ("organcmnist.npz", 11)}
PAIRS: Final = "flickr8k_2500_96.zip"
_COCO: Final = "coco"
_CAPTIONS: Final = "captions.jsonl"
_USE_PUBLISHED: Final = "use the published file"
_MORE: Final = "more "  # before the kind: the pool of a second set

Ids = NDArray[np.int64]
Labelled = tuple[PreparedRecords, PreparedRecords]  # training and held-out images or texts
_Read = Callable[[str, int], Labelled]  # of a set by name, whose classes begin at a number


@dataclass(frozen=True)
class _Texts:
    """A published table of texts: its file, the columns of a text, the column and names of the classes."""

    file: str
    columns: tuple[str, ...]
    label: str
    classes: tuple[str, ...]


TEXTS: Final = {
    "ag-news": _Texts(
        "ag_news_7600.csv.gz", ("title", "description"), "class", ("World", "Sports", "Business", "Sci/Tech")
    ),
    "med-abstracts": _Texts(
        "medabstracts_test2888.csv.gz", ("medical_abstract",), "condition_label", ("1", "2", "3", "4", "5")
    ),
}


class FlickrTransfer(ImagesAndTexts):
    """Published sets, divided among simulated sites; see the module. Another seed gives another division."""

    def __init__(self, options: FlickrTransferOptions, seed: int, folder: Path) -> None:
        super().__init__(options, options.first_token_tokenizer(folder))
        self.kind_of: dict[SiteId, Kind] = options.kind_of
        self._of_first: dict[Kind, int] = {}  # how many sites of a kind hold its first set
        self._options, self._seed = options, seed
        self._root = data_folder() if options.path is None else folder / options.path
        self.pools: dict[str, Pool[Any, tuple[Partition, Partition]]] = {
            "pairs": Pool(self._read_pairs, self._divide_pairs, seed, "pairs")
        }
        images, texts = (options.images, options.more_images), (options.texts, options.more_texts)
        self.image_classes = self._add("image", options.image_sites, images, self._read_images)
        self.text_classes = self._add("text", options.text_sites, texts, self._read_texts)

    def site(self, site_id: SiteId) -> TransferSite:
        """One site's share."""
        site_index(self.sites, site_id)
        kind = self.kind_of[site_id]
        index = [site for site, its in self.kind_of.items() if its == kind].index(site_id)
        of_kind: dict[Kind, Callable[[Any, Ids], Samples]] = {
            "image": self._labelled_images,
            "text": self._classified,
            "pairs": self._pairs,
        }
        first = self._of_first.get(kind, len(self.sites))
        samples, pool = of_kind[kind], self.pools[kind if index < first else _MORE + kind]
        index %= first
        train, test = (
            samples(records, rows[index]) for records, rows in zip(pool.records, pool.partition, strict=True)
        )
        return check_transfer(site_id, TransferSite(kind, train, test), self)

    def _add(self, kind: Kind, sites: int, sets: Sequence[str | None], read: _Read) -> int:
        """A pool for each set of a kind, of half of its sites if there are two; how many classes in all."""
        named = [one for one in sets if one is not None]
        self._of_first[kind] = first = -(-sites // len(named))
        classes = 0
        for name, part, count in zip(named, (kind, _MORE + kind), (first, sites - first), strict=False):
            self.pools[part] = Pool(partial(read, name, classes), self._divider(count), self._seed, part)
            classes += IMAGES[name][1] if kind == "image" else len(TEXTS[name].classes)
        return classes

    def _divider(self, sites: int) -> Callable[[Any, np.random.Generator], tuple[Partition, Partition]]:
        alpha, least = self._options.alpha, self._options.min_records
        return lambda pool, rng: divide(pool[0].y, pool[1].y, sites, alpha, least, rng)

    def _divide_pairs(self, pool: Any, rng: np.random.Generator) -> tuple[Partition, Partition]:
        del rng  # the two parts have generators of their own
        sites = self._options.pair_sites
        check_enough(len(pool[0]), sites, self._options.min_records)
        train, test = (
            iid(len(entries), sites, 0, numpy_generator(self._seed, "partition", "pairs", part))
            for entries, part in zip(pool, ("train", "test"), strict=True)
        )
        return train, test

    def _labelled_images(self, pool: PreparedRecords, rows: Ids) -> Samples:
        images = prepared_images(pool.x[rows], self._rules)
        return Samples(images=images, labels=torch.from_numpy(pool.y[rows]))

    def _classified(self, pool: PreparedRecords, rows: Ids) -> Samples:
        tokens = self._tokenizer.encode(pool.x[rows].tolist())
        return Samples(tokens=tokens, labels=torch.from_numpy(pool.y[rows]))

    def _pairs(self, pool: list[Captioned], rows: Ids) -> Samples:
        entries = [pool[row] for row in rows.tolist()]
        with open_source(self._pairs_at, "data.path") as source:
            images = self._images([(image, where) for image, where, _ in entries], source)
        captions = [caption for _, _, of_image in entries for caption in of_image]
        sources = torch.arange(len(entries)).repeat_interleave(self._options.captions_per_image)
        return Samples(images, self._tokenizer.encode(captions), None, sources)

    def _read_images(self, name: str, before: int) -> Labelled:
        """A set of images; its classes are counted from ``before``."""
        path = self._file(IMAGES[name][0])
        keys = [f"{part}_{what}" for part in ("train", "test") for what in ("images", "labels")]
        arrays = ViewFile(path).arrays(*keys)
        parts = []
        for part in ("train", "test"):
            images = pixels(arrays[f"{part}_images"], f"{path.name}: '{part}_images'")
            column = arrays[f"{part}_labels"]
            column = column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column  # as in MedMNIST
            labels = integers(column, f"{path.name}: '{part}_labels'")
            if len(images) != len(labels):
                raise DataError(f"{path.name}: not one label per image", remedy=_USE_PUBLISHED)
            parts.append(PreparedRecords(images, labels + before))
        return parts[0], parts[1]

    def _read_texts(self, name: str, before: int) -> Labelled:
        """A set of texts; its classes are counted from ``before``."""
        known = TEXTS[name]
        pool: tuple[tuple[list[str], list[int]], tuple[list[str], list[int]]] = (([], []), ([], []))
        for line in read_table(self._file(known.file)):
            label = line.text(known.label)
            text = " ".join(line.text(column) for column in known.columns).strip()
            if label not in known.classes or not words_of(text):
                raise DataError(f"{line.where}: no text, or an unknown class", remedy=_USE_PUBLISHED)
            texts, labels = pool[drawn(self._options.test_fraction, self._seed, "held out", text)]
            texts.append(text)
            labels.append(before + known.classes.index(label))
        train, test = (
            PreparedRecords(np.array(texts, dtype=object), np.array(labels, dtype=np.int64))
            for texts, labels in pool
        )
        return train, test

    @property
    def _pairs_at(self) -> Path:
        """Where the images of pairs are."""
        return self._root / _COCO if self._options.captions == "coco" else self._file(PAIRS)

    def _read_pairs(self) -> tuple[list[Captioned], list[Captioned]]:
        if self._options.captions == "coco":
            train, test = (
                captioned(self._pairs_at, part, self._options.captions_per_image) for part in PARTS
            )
            return train, test
        pool: dict[str, list[Captioned]] = {"train": [], "test": []}
        for line in table_inside(self._file(PAIRS), _CAPTIONS):
            split = line.text("split")
            if split not in pool:
                raise DataError(f"{line.where}: an unknown split", remedy=_USE_PUBLISHED)
            captions = _captions(line)[: self._options.captions_per_image]
            if len(captions) < self._options.captions_per_image:
                raise DataError(f"{line.where}: too few captions", remedy=_USE_PUBLISHED)
            pool[split].append((line.text("image"), line.where, captions))
        return pool["train"], pool["test"]

    def _file(self, name: str) -> Path:
        return existing_file("flickr-transfer", self._root / name)


def divide(
    train: Ids, test: Ids, sites: int, alpha: float, min_records: int, rng: np.random.Generator
) -> tuple[Partition, Partition]:
    """Divide training and held-out records among sites, class by class, by Dirichlet(alpha) proportions.

    A site that holds an even share already gets nothing of the next class. Draws are repeated until every
    site has ``min_records`` training records.

    Source: Li, Diao, Chen, He, ICDE 2022 (the cap as in its published code); Hsu, Qi, Brown 2019 (arXiv
        1909.06335), section 3.
    """
    check_enough(len(train), sites, min_records)
    classes = np.unique(np.concatenate([train, test]))

    def draw() -> tuple[Partition, Partition] | None:
        shares = class_shares(len(classes), sites, alpha, rng)
        pieces: list[tuple[Partition, Partition]] = []
        held = np.zeros(sites)
        for label, share in zip(classes, shares, strict=True):
            open_shares = share * (held < len(train) / sites)
            if open_shares.sum() <= 0:  # a tiny alpha: all of it would go to sites that are full
                return None
            cuts = np.cumsum(open_shares / open_shares.sum())[:-1]
            pieces.append((cut(train, label, cuts, rng), cut(test, label, cuts, rng)))
            held += np.array([len(piece) for piece in pieces[-1][0]])
        if held.min() < min_records:
            return None
        train_parts, test_parts = (
            [np.sort(share) for share in joined(list(part))] for part in zip(*pieces, strict=True)
        )
        return train_parts, test_parts

    return drawn_until(draw, alpha, min_records)


def _captions(line: Line) -> tuple[str, ...]:
    captions = line.value("captions")
    if not isinstance(captions, list) or not all(
        isinstance(text, str) and words_of(text) for text in captions
    ):
        raise DataError(f"{line.where}: the captions are not texts", remedy=_USE_PUBLISHED)
    return tuple(captions)
