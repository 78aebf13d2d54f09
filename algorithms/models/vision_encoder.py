"""The image encoder: a vision transformer of timm's layers.

The class token and the position table live in a layer of their own (``Prefix``). In timm's own class they
belong to the whole transformer, which makes private training with hooks recompute all of it per record.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from secfed.algorithms.models.dual_encoder_options import Size
from secfed.algorithms.models.encoder_libraries import timm_layers
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


def initialise(module: nn.Module, std: float = 0.02) -> None:
    """Small normal weights and no offset for every linear layer, as vision transformers have them."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=std)
        nn.init.zeros_(module.bias)


def run_layers(
    layers: Iterable[nn.Module], tokens: torch.Tensor, *more: torch.Tensor, again: bool
) -> torch.Tensor:
    """Run layers one after the other; each maps tokens (and ``more``) to tokens.

    ``again`` keeps only the input of every layer and computes the rest again in the backward pass: the same
    gradients, with less memory for a third more work.
    """
    again = again and torch.is_grad_enabled()
    for layer in layers:
        if again:
            # Nothing in the layers is random, so there is no generator to put back.
            tokens = checkpoint(layer, tokens, *more, use_reentrant=False, preserve_rng_state=False)
        else:
            tokens = layer(tokens, *more)
    return tokens
