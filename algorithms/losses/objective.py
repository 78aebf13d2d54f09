"""What the losses of image-text pairs share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from secfed.algorithms.losses.features import Aligned, ObjectiveValue
from secfed.errors import ConfigError

MIN_TEMPERATURE = 1e-6
"""Below this the logits of float32 embeddings are no longer meaningful, and soon not finite."""


def full_precision(tensor: torch.Tensor) -> torch.Tensor:
    """Half-precision floats as float32; everything else as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def without_autocast(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """A context in which operations on the device of ``tensor`` keep the precision of their inputs."""
    if tensor.is_meta:  # shapes only: torch has no autocast there, and refuses to switch it off
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)


def infonce(image: torch.Tensor, text: torch.Tensor, temperature: float) -> torch.Tensor:
    """Symmetric InfoNCE of a batch of pairs, the average of image-to-text and text-to-image.

    S = image text^T / t;  (1/2) (CE(S) + CE(S^T)),  CE(S) = mean_b [ logsumexp_j S_bj - S_bb ]

    The similarities are computed in float32 at least, under mixed precision too: rounding to bfloat16
    and dividing by a small temperature would move a logit by several hundredths.

    Row b of ``image``, [B, d] of L2 norm 1, belongs to row b of ``text``. The scalar is about log B for
    unrelated embeddings, and 0 for a single pair.
    """
    with without_autocast(image):
        logits = full_precision(image) @ full_precision(text).T / temperature
        return both_ways(logits) / 2


def both_ways(logits: torch.Tensor) -> torch.Tensor:
    """Sum of the cross entropies over rows and columns of [B, B] logits; row b's target is column b."""
    target = torch.arange(len(logits), device=logits.device)
    return cross_entropy(logits, target) + cross_entropy(logits.T, target)


class Objective(nn.Module, ABC):
    """A pre-training objective of ``Aligned``, in float32 at least, whatever mixed precision surrounds it."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        if not MIN_TEMPERATURE <= temperature < math.inf:
            message = "model.temperature: too small or not a number"
            raise ConfigError(message, remedy=f"use at least {MIN_TEMPERATURE}; usual values are 0.05 to 0.2")
        self.temperature = float(temperature)

    def forward(self, aligned: Aligned) -> ObjectiveValue:
        """The objective of one batch of pairs."""
        with without_autocast(aligned.image):
            held = {name: value for name, value in vars(aligned).items() if value is not None}
            full = replace(aligned, **{name: full_precision(value) for name, value in held.items()})
            plain = infonce(full.image, full.text, self.temperature)
            return ObjectiveValue(self.total(full, plain), plain)

    @abstractmethod
    def total(self, aligned: Aligned, plain: torch.Tensor) -> torch.Tensor:
        """What training minimises; ``plain`` is the InfoNCE of the embeddings, both in float32 at least."""
