"""Numbers and loops that the tests of losses have in common."""

from __future__ import annotations

import math

import torch


def number(value: torch.Tensor) -> float:
    return value.detach().item()


def draws(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def dot(one: list[float], two: list[float]) -> float:
    return sum(x * y for x, y in zip(one, two, strict=True))


def shares(values: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def looped_contrast(logits: list[list[float]]) -> float:
    """Cross entropy along rows plus cross entropy along columns."""
    total = 0.0
    for b, row in enumerate(logits):
        total -= math.log(shares(row)[b]) + math.log(shares([other[b] for other in logits])[b])
    return total / len(logits)
