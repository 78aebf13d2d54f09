"""Parts that self-supervised baselines add to a dual encoder: of images alone, and of no use afterwards.

They are drawn after the dual encoder, so that studies of one seed begin with the same encoders with and
without them; their parameters are named ``branch.``, and are summed like all others.

Source: He et al., CVPR 2022 (decoder of masked autoencoders); Grill et al., NeurIPS 2020 (predictor; with
LayerNorm where the papers have BatchNorm, which would mix the records of a batch).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from secfed.algorithms.losses.self_supervised import masked_error
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.models.encoder_libraries import timm_layers
from secfed.algorithms.models.encoders import VisionEncoder, initialise, run_layers


class MaskedDecoder(nn.Module):
    """Rebuilds all patches of an image from the features of some: one block of half the encoder's width."""

    def __init__(self, encoder: VisionEncoder) -> None:
        super().__init__()
        convolution = encoder.patch_embed.proj
        patches, width = encoder.prefix.pos.shape[1] - 1, convolution.out_channels
        pixels = convolution.in_channels * convolution.kernel_size[0] * convolution.kernel_size[1]
        _, block = timm_layers()
        inner = max(2, width // 2 // 2 * 2)
        self.enter = nn.Linear(width, inner)
        self.hidden = nn.Parameter(torch.empty(1, 1, inner))
        self.places = nn.Parameter(torch.empty(1, patches, inner))
        nn.init.trunc_normal_(self.hidden, std=0.02)
        nn.init.trunc_normal_(self.places, std=0.02)
        self.block = block(inner, 2, qkv_bias=True)
        self.leave = nn.Sequential(nn.LayerNorm(inner), nn.Linear(inner, pixels))
        self.apply(initialise)

    def forward(self, features: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """[B, P, pixels], from [B, K, width] features of the patches ``seen``, [B, K] int64."""
        given = self.enter(features)
        tokens = self.hidden.expand(len(given), self.places.shape[1], -1).to(given.dtype)
        where = seen[:, :, None].expand(-1, -1, given.shape[2])
        mixed = self.block(tokens.scatter(1, where, given) + self.places)
        rebuilt: torch.Tensor = self.leave(mixed)
        return rebuilt


class Predictor(nn.Sequential):
    """From one view's embedding to another's, [B, d] to [B, d]."""

    def __init__(self, size: int) -> None:
        super().__init__(
            nn.Linear(size, 2 * size), nn.LayerNorm(2 * size), nn.ReLU(), nn.Linear(2 * size, size)
        )


def image_embedding(network: DualEncoder, images: torch.Tensor) -> torch.Tensor:
    """[B, d_e] of norm 1: what the network makes of images, without texts."""
    whole: torch.Tensor = network.image_align(network.image_encoder(images)).whole
    return whole


def rebuilding_error(network: DualEncoder, images: torch.Tensor, share: float) -> torch.Tensor:
    """The branch rebuilds a random ``share`` of each image's patches; the encoder sees the others."""
    encoder = cast(VisionEncoder, network.image_encoder)
    patches = encoder.patch_embed(images) + encoder.prefix.pos[:, 1:]
    kept = max(1, round((1.0 - share) * patches.shape[1]))
    seen = torch.rand(patches.shape[:2]).argsort(dim=1)[:, :kept].to(patches.device)
    visible = patches.gather(1, seen[:, :, None].expand(-1, -1, patches.shape[2]))
    first = (encoder.prefix.cls + encoder.prefix.pos[:, :1]).expand(len(patches), -1, -1)
    tokens = run_layers(encoder.blocks, torch.cat([first, visible], dim=1), again=encoder.checkpointing)
    rebuilt = network.branch(encoder.norm(tokens)[:, 1:], seen)
    hidden = torch.ones(patches.shape[:2], dtype=torch.bool, device=patches.device).scatter(1, seen, False)
    return masked_error(rebuilt, images, hidden)
