"""Image sites, text sites and pairs sites in one study: what such a data set is, and the check all pass.

Three kinds of sites hold three kinds of records: images with a class, texts with a class, and images with
captions. Everything but the records is public and follows from the study file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from secfed.algorithms.data import checks
from secfed.algorithms.framework.datasets import SiteId, no_records
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

    images: Tensor | None = None  # [m, channels, size, size] float32, standardised; None at text sites
    tokens: Tensor | None = None  # [n, length] int64; 0 is padding, at the end only; None at image sites
    labels: Tensor | None = None  # [n] int64, the class of each image or text; None at pairs sites
    sources: Tensor | None = (
        None  # [n] int64, the image (0 .. m-1) that each caption describes; at pairs sites
    )

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
class TransferData(checks.ImagesAndTextsFacts, Protocol):
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


@runtime_checkable
class PublicPairs(Protocol):
    """A data set with pairs that every party of a study may have, and no hospital holds."""

    def public_pairs(self, count: int) -> Samples:
        """So many; the same for everybody."""


def check_transfer(site_id: SiteId, data: TransferSite, facts: TransferData) -> TransferSite:
    """Check one site's records against the public facts, as :func:`checked` does; all pass through here.

    DataError also for another kind than the study says, no records, and other parts than its kind has.
    """
    if facts.kind_of.get(site_id) != data.kind:
        raise DataError(
            f"site {site_id!r} does not hold what the study says",
            remedy="check the site's name, and which sites [data] lists as image, text and pairs sites",
        )
    wanted = _PARTS[data.kind]
    for field, part in checks.PARTS.items():
        held = tuple(name for name, values in vars(getattr(data, field)).items() if values is not None)
        if held != wanted:
            what = f"have {', '.join(held) or 'nothing'}, but those of {data.kind} sites have"
            raise checks.unusable(site_id, part, f"{what} {', '.join(wanted)}")
    if not len(data.train) and not len(data.test):
        raise no_records(site_id)
    classes = facts.image_classes if data.kind == "image" else facts.text_classes
    columns = {
        "images": checks.image_column(facts),
        "tokens": checks.text_column(facts),
        "labels": checks.class_column("label", classes),
        "sources": checks.Column((), torch.int64, lambda _: None, lambda sources: sources),
    }
    return checks.checked(site_id, data, {name: columns[name] for name in wanted}, _not_together)


def _not_together(samples: Samples) -> str | None:
    labels, sources, rows = samples.labels, samples.sources, len(samples)
    if labels is not None and len(labels) != rows:
        return "do not have one label each"
    if sources is None or samples.images is None:
        return None
    if len(sources) != rows:
        return "do not say of every caption which image it describes"
    if rows and not 0 <= int(sources.min()) <= int(sources.max()) < len(samples.images):
        return "have a caption of an image that is not there"
    if len(torch.unique(sources)) < len(samples.images):
        return "have an image without a caption"
    return None
