"""What describes an image and its text before anything is summed: features of encoders that nobody trains.

Patch features are averaged in cells of the image, which join, and token features over the words of a text.
Without a network an image is its pixels, and a text is how often it has each word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from secfed.algorithms.data.image_text.base import ImageTextData
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.losses.features import Features
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.models.feature_maps import FeatureMap
from secfed.errors import ConfigError
from secfed.wire.layout import State
from secfed.wire.parts import otherwise

Both = tuple[torch.Tensor, torch.Tensor]  # images and texts, row by row


@dataclass(frozen=True)
class PairFeatures:
    """How the pairs of a study are described, the same everywhere.

    Attributes:
        cells: per side, in which patch features are averaged.
        sizes: how many features an image and a text have.
    """

    cells: int
    vocabulary: int
    sizes: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, data: ImageTextData, shapes: DualEncoder | None, cells: int) -> PairFeatures:
        """Those of a study; its network, if there is one, is tried on a pair that says nothing."""
        device = torch.device("cpu") if shapes is None else next(shapes.parameters()).device
        images = torch.zeros(1, *data.image_shape, device=device)
        tokens = torch.ones(1, data.text_length, dtype=torch.int64, device=device)
        with torch.no_grad():
            image, text = cls(cells, data.vocabulary).described(shapes, images, tokens)
        return cls(cells, data.vocabulary, (image.shape[1], text.shape[1]))

    def described(self, network: DualEncoder | None, images: torch.Tensor, tokens: torch.Tensor) -> Both:
        """Features of [B, ..] images and [B, L] tokens: [B, sizes[0]] and [B, sizes[1]]."""
        if network is not None:
            # A user's own network has no packages to look under.
            return self._pooled(getattr(network, "describe", network.encode)(images, tokens))
        words = torch.zeros(len(tokens), self.vocabulary)
        words.scatter_add_(1, tokens, (tokens != 0).to(words.dtype))
        return images.flatten(1), words

    def mapped(
        self, network: DualEncoder | None, pairs: Both, maps: Sequence[FeatureMap], seed: int, batch: int
    ) -> list[torch.Tensor]:
        """Both views of images and tokens after their maps, float64; zeros for a batch that fails."""
        device = torch.device("cpu") if network is None else next(network.parameters()).device
        features = [torch.zeros(len(pairs[0]), size) for size in self.sizes]
        for rows in torch.split(torch.arange(len(pairs[0])), batch):
            given = [part[rows].to(device) for part in pairs]
            with torch.no_grad():
                found = otherwise(None, self.described, network, *given)
            for view, part in zip(features, found or (), strict=False):
                view[rows] = part.to("cpu", view.dtype)
        return [
            one(view, derive_seed(seed, "canonical map", at))
            for at, (one, view) in enumerate(zip(maps, features, strict=True))
        ]

    def _pooled(self, features: Features) -> Both:
        image, words = features.image, features.words[..., None]
        text = (features.text * words).sum(dim=1) / words.sum(dim=1)
        patches = image[:, 1:] if image.shape[1] > 1 else image  # the first is the class token
        if self.cells == 1:
            return patches.mean(dim=1), text
        side = math.isqrt(patches.shape[1])
        if side**2 != patches.shape[1] or side % self.cells:
            raise ConfigError(
                f"algorithm.image_cells: {patches.shape[1]} patches do not divide into {self.cells} x "
                f"{self.cells} cells",
                remedy="use a divisor of the patches per side, or leave it out",
            )
        square = patches.transpose(1, 2).reshape(len(image), -1, side, side)
        return torch.nn.functional.avg_pool2d(square, side // self.cells).flatten(1), text


def take_over(network: DualEncoder | None, encoders: State) -> bool:
    """Write encoders into a network; whether it had others."""
    own = {} if network is None else dict(network.named_parameters())
    changed = [name for name, value in encoders.items() if not torch.equal(own[name].cpu(), value)]
    with torch.no_grad():
        for name in changed:
            own[name].copy_(encoders[name])
    return bool(changed)
