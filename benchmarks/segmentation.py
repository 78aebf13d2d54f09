"""Segmentation from frozen image features: a small decoder learns masks from 1 % or 10 % of them.

The image encoder is frozen. Its patch tokens form a coarse map; the decoder doubles the map's resolution
until it is that of the image, and at each level sees the image once more at that resolution, as a U-Net's
skips would show it (a frozen transformer has no finer maps of its own to offer). Training takes a fixed
number of steps, whatever the share of masks, so more masks mean more variety and not more steps.

The score is Dice = 2 |A and B| / (|A| + |B|) per image, averaged over test images that have a finding.

Simulation only: masks exist for the synthetic set, and the pairs of all sites are pooled.

Source: Ronneberger, Fischer, Brox, "U-Net", MICCAI 2015 (decoder with skips); Dice loss: Milletari, Navab,
Ahmadi, "V-Net", 3DV 2016, section 3; Dice: Dice, Ecology 26, 1945.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch
from linear_probe import image_tokens, labelled_rows
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, binary_cross_entropy_with_logits, interpolate

from secfed.algorithms.data.image_text.base import Pairs
from secfed.algorithms.framework.randomness import seeded, torch_generator
from secfed.errors import ConfigError, DataError

if TYPE_CHECKING:
    from secfed.algorithms.models.dual_encoder import DualEncoder

STEPS: Final = 300
_BATCH: Final = 32
_LEARNING_RATE: Final = 5e-3
_WIDTH: Final = 32
_NARROWEST: Final = 8
_SMOOTH: Final = 1.0  # keeps the soft Dice of an image without a finding defined


class Decoder(nn.Module):
    """From patch tokens to one score per pixel."""

    def __init__(self, width: int, channels: int, grid: int, size: int) -> None:
        super().__init__()
        doublings = round(math.log2(size / grid))
        if grid * 2**doublings != size:
            raise ConfigError(
                f"{grid} patches along a side cannot be doubled to {size} pixels",
                remedy="use images and patches whose sizes differ by a power of two",
            )
        self.grid = grid
        self.narrow = nn.Conv2d(width, _WIDTH, 1)
        levels, taken = [], _WIDTH
        for level in range(doublings):
            given = max(_NARROWEST, _WIDTH >> (level + 1))
            levels.append(nn.Conv2d(taken + channels, given, 3, padding=1))
            taken = given
        self.levels = nn.ModuleList(levels)
        self.score = nn.Conv2d(taken, 1, 1)

    def forward(self, tokens: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Logits [B, size, size] from tokens [B, P, width] and images [B, channels, size, size]."""
        count, patches, width = tokens.shape
        if patches != self.grid**2:
            raise ConfigError(f"{patches} patches do not form a square of {self.grid} by {self.grid}")
        state = torch.relu(self.narrow(tokens.transpose(1, 2).reshape(count, width, self.grid, self.grid)))
        for level in self.levels:
            state = interpolate(state, scale_factor=2.0, mode="bilinear", align_corners=False)
            skip = adaptive_avg_pool2d(images, (state.shape[2], state.shape[3]))
            state = torch.relu(level(torch.cat([state, skip], dim=1)))
        scores: torch.Tensor = self.score(state)[:, 0]
        return scores


def segment(
    model: DualEncoder, train: Pairs, test: Pairs, share: float, seed: int, device: torch.device
) -> float:
    """Dice on the test images of a decoder trained on a share of the training masks, of all sites."""
    if train.masks is None or test.masks is None:
        raise DataError("the data set has no masks", remedy="use chest-synthetic")
    generator = torch_generator(seed, "segmentation")
    kind = train.masks.flatten(1).any(dim=1).to(torch.int64)  # with a finding and without: a share of each
    kind -= kind.min()  # there may be one kind only
    chosen = train.take(labelled_rows(kind, int(kind.max()) + 1, share, generator))
    decoder = fit_decoder(image_tokens(model, chosen.images, device)[:, 1:], chosen, seed, device)
    shown = test.take(test.masks.flatten(1).any(dim=1).nonzero().flatten())
    if shown.masks is None or not len(shown):
        raise DataError("no test image has a finding", remedy="hold more pairs out")
    tokens = image_tokens(model, shown.images, device)[:, 1:]
    with torch.no_grad():
        scores = [
            decoder(tokens[rows].to(device), shown.images[rows].to(device)).cpu()
            for rows in (slice(start, start + 256) for start in range(0, len(shown), 256))
        ]
    return float(dice(torch.cat(scores) > 0, shown.masks).mean())


def fit_decoder(tokens: torch.Tensor, pairs: Pairs, seed: int, device: torch.device) -> Decoder:
    """Train a decoder on tokens [n, P, d]; a given seed gives the same one."""
    if pairs.masks is None:
        raise DataError("the data set has no masks", remedy="use chest-synthetic")
    channels, size = pairs.images.shape[1:3]
    generator = torch_generator(seed, "segmentation batches")
    with seeded(seed, "segmentation decoder"):
        decoder = Decoder(tokens.shape[2], channels, math.isqrt(tokens.shape[1]), size).to(device)
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=_LEARNING_RATE, weight_decay=1e-2)
    for _ in range(STEPS):
        rows = torch.randint(len(pairs), (min(_BATCH, len(pairs)),), generator=generator)
        scores = decoder(tokens[rows].to(device), pairs.images[rows].to(device))
        loss = mask_loss(scores, pairs.masks[rows].to(device))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return decoder.eval()


def mask_loss(scores: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Binary cross entropy plus one minus soft Dice, means over the batch, of logits [B, H, W]."""
    target = masks.to(scores.dtype)
    share = torch.sigmoid(scores)
    both = (share * target).flatten(1).sum(dim=1)
    sizes = share.flatten(1).sum(dim=1) + target.flatten(1).sum(dim=1)
    soft = (2 * both + _SMOOTH) / (sizes + _SMOOTH)
    return binary_cross_entropy_with_logits(scores, target) + (1 - soft).mean()


def dice(predicted: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Dice of each image: [n] float64, from masks [n, H, W]; two empty masks agree fully."""
    both = (predicted & masks).flatten(1).sum(dim=1).double()
    sizes = (predicted.flatten(1).sum(dim=1) + masks.flatten(1).sum(dim=1)).double()
    return torch.where(sizes > 0, 2 * both / sizes.clamp_min(1), torch.ones_like(both))
