"""Mutual information, in bits, of two [n, d] feature matrices, estimated from one histogram of n * d pairs.

It ignores which coordinate a pair comes from, is biased upwards by about (bins - 1)^2 / (2 ln 2 * n * d) bits
and lies between 0 and log2(bins). Pairs with NaN or Inf are left out.

Source: Chen et al., NeurIPS 2024 (arXiv 2410.09484), weights of equation 10; the histogram is that of the
published implementation. Bias: Miller, "Note on the bias of information estimates", 1955.
"""

from __future__ import annotations

import math
from typing import Final

import torch

BINS: Final = 10


def mutual_information(a: torch.Tensor, b: torch.Tensor, *, bins: int = BINS) -> float:
    """I(a; b) of two [n, d] matrices: 0 to log2(bins) bits, 0 if one is constant or no pair is finite.

    Security: a single-site value. One record can move every cell's border, so no noise level is a guarantee.
    """
    one, other = (part.detach().to(device="cpu", dtype=torch.float64).reshape(-1) for part in (a, b))
    usable = torch.isfinite(one) & torch.isfinite(other)
    if not bool(usable.any()):
        return 0.0
    cells = _cells(one[usable], bins) * bins + _cells(other[usable], bins)
    counts = torch.bincount(cells, minlength=bins * bins).reshape(bins, bins).to(torch.float64)
    joint = counts / counts.sum()
    independent = joint.sum(dim=1, keepdim=True) * joint.sum(dim=0, keepdim=True)
    held = joint > 0
    bits = float((joint[held] * torch.log2(joint[held] / independent[held])).sum())
    # Rounding can pass either end by a few ulp.
    return min(max(bits, 0.0), math.log2(bins))


def _cells(flat: torch.Tensor, bins: int) -> torch.Tensor:
    """The bin of every element of finite float64 numbers: int64; the last bin includes its upper edge."""
    low, high = float(flat.min()), float(flat.max())
    if not low < high:
        return torch.zeros(len(flat), dtype=torch.int64)
    position = (flat - low) / (high - low) * bins
    return position.to(torch.int64).clamp(max=bins - 1)
