"""Random changes to training pairs, so that a few hundred of them are not learnt by heart.

Images are turned, moved, stretched, and given another contrast and brightness; they are never mirrored,
because reports name sides. From a report words are left out. Evaluation, and the losses that robust
weights are made from, see pairs as they are.

Source: Zhang, Jiang, Miura, Manning, Langlotz, "Contrastive Learning of Medical Visual Representations from
Paired Images and Text", MLHC 2022 (affine changes and jitter of images, a random part of the text).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from secfed.algorithms.vision_language.stage import Batch

_TURN_RAD: Final = 0.35  # 20 degrees
_MOVE: Final = 0.2  # of half the image
_STRETCH: Final = 0.1
_JITTER: Final = 0.3  # of an image's spread, as images are standardised


@dataclass(frozen=True)
class Augmentation:
    """Changes batches; calling it draws from torch's default generator on the CPU, whatever the device."""

    images: float  # strength of the changes, 0 (none) to 1
    words: float  # the probability that a word is left out, below 1; the first token always stays

    def __call__(self, batch: Batch) -> Batch:
        """The batch, images and tokens with padding 0 at the end, in the same shapes; changed or itself."""
        images, tokens = batch
        return (
            turned(images, self.images) if self.images else images,
            shortened(tokens, self.words) if self.words else tokens,
        )


def turned(images: torch.Tensor, strength: float) -> torch.Tensor:
    """Every image turned, moved, stretched and jittered by amounts of its own."""
    count = len(images)

    def within(limit: float, *shape: int) -> torch.Tensor:
        drawn = (torch.rand(count, *shape) * 2 - 1) * (limit * strength)
        return drawn.to(images.device, images.dtype)

    angle, scale = within(_TURN_RAD), 1 + within(_STRETCH)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    rows = torch.stack([torch.stack([cos, -sin], dim=1), torch.stack([sin, cos], dim=1)], dim=1)
    affine = torch.cat([rows, within(_MOVE, 2, 1)], dim=2)
    grid = functional.affine_grid(affine, list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return moved * (1 + within(_JITTER, 1, 1, 1)) + within(_JITTER, 1, 1, 1)


def shortened(tokens: torch.Tensor, probability: float) -> torch.Tensor:
    """Every report without some of its words; the others keep their order, and padding stays at the end."""
    stays = (torch.rand(tokens.shape) >= probability).to(tokens.device) & (tokens != 0)
    stays[:, 0] = True
    order = torch.argsort((~stays).to(torch.int8), dim=1, stable=True)
    return torch.where(stays.gather(1, order), tokens.gather(1, order), 0)
