"""Image-report pairs: what a data set of them is to an algorithm, and the check that every site's pairs pass.

Everything but the pairs is public and follows from the study file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from secfed.algorithms.data import checks
from secfed.algorithms.framework.datasets import SiteId


@dataclass(frozen=True, repr=False)
class Pairs:
    """Image-report pairs; row i of every tensor is the same record.

    Security: single-site values; nothing of it may leave except inside a protected sum.
    """

    images: torch.Tensor  # [n, channels, size, size] float32, standardised
    tokens: torch.Tensor  # [n, length] int64; 0 is padding, at the end only
    findings: torch.Tensor  # [n, findings] int64 of 0 and 1: for partitions and scores, never for training
    masks: torch.Tensor | None = None  # [n, size, size] bool, where the finding is

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: torch.Tensor) -> Pairs:
        """The pairs at these positions ([k] int64), in this order."""
        masks = None if self.masks is None else self.masks[rows]
        return Pairs(self.images[rows], self.tokens[rows], self.findings[rows], masks)


@dataclass(frozen=True, repr=False)
class ImageTextSite:
    """One site's pairs."""

    train: Pairs  # at least one
    test: Pairs  # held out for retrieval; may be empty
    # Whose each training pair is, as numbers that mean nothing elsewhere; None where nobody says.
    train_patients: tuple[int, ...] | None = None


@runtime_checkable
class ImageTextData(checks.ImagesAndTextsFacts, Protocol):
    """A data set of image-report pairs."""

    @property
    def findings(self) -> tuple[str, ...]:
        """Names of the findings; may be empty."""

    def site(self, site_id: SiteId) -> ImageTextSite:
        """One site's pairs; DataError, naming the site, for pairs that are missing, empty or malformed."""


def check_image_text(site_id: SiteId, data: ImageTextSite, facts: ImageTextData) -> ImageTextSite:
    """Check one site's pairs against the public facts, as :func:`checked` does; all pass through here."""
    columns = {
        "images": checks.image_column(facts),
        "tokens": checks.text_column(facts),
        "findings": checks.class_column("finding", 2, len(facts.findings)),
    }

    def together(pairs: Pairs) -> str | None:
        if not len(pairs.images) == len(pairs.tokens) == len(pairs.findings):
            return "do not have one image, one text and one row of findings each"
        shape = (len(pairs), *facts.image_shape[1:])
        if pairs.masks is None or (tuple(pairs.masks.shape) == shape and pairs.masks.dtype == torch.bool):
            return None
        return "have masks that are not one bool per pixel"

    return checks.checked(site_id, data, columns, together)
