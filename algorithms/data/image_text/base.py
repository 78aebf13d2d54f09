"""Image-report pairs: what a data set of them is to an algorithm, and the check that every site's pairs pass.

Everything but the pairs is public and follows from the study file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

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
from secfed.algorithms.framework.unfit import unfit, zero_if_not_finite


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
class ImageTextData(ImagesAndTextsFacts, Protocol):
    """A data set of image-report pairs."""

    @property
    def findings(self) -> tuple[str, ...]:
        """Names of the findings; may be empty."""

    def site(self, site_id: SiteId) -> ImageTextSite:
        """One site's pairs; DataError, naming the site, for pairs that are missing, empty or malformed."""


def check_image_text(site_id: SiteId, data: ImageTextSite, facts: ImageTextData) -> ImageTextSite:
    """Check one site's pairs against the public facts; every data set passes through here.

    At a hospital values that do not fit become defaults, and there is at least one training pair
    (:mod:`secfed.algorithms.framework.unfit`). DataError, which names no value, for a wrong shape or type; in
    a simulation also for values that do not fit.
    """
    if not len(data.train):
        # Which pairs are used can follow from their values: columns of the split, reports without words.
        unfit(no_training_records(site_id) if len(data.test) else no_records(site_id))
        patients = None if data.train_patients is None else (0,)
        data = replace(data, train=_blank_pair(facts), train_patients=patients)
    checked: list[Pairs] = []
    for part, pairs in (("training", data.train), ("held-out", data.test)):
        what = _fault(pairs, facts)
        if what is None and part == "training" and data.train_patients is not None:
            what = "do not have one patient each" if len(data.train_patients) != len(pairs) else None
        if what is not None:
            raise unusable(site_id, part, what)
        what = _unfit_value(pairs, facts)
        if what is not None:
            unfit(unusable(site_id, part, what))
            pairs = replace(
                pairs,
                images=zero_if_not_finite(pairs.images),
                tokens=readable_tokens(pairs.tokens, facts.vocabulary),
                findings=torch.where(pairs.findings == 1, 1, 0),
            )
        checked.append(pairs)
    return replace(data, train=checked[0], test=checked[1])


def _blank_pair(facts: ImageTextData) -> Pairs:
    tokens = blank_tokens(facts.text_length, facts.vocabulary)
    findings = torch.zeros(1, len(facts.findings), dtype=torch.int64)
    return Pairs(torch.zeros(1, *facts.image_shape), tokens, findings)


def _fault(pairs: Pairs, facts: ImageTextData) -> str | None:
    """What is wrong with the shapes and types of these pairs."""
    images, findings, masks = pairs.images, pairs.findings, pairs.masks
    what = image_fault(images, facts.image_shape) or text_fault(pairs.tokens, facts.text_length)
    if what is not None:
        return what
    if tuple(findings.shape[1:]) != (len(facts.findings),) or findings.dtype != torch.int64:
        return f"have findings that are not {len(facts.findings)} int64 numbers per pair"
    if not len(images) == len(pairs.tokens) == len(findings):
        return "do not have one image, one text and one row of findings each"
    if masks is not None:
        shape = (len(images), *facts.image_shape[1:])
        if tuple(masks.shape) != shape or masks.dtype != torch.bool:
            return "have masks that are not one bool per pixel"
    return None


def _unfit_value(pairs: Pairs, facts: ImageTextData) -> str | None:
    """What is wrong with single values, in words without them."""
    what = pixel_fault(pairs.images) or token_fault(pairs.tokens, facts.vocabulary)
    if what is None and bool(((pairs.findings < 0) | (pairs.findings > 1)).any()):
        return "have findings other than 0 and 1"
    return what
