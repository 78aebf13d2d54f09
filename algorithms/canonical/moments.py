"""Means and covariances from sums over records.

The block of one record x is the upper triangle of x x^T with its diagonal, x / 2 and 1/2. What is off the
diagonal, where it stands for two elements, is multiplied by sqrt(2), so the first part is as long as x x^T,
and noise moves these elements less. For |x| <= 1 the squares of the three parts are 1, 1/4 and 1/4 at most,
so the norm is at most sqrt(3 / 2), whatever x is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

BLOCK_NORM: Final = math.sqrt(1.5)  # of one record's block
HALF: Final = 0.5  # of features and counts: noise in the products is what hurts, so they get more of the norm
_FEWEST: Final = 1.0  # records that means are divided by: a sum without any is not divided by 0


@dataclass(frozen=True)
class Moments:
    """Sums over records: outer products [.., d (d + 1) / 2], halved features [.., d], halved counts [..]."""

    outer: torch.Tensor
    sums: torch.Tensor
    records: torch.Tensor

    def means(self) -> torch.Tensor:
        """[.., d]; zeros without records."""
        return self.sums / self._counts[..., None]

    def covariances(self) -> torch.Tensor:
        """[.., d, d], symmetric; zeros without records."""
        size = self.sums.shape[-1]
        rows, columns, doubled = _triangle(size)
        square = self.outer.new_zeros(*self.outer.shape[:-1], size, size)
        square[..., rows, columns] = square[..., columns, rows] = self.outer / doubled
        means = self.means()
        return HALF * square / self._counts[..., None, None] - means[..., :, None] * means[..., None, :]

    def spread(self) -> torch.Tensor:
        """How far noise of deviation 1 in the block moves a covariance's eigenvalues, about: [..]."""
        return HALF * math.sqrt(self.sums.shape[-1] / 2) / self._counts

    @property
    def _counts(self) -> torch.Tensor:
        return self.records.clamp(min=HALF * _FEWEST)


def moments(records: torch.Tensor, weights: torch.Tensor | None = None) -> Moments:
    """The summed blocks of [n, d] records with norms of at most 1; each times its weight, [n], if given."""
    size = records.shape[1]
    rows, columns, doubled = _triangle(size)
    counted = weighted(records, weights)
    outer = (records.T @ counted)[rows, columns] * doubled
    count = torch.tensor(float(len(records)), dtype=torch.float64) if weights is None else weights.sum()
    return Moments(outer, HALF * counted.sum(dim=0), HALF * count)


def _triangle(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows and columns of the upper triangle, and sqrt(2) where an element stands for two, else 1."""
    rows, columns = torch.triu_indices(size, size).unbind()
    return rows, columns, torch.where(rows == columns, 1.0, math.sqrt(2.0)).to(torch.float64)


def weighted(rows: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """[n, ..] rows, each times its weight, [n], if given."""
    return rows if weights is None else rows * weights.reshape(-1, *[1] * (rows.dim() - 1))


def power(matrix: torch.Tensor, exponent: float, ridge: float, floor: float = 0.0) -> torch.Tensor:
    """(M + lambda I)^exponent of a symmetric matrix whose negative eigenvalues count as 0.

    Args:
        ridge: lambda as a share of the largest eigenvalue.
        floor: the least lambda: noise in the matrix moves eigenvalues by about its level times sqrt(d).
    """
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    values = values.clamp(min=0)
    least = max(ridge * float(values[-1]), floor)
    if least <= 0:  # nothing varies
        return torch.zeros_like(matrix)
    result: torch.Tensor = (vectors * (values + least) ** exponent) @ vectors.T
    return result
