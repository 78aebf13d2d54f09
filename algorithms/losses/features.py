"""What a dual encoder gives its losses: token features before alignment, and embeddings after it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Features:
    """Token features of a batch of pairs, before alignment."""

    image: torch.Tensor  # [B, 1 + P, d_v]; the first token is the image's own (CLS)
    text: torch.Tensor  # [B, L, d_t]; the first token is the report's own (CLS)
    words: torch.Tensor  # [B, L] bool: True where ``text`` is a token and not padding


@dataclass(frozen=True)
class Aligned:
    """Embeddings of a batch of pairs."""

    image: torch.Tensor  # [B, d_e], each of L2 norm 1
    text: torch.Tensor  # [B, d_e], each of L2 norm 1
    patches: torch.Tensor  # [B, P, d_e]: one embedding per patch, not normalised
    words: torch.Tensor  # [B, L - 1, d_e]: one per token after the first, not normalised
    is_word: torch.Tensor  # [B, L - 1] bool: True where ``words`` is a token and not padding
    # [B, P], at least 0: how much the image's own token attends to each patch in the last layer; no gradient.
    patch_weights: torch.Tensor | None = None
    word_weights: torch.Tensor | None = None  # [B, L - 1]: the same for words, 0 for padding
    tokens: torch.Tensor | None = None  # [B, L] int64: the ids, for losses that merge parts of a word

    @property
    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``(image, text)``."""
        return self.image, self.text


@dataclass(frozen=True)
class ObjectiveValue:
    """One evaluation of a pre-training objective."""

    total: torch.Tensor  # what training minimises; a scalar with gradient
    infonce: torch.Tensor  # global, the average of both directions; robust weights are made from it alone
