"""The encoders of images and texts, and the module that aligns what they give.

Images: a vision transformer of timm's layers. The class token and the position table live in a layer of their
own (``Prefix``). In timm's own class they belong to the whole transformer, which makes private training with
hooks recompute all of it per record.

Texts: Hugging Face's BERT without pooler. BERT as it comes looks the positions up once for the whole batch.
Private training with hooks needs every input to have a row per record, so the ids are made here, contiguous;
the numbers are the same.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021; Devlin, Chang, Lee, Toutanova, "BERT",
NAACL 2019.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from secfed.algorithms.models.dual_encoder_options import Pool, Size
from secfed.algorithms.models.encoder_libraries import bert_classes, timm_layers
from secfed.errors import ConfigError


class Prefix(nn.Module):
    """Puts the class token before the patches and adds the position table."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.empty(1, 1, width))
        self.pos = nn.Parameter(torch.empty(1, 1 + patches, width))
        nn.init.trunc_normal_(self.cls, std=0.02)
        nn.init.trunc_normal_(self.pos, std=0.02)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """[B, P, d_v] to [B, 1 + P, d_v]."""
        return torch.cat([self.cls.expand(len(patches), -1, -1), patches], dim=1) + self.pos


class VisionEncoder(nn.Module):
    """A vision transformer without a classifier; names of parameters are timm's, but for ``prefix``."""

    def __init__(self, image_shape: tuple[int, int, int], size: Size, *, checkpointing: bool = False) -> None:
        super().__init__()
        channels, height, across = image_shape
        patch, width = size.patch, size.image_width
        if height != across or height % patch or height < patch:
            raise ConfigError(
                f"model.size: images of {height} x {across} pixels do not consist of patches of "
                f"{patch} x {patch}",
                remedy=f"use square images whose side is a multiple of {patch}, or another size of the model",
            )
        patch_embed, block = timm_layers()
        self.patch_embed = patch_embed(img_size=height, patch_size=patch, in_chans=channels, embed_dim=width)
        self.prefix = Prefix((height // patch) ** 2, width)
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.ModuleList(
            block(width, size.image_heads, qkv_bias=True, norm_layer=norm) for _ in range(size.image_depth)
        )
        self.norm = norm(width)
        self.checkpointing = checkpointing
        self.blocks.apply(initialise)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[B, channels, size, size] to [B, 1 + P, d_v], the class token first."""
        tokens = run_layers(self.blocks, self.prefix(self.patch_embed(images)), again=self.checkpointing)
        normed: torch.Tensor = self.norm(tokens)
        return normed


class TextEncoder(nn.Module):
    """BERT; names of parameters are those of ``BertModel``. Token 0 is padding.

    The position table has exactly ``length`` rows and there is one token type, so every row is used:
    a row without a gradient would only carry noise and decay. ``checkpointing`` is that of
    :func:`run_layers`.
    """

    def __init__(self, length: int, vocabulary: int, size: Size, *, checkpointing: bool = False) -> None:
        super().__init__()
        config_class, model_class = bert_classes()
        config = config_class(
            vocab_size=vocabulary,
            hidden_size=size.text_width,
            num_hidden_layers=size.text_depth,
            num_attention_heads=size.text_heads,
            intermediate_size=size.text_hidden,
            max_position_embeddings=length,
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
        body = model_class(config, add_pooling_layer=False)
        self.embeddings, self.encoder = body.embeddings, body.encoder
        for name in ("position_ids", "token_type_ids"):
            if hasattr(self.embeddings, name):  # ids for calls without ids, which are not made here
                delattr(self.embeddings, name)
        self.checkpointing = checkpointing

    def forward(self, tokens: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """[B, L] int64 tokens, and [B, L] bool, False for padding, to [B, L, d_t]; padding means nothing."""
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1).contiguous()
        types = torch.zeros_like(tokens)
        embedded = self.embeddings(input_ids=tokens, position_ids=places, token_type_ids=types)
        return run_layers(self.encoder.layer, embedded, words[:, None, None, :], again=self.checkpointing)


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

    def features(self, tokens: torch.Tensor) -> torch.Tensor:
        """What the head of whole images reads, [B, d], of [B, T, d] tokens of the image encoder."""
        return self._pooled(self.block(tokens), None)

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


def initialise(module: nn.Module, std: float = 0.02) -> None:
    """Small normal weights and no offset for every linear layer, as vision transformers have them."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=std)
        nn.init.zeros_(module.bias)


def run_layers(
    layers: Iterable[nn.Module],
    tokens: torch.Tensor,
    *more: torch.Tensor | None,
    again: bool,
    random: bool = False,
) -> torch.Tensor:
    """Run layers one after the other; each maps tokens (and ``more``) to tokens.

    ``again`` keeps only the input of every layer and computes the rest again in the backward pass: the same
    gradients, with less memory for a third more work. ``random`` layers draw the same numbers once more.
    """
    again = again and torch.is_grad_enabled()
    for layer in layers:
        if again:
            tokens = checkpoint(layer, tokens, *more, use_reentrant=False, preserve_rng_state=random)
        else:
            tokens = layer(tokens, *more)
    return tokens
