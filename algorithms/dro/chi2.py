"""Chi-square balls around the uniform weights: the exact projection in closed form."""

from __future__ import annotations

import math

import torch


def divergence(weights: torch.Tensor) -> float:
    """(1/n) sum (n l_i - 1)^2 of [n] weights that sum to 1; in [0, n - 1]."""
    return float((len(weights) * weights - 1.0).square().mean())


def project(weights: torch.Tensor, radius: float) -> torch.Tensor:
    """The nearest weights with divergence <= radius: a shrinkage towards 1/n, see docs/private-dro.md.

    Args:
        weights: [n] float64, at least 0, summing to 1.
        radius: R, at least 0.
    """
    spread = divergence(weights)
    if spread <= radius:
        return weights.clone()
    uniform = 1.0 / len(weights)
    return uniform + math.sqrt(radius / spread) * (weights - uniform)
