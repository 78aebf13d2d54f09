"""Image sites, text sites and pairs sites in one study: what such a data set is, and the check all pass.

Three kinds of sites hold three kinds of records: images with a class, texts with a class, and images with
captions. Everything but the records is public and follows from the study file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from secfed.algorithms.data.checks import (
    ImagesAndTextsFacts,
    blank_tokens,
    image_fault,
    pixel_fault,
    text_fault,
    token_fault,
    unusable,
)
from secfed.algorithms.data.tokens import readable_tokens
from secfed.algorithms.framework.datasets import SiteId, no_records, no_training_records
from secfed.algorithms.framework.unfit import first_class_if_unknown, unfit, zero_if_not_finite
from secfed.errors import DataError

Kind = Literal["image", "text", "pairs"]

_PARTS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "image": ("images", "labels"),
    "text": ("tokens", "labels"),
    "pairs": ("images", "tokens", "sources"),
}


@dataclass(frozen=True, repr=False)
class Samples:
    """Records of one kind of site; the parts that this kind does not have are None.

    Security: single-site values; nothing of it may leave except inside a protected sum.
    """

    images: Tensor | None  # [m, channels, size, size] float32, standardised; None at text sites
    tokens: Tensor | None  # [n, length] int64; 0 is padding, at the end only; None at image sites
    labels: Tensor | None  # [n] int64, the class of each image or text; None at pairs sites
    sources: Tensor | None  # [n] int64, the image (0 .. m-1) that each caption describes; at pairs sites

    def __len__(self) -> int:
        """Rows to train on: captions or texts; at image sites, images."""
        rows = self.images if self.tokens is None else self.tokens
        return 0 if rows is None else len(rows)


@dataclass(frozen=True, repr=False)
class TransferSite:
    """One site's records."""

    kind: Kind
    train: Samples  # at least one row
    test: Samples  # may be empty; no image and no patient of it is among the training rows
    # Whose each training row is, as numbers that mean nothing elsewhere; None where nobody says.
    train_patients: tuple[int, ...] | None = None


@runtime_checkable
class TransferData(ImagesAndTextsFacts, Protocol):
    """A data set of image sites, text sites and pairs sites."""

    @property
    def kind_of(self) -> Mapping[SiteId, Kind]:
        """Every site of the study, and what it holds."""

    @property
    def image_classes(self) -> int:
        """Classes at image sites, at least 1; without meaning where the study has none."""

    @property
    def text_classes(self) -> int:
        """Classes at text sites, at least 1; without meaning where the study has none."""

    def site(self, site_id: SiteId) -> TransferSite:
        """One site's records."""


def check_transfer(site_id: SiteId, data: TransferSite, facts: TransferData) -> TransferSite:
    """Check one site's records against the public facts; every data set passes through here.

    At a hospital values that do not fit become defaults, and there is at least one training record
    (:mod:`secfed.algorithms.framework.unfit`). DataError, which names no value, for another kind than the
    study says, no records, and wrong parts, shapes or types; in a simulation also for values that do not fit.
    """
    if facts.kind_of.get(site_id) != data.kind:
        raise DataError(
            f"site {site_id!r} does not hold what the study says",
            remedy="check the site's name, and which sites [data] lists as image, text and pairs sites",
        )
    checked: list[Samples] = []
    for part, samples in (("training", data.train), ("held-out", data.test)):
        what = _fault(data.kind, samples, facts)
        if what is not None:
            raise unusable(site_id, part, what)
        what = _unfit_value(data.kind, samples, facts)
        if what is not None:
            unfit(unusable(site_id, part, what))
            samples = _fitting(data.kind, samples, facts)
        checked.append(samples)
    if not len(data.train):
        if not len(data.test):
            raise no_records(site_id)
        unfit(no_training_records(site_id))
        checked[0] = _blank(data.kind, facts)
        data = replace(data, train_patients=None if data.train_patients is None else (0,))
    if checked[0] is not data.train or checked[1] is not data.test:
        data = replace(data, train=checked[0], test=checked[1])
    if data.train_patients is not None and len(data.train_patients) != len(data.train):
        raise DataError(
            f"site {site_id!r} does not have one patient per training record",
            remedy="give the patient of every training record, or of none",
        )
    return data


def _unfit_value(kind: Kind, samples: Samples, facts: TransferData) -> str | None:
    """What is wrong with single values, in words without them."""
    images, tokens, labels = samples.images, samples.tokens, samples.labels
    what = None if images is None else pixel_fault(images)
    what = what or (None if tokens is None else token_fault(tokens, facts.vocabulary))
    classes = _classes(kind, facts)
    if what is None and labels is not None and bool(((labels < 0) | (labels >= classes)).any()):
        return f"have a label outside the study's {classes} classes"
    return what


def _fitting(kind: Kind, samples: Samples, facts: TransferData) -> Samples:
    """The same, with defaults for values that do not fit."""
    images, tokens, labels = samples.images, samples.tokens, samples.labels
    return replace(
        samples,
        images=None if images is None else zero_if_not_finite(images),
        tokens=None if tokens is None else readable_tokens(tokens, facts.vocabulary),
        labels=None if labels is None else first_class_if_unknown(labels, _classes(kind, facts)),
    )


def _blank(kind: Kind, facts: TransferData) -> Samples:
    images = None if kind == "text" else torch.zeros(1, *facts.image_shape)
    tokens = None if kind == "image" else blank_tokens(facts.text_length, facts.vocabulary)
    zero = torch.zeros(1, dtype=torch.int64)
    return Samples(images, tokens, *((None, zero) if kind == "pairs" else (zero, None)))


def _classes(kind: Kind, facts: TransferData) -> int:
    return facts.image_classes if kind == "image" else facts.text_classes


def _fault(kind: Kind, samples: Samples, facts: TransferData) -> str | None:
    """What is wrong with the shapes and types of these records, or with what belongs together."""
    images, tokens, labels, sources = samples.images, samples.tokens, samples.labels, samples.sources
    parts = {"images": images, "tokens": tokens, "labels": labels, "sources": sources}
    held = tuple(name for name, part in parts.items() if part is not None)
    if held != _PARTS[kind]:
        wanted = ", ".join(_PARTS[kind])
        return f"have {', '.join(held) or 'nothing'}, but those of {kind} sites have {wanted}"
    what = None if images is None else image_fault(images, facts.image_shape)
    what = what or (None if tokens is None else text_fault(tokens, facts.text_length))
    if what is None and labels is not None and not _one_each(labels, len(samples)):
        return "do not have one int64 label each"
    if what is None and sources is not None and images is not None:
        return _source_fault(sources, len(samples), len(images))
    return what


def _one_each(numbers: Tensor, rows: int) -> bool:
    return tuple(numbers.shape) == (rows,) and numbers.dtype == torch.int64


def _source_fault(sources: Tensor, rows: int, images: int) -> str | None:
    if not _one_each(sources, rows):
        return "do not say with one int64 number per caption which image it describes"
    if rows and not 0 <= int(sources.min()) <= int(sources.max()) < images:
        return "have a caption of an image that is not there"
    if len(torch.unique(sources)) < images:
        return "have an image without a caption"
    return None
