"""Image-report pairs: what a data set of them is to an algorithm, and the check that every site's pairs pass.

What is public: the sites, the shape of an image, the length of a report in tokens, the size of the
vocabulary and the names of the findings; all of it follows from the study file. A vocabulary made from
records would let words out that only one patient's report has, so vocabularies come from the study or
from a published list, never from the sites' reports.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from secfed.algorithms.data.checks import (
    blank_tokens,
    image_fault,
    pixel_fault,
    text_fault,
    token_fault,
    unusable,
)
from secfed.algorithms.data.tokens import readable_tokens
from secfed.algorithms.framework.datasets import FederatedData, SiteId, no_records, no_training_records
from secfed.algorithms.framework.unfit import unfit, zero_if_not_finite


@dataclass(frozen=True, repr=False)
class Pairs:
    """Image-report pairs; row i of every tensor is the same record.

    Attributes:
        images: [n, channels, size, size] float32, standardised.
        tokens: [n, length] int64; 0 is padding, at the end only.
        findings: [n, findings] int64 of 0 and 1: for partitions, probes and scores, never for training.
        masks: [n, size, size] bool, where the finding is; or None.

    Security: single-site values; nothing of it may leave except inside a protected sum.
    """

    images: torch.Tensor
    tokens: torch.Tensor
    findings: torch.Tensor
    masks: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: torch.Tensor) -> Pairs:
        """The pairs at these positions ([k] int64), in this order."""
        masks = None if self.masks is None else self.masks[rows]
        return Pairs(self.images[rows], self.tokens[rows], self.findings[rows], masks)


@dataclass(frozen=True, repr=False)
class ImageTextSite:
    """One site's pairs.

    Attributes:
        train: what it trains on, at least one pair.
        test: held out for retrieval; may be empty.
        train_patients: whose each training pair is, as numbers that mean nothing elsewhere; None where the
            data set does not say.
    """

    train: Pairs
    test: Pairs
    train_patients: tuple[int, ...] | None = None


@runtime_checkable
class ImageTextData(FederatedData, Protocol):
    """A data set of image-report pairs."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image; height equals width."""

    @property
    def text_length(self) -> int:
        """Tokens per report, padding included."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""

    @property
    def findings(self) -> tuple[str, ...]:
        """Names of the findings; may be empty."""

    def site(self, site_id: SiteId) -> ImageTextSite:
        """One site's pairs.

        Raises:
            DataError: pairs that are missing, empty or malformed, naming the site.
        """


def check_image_text(site_id: SiteId, data: ImageTextSite, facts: ImageTextData) -> ImageTextSite:
    """Check one site's pairs against the public facts; every data set passes through here.

    Returns:
        The same; at a hospital with defaults for values that do not fit, and with at least one training
        pair: see :mod:`secfed.algorithms.framework.unfit`.

    Raises:
        DataError: a wrong shape or type; in a simulation also no pairs, NaN or Inf, a token outside the
            vocabulary, padding in the middle of a report, an empty report, a finding that is not 0 or 1.
            Names the site and never a value.
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
    findings = pairs.findings
    what = pixel_fault(pairs.images) or token_fault(pairs.tokens, facts.vocabulary)
    if what is None and findings.numel() and not 0 <= int(findings.min()) <= int(findings.max()) <= 1:
        what = "have findings other than 0 and 1"
    return what
