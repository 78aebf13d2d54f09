"""What a dual encoder gives its losses: token features before alignment, and embeddings after it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Features:
    """Token features of a batch of pairs, before alignment.

    Attributes:
        image: [B, 1 + P, d_v]; the first token is the image's own (CLS).
        text: [B, L, d_t]; the first token is the report's own (CLS).
        words: [B, L] bool: True where ``text`` is a token and not padding.
    """

    image: torch.Tensor
    text: torch.Tensor
    words: torch.Tensor


@dataclass(frozen=True)
class Aligned:
    """Embeddings of a batch of pairs.

    Attributes:
        image: [B, d_e], each of L2 norm 1.
        text: [B, d_e], each of L2 norm 1.
        patches: [B, P, d_e]: one embedding per patch, not normalised.
        words: [B, L - 1, d_e]: one per token after the first, not normalised.
        is_word: [B, L - 1] bool: True where ``words`` is a token and not padding.
        patch_weights: [B, P] at least 0, or None: how much the image's own token attends to each patch in
            the last layer; without a gradient.
        word_weights: [B, L - 1] at least 0, or None: the same for words, 0 for padding.
        tokens: [B, L] int64, or None: the ids themselves, for losses that merge parts of a word.
    """

    image: torch.Tensor
    text: torch.Tensor
    patches: torch.Tensor
    words: torch.Tensor
    is_word: torch.Tensor
    patch_weights: torch.Tensor | None = None
    word_weights: torch.Tensor | None = None
    tokens: torch.Tensor | None = None

    @property
    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``(image, text)``."""
        return self.image, self.text


@dataclass(frozen=True)
class ObjectiveValue:
    """One evaluation of a pre-training objective.

    Attributes:
        total: what training minimises; a scalar with gradient.
        infonce: the plain global InfoNCE, averaged over both directions; robust weights are made from it
            alone.
    """

    total: torch.Tensor
    infonce: torch.Tensor
