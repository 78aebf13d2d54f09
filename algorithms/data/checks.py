"""What is wrong with tensors of images and texts, in words that name no value."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from secfed.algorithms.data.tokens import readable_tokens
from secfed.algorithms.framework.datasets import FederatedData, SiteId
from secfed.errors import DataError


class ImagesAndTextsFacts(FederatedData, Protocol):
    """What is public of images and texts."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image; height equals width."""

    @property
    def text_length(self) -> int:
        """Tokens per text, padding included."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""


def unusable(site_id: SiteId, part: str, what: str) -> DataError:
    """The error of a site whose training or held-out records cannot be used."""
    return DataError(
        f"site {site_id!r}: {part} records {what}",
        remedy="every site must prepare its records in the same way, as the study's [data] says",
    )


def image_fault(images: Tensor, shape: tuple[int, int, int]) -> str | None:
    """What is wrong with the shape and type of images."""
    return _fault("images", images, tuple(shape), torch.float32)


def text_fault(tokens: Tensor, length: int) -> str | None:
    """What is wrong with the shape and type of texts."""
    return _fault("texts", tokens, (length,), torch.int64)


def _fault(what: str, values: Tensor, shape: tuple[int, ...], kind: torch.dtype) -> str | None:
    if tuple(values.shape[1:]) == shape and values.dtype == kind:
        return None
    return (
        f"have {what} of shape {tuple(values.shape[1:])} and type {values.dtype}, "
        f"but the study's have {shape} and {kind}"
    )


def pixel_fault(images: Tensor) -> str | None:
    """Whether some pixel is not a finite number."""
    return None if bool(torch.isfinite(images).all()) else "contain NaN or infinite pixels"


def token_fault(tokens: Tensor, vocabulary: int) -> str | None:
    """Which token a model could not read: unknown, or padding before or between words."""
    if not len(tokens):
        return None
    if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        return f"have a token outside the vocabulary of {vocabulary}"
    words = tokens != 0
    if not bool(words[:, 0].all()):
        return "have an empty text, or padding before its words"
    if bool((words[:, 1:] & ~words[:, :-1]).any()):
        return "have padding between the words of a text"
    return None


def blank_tokens(length: int, vocabulary: int) -> Tensor:
    """One text without a word: [1, length]."""
    return readable_tokens(torch.zeros(1, length, dtype=torch.int64), vocabulary)
