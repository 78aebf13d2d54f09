"""Dual encoders small enough for tests, those of the paper without memory, and pairs for them."""

from __future__ import annotations

import torch
from torch import nn

from secfed.algorithms.losses.features import Features, ObjectiveValue
from secfed.algorithms.models.dual_encoder import DualEncoder, build
from secfed.algorithms.models.dual_encoder_options import VisionLanguageOptions
from secfed.config.schema import checked

torch.set_num_threads(1)

OBJECTIVES = ["convirt", "gloria", "mgca"]
LENGTH, VOCABULARY = 12, 30
PAPER = ((3, 224, 224), 112, 28996)


class Shapes:
    """The public facts of a data set without records."""

    image_shape = (1, 16, 16)
    text_length = LENGTH
    vocabulary = VOCABULARY


def options(**more: object) -> VisionLanguageOptions:
    few = {"prototypes": 4} if more.get("objective") == "mgca" else {}
    table = {"name": "vision-language", **few, **more}
    return checked(VisionLanguageOptions, table, "model")


def model(**more: object) -> DualEncoder:
    torch.manual_seed(0)
    return build(Shapes(), options(**more))  # type: ignore[arg-type]


def on_meta(size: str, **more: object) -> DualEncoder:
    shape, length, words = PAPER if size == "paper" else ((1, 64, 64), 40, 75)
    with torch.device("meta"):
        return DualEncoder(options(size=size, **more), shape, length, words)


def pairs(records: int = 6, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(records, 1, 16, 16, generator=generator)
    tokens = torch.randint(3, VOCABULARY, (records, LENGTH), generator=generator)
    for row in range(records):
        tokens[row, 5 + row % 5 :] = 0
    return images, tokens


def count(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def pretrain_loss(model: nn.Module, images: torch.Tensor, tokens: torch.Tensor) -> ObjectiveValue:
    return model.objective(model(images, tokens))


def detached(features: Features) -> Features:
    return Features(features.image.detach(), features.text.detach(), features.words)
