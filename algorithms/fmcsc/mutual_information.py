"""Mutual information of two feature matrices, estimated from one histogram.

Both [n, d] matrices are read element by element as n * d pairs, which are counted in a grid of
``bins x bins`` cells; the estimate is that of the empirical distribution, in bits. It ignores which
coordinate a pair comes from, is biased upwards by about (bins - 1)^2 / (2 ln 2 * n * d) bits and lies
between 0 and log2(bins). Pairs with NaN or Inf are left out.

Source: Chen et al., NeurIPS 2024 (arXiv 2410.09484), weights of equation 10; the paper leaves the
estimator open, the histogram is that of its published implementation. Bias: Miller, "Note on the bias
of information estimates", 1955.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from secfed.errors import RangeError

Range = tuple[float, float]

DEFAULT_BINS: Final = 10


def mutual_information(
    a: torch.Tensor, b: torch.Tensor, *, bins: int = DEFAULT_BINS, edges: tuple[Range, Range] | None = None
) -> float:
    """Estimate I(a; b) in bits.

    Args:
        a: [n, d].
        b: [n, d].
        bins: cells per side, of equal width.
        edges: (low, high) of ``a`` and of ``b``; values beyond are clipped to them. None takes each
            matrix' own smallest and largest value.

    Returns:
        A value in [0, log2(bins)]; 0 when one of the matrices is constant, or no pair is finite.

    Raises:
        RangeError: different shapes, no values, or fewer than 2 bins.

    Security: a single-site value. Without fixed ``edges`` one record can move every cell's border, so
        that no noise level gives a guarantee; with them, see :func:`sensitivity`.
    """
    if a.shape != b.shape or not a.numel() or bins < 2:
        raise RangeError(
            "mutual information needs two non-empty matrices of one shape and at least 2 bins",
            remedy="compare features of the same records",
        )
    ranges: tuple[Range | None, Range | None] = (None, None) if edges is None else edges
    one, other = (part.detach().to(device="cpu", dtype=torch.float64).reshape(-1) for part in (a, b))
    usable = torch.isfinite(one) & torch.isfinite(other)
    if not bool(usable.any()):
        return 0.0
    cells = _cells(one[usable], bins, ranges[0]) * bins + _cells(other[usable], bins, ranges[1])
    counts = torch.bincount(cells, minlength=bins * bins).reshape(bins, bins).to(torch.float64)
    joint = counts / counts.sum()
    independent = joint.sum(dim=1, keepdim=True) * joint.sum(dim=0, keepdim=True)
    held = joint > 0
    bits = float((joint[held] * torch.log2(joint[held] / independent[held])).sum())
    # Rounding can pass either end by a few ulp.
    return min(max(bits, 0.0), math.log2(bins))


def sensitivity(records: int, *, bins: int = DEFAULT_BINS) -> float:
    """How far the estimate can move when one of ``records`` records is replaced, with fixed edges.

    Replacing a record moves a fraction q = 1 / records of the pairs, so each of the three empirical
    distributions in I = H(A) + H(B) - H(A, B) changes by at most q in total variation, and its entropy
    by at most q log2(m - 1) + hb(q) for m cells (hb: binary entropy).

    Args:
        records: n >= 1.
        bins: cells per side.

    Returns:
        Bits, at most log2(bins), the width of the estimate's range.

    Raises:
        RangeError: no records, or fewer than 2 bins.

    Source: Audenaert, "A sharp continuity estimate for the von Neumann entropy", J. Phys. A 40, 2007,
        theorem 1 for commuting states.
    """
    if records < 1 or bins < 2:
        raise RangeError("no estimate without records, or with one bin", remedy="give at least 2 bins")
    most = math.log2(bins)
    if records == 1:  # the only record can become anything
        return most
    q = 1.0 / records
    entropy = -q * math.log2(q) - (1.0 - q) * math.log2(1.0 - q)
    return min(most, q * (2 * math.log2(bins - 1) + math.log2(bins * bins - 1)) + 3 * entropy)


def _cells(flat: torch.Tensor, bins: int, limits: Range | None) -> torch.Tensor:
    """The bin of every element of finite float64 numbers: int64; the last bin includes its upper edge."""
    low, high = limits if limits is not None else (float(flat.min()), float(flat.max()))
    if not low < high:
        return torch.zeros(len(flat), dtype=torch.int64)
    position = (flat.clamp(low, high) - low) / (high - low) * bins
    return position.to(torch.int64).clamp(max=bins - 1)
