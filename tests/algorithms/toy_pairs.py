"""A dual encoder of two linear layers and pairs that it can learn: for tests of the evaluation."""

from __future__ import annotations

import torch
from torch import nn

from secfed.algorithms.data.image_text.base import Pairs
from secfed.algorithms.losses.features import Aligned, Features, ObjectiveValue

SIZE, LENGTH, VOCABULARY, WIDTH, PATCH = 32, 6, 20, 24, 8


class ToyObjective(nn.Module):
    """InfoNCE in both directions."""

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, aligned: Aligned) -> ObjectiveValue:
        scores = aligned.image @ aligned.text.T / self.temperature
        own = torch.arange(len(scores))
        both = nn.functional.cross_entropy(scores, own) + nn.functional.cross_entropy(scores.T, own)
        return ObjectiveValue(both / 2, both.detach() / 2)


class ToyImageEncoder(nn.Module):
    """One token per patch, after one of their largest values."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, PATCH)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat([patches.amax(dim=1, keepdim=True), patches], dim=1)


class ToyDual(nn.Module):
    """Patches and word embeddings, averaged: the interface of the dual encoder at its smallest."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.image_encoder = ToyImageEncoder()
            self.text_encoder = nn.Embedding(VOCABULARY, WIDTH)
            self.image_align = nn.Linear(WIDTH, 8)
            self.text_align = nn.Linear(WIDTH, 8)
        self.objective = ToyObjective()

    def encode(self, images: torch.Tensor, tokens: torch.Tensor) -> Features:
        return Features(self.image_encoder(images), self.text_encoder(tokens), tokens != 0)

    def align(self, features: Features, tokens: torch.Tensor | None = None) -> Aligned:
        patches = self.image_align(features.image)
        words = self.text_align(features.text) * features.words[:, :, None]
        image = nn.functional.normalize(patches[:, 1:].mean(dim=1), dim=1)
        text = nn.functional.normalize(words.mean(dim=1), dim=1)
        return Aligned(image, text, patches[:, 1:], words[:, 1:], features.words[:, 1:], tokens=tokens)

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> Aligned:
        return self.align(self.encode(images, tokens), tokens)


def toy_pairs(count: int, seed: int = 0) -> Pairs:
    """Pairs with two findings: a bright and a dark square, each named by a word."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.3 * torch.randn(count, 1, SIZE, SIZE, generator=generator)
    findings = torch.randint(0, 2, (count, 2), generator=generator)
    masks = torch.zeros(count, SIZE, SIZE, dtype=torch.bool)
    masks[:, 4:12, 4:12] = findings[:, 0, None, None].bool()
    masks[:, 20:28, 20:28] = findings[:, 1, None, None].bool()
    images[:, 0, :16] += 2.0 * masks[:, :16]
    images[:, 0, 16:] -= 2.0 * masks[:, 16:]
    tokens = torch.randint(5, VOCABULARY, (count, LENGTH), generator=generator)
    tokens[:, 1:3] = 1 + findings + torch.tensor([0, 2])
    return Pairs(images, tokens, findings, masks)
