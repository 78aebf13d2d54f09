"""The alignment module of one modality: a transformer block over the tokens, pooling, a projection head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from secfed.algorithms.models.dual_encoder_options import Pool, Size
from secfed.algorithms.models.encoder_libraries import timm_layers
from secfed.algorithms.models.vision_encoder import initialise


class Projected(NamedTuple):
    """What an alignment module gives."""

    whole: torch.Tensor  # [B, d_e], norm 1: the image or report
    parts: torch.Tensor  # [B, T - 1, d_e]: every token after the first; [B, 0, d_e] without a head for parts


class Alignment(nn.Module):
    """Block, pooling and heads for tokens of ``width`` d.

    The embedding of a whole image or report is made from the mean of its tokens, or the first (``pool``).
    With ``parts``, patches and words are projected too, by a head of their own.
    """

    def __init__(self, width: int, heads: int, size: Size, *, pool: Pool, parts: bool) -> None:
        super().__init__()
        _, block = timm_layers()
        self.block = block(width, heads, qkv_bias=True)
        self.block.apply(initialise)
        self.head = projection_head(width, size)
        self.parts_head = projection_head(width, size) if parts else None
        self.pool, self.embedding = pool, size.embedding

    def forward(self, tokens: torch.Tensor, is_token: torch.Tensor | None = None) -> Projected:
        """Embeddings of [B, T, d] tokens; ``is_token`` is [B, T] bool, False for padding."""
        mixed = self.block(tokens, attn_mask=None if is_token is None else is_token[:, None, None, :])
        # Embeddings are float32 under mixed precision too: their products are divided by a small temperature.
        whole = nn.functional.normalize(self.head(self._pooled(mixed, is_token)).float(), dim=-1)
        if self.parts_head is None:
            return Projected(whole, whole.new_zeros(len(whole), 0, self.embedding))
        return Projected(whole, self.parts_head(mixed[:, 1:]).float())

    def _pooled(self, tokens: torch.Tensor, is_token: torch.Tensor | None) -> torch.Tensor:
        if self.pool == "cls":
            return tokens[:, 0]
        if is_token is None:
            return tokens.mean(dim=1)
        share = (is_token / is_token.sum(dim=1, keepdim=True)).to(tokens.dtype)
        return torch.bmm(share[:, None], tokens)[:, 0]

    @torch.no_grad()
    def attention_of_first(self, tokens: torch.Tensor, is_token: torch.Tensor | None = None) -> torch.Tensor:
        """How much the first token attends to each of the others, on average over the block's heads.

        [B, T - 1] of what ``forward`` takes: at least 0, at most 1 in sum, 0 for padding; without a gradient.
        """
        attention = self.block.attn
        normed = self.block.norm1(tokens)
        weight, bias = attention.qkv.weight, attention.qkv.bias
        width = weight.shape[1]
        shape = (len(tokens), -1, attention.num_heads, width // attention.num_heads)
        query = nn.functional.linear(normed[:, :1], weight[:width], bias[:width]).view(shape)
        keys = nn.functional.linear(normed, weight[width : 2 * width], bias[width : 2 * width]).view(shape)
        scores = torch.einsum("bqhc,bthc->bht", query, keys).float() * attention.scale
        if is_token is not None:
            scores = scores.masked_fill(~is_token[:, None, :], -torch.inf)
        weights: torch.Tensor = scores.softmax(dim=-1).mean(dim=1)[:, 1:]
        return weights


def projection_head(width: int, size: Size) -> nn.Sequential:
    """Linear, or two layers with LayerNorm; the last norm has no parameters, as the rows get norm 1 anyway.

    LayerNorm stands where the papers' code has BatchNorm, which would mix the records of a batch and keep
    statistics of them.
    """
    hidden, embedding = size.head_hidden, size.embedding
    if not hidden:
        return nn.Sequential(nn.Linear(width, embedding))
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.LayerNorm(hidden),
        nn.ReLU(),
        nn.Linear(hidden, embedding),
        nn.LayerNorm(embedding, elementwise_affine=False),
    )
