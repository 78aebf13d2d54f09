"""Means and covariances from sums over records.

The block of one record x is the upper triangle, diagonal included, of [x, 1][x, 1]^T / 2: products of its
features, the features, and a count. For |x| <= 1 the squares of these three parts are 1/4 at most, each, so
the norm is at most sqrt(3) / 2, whatever x is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

BLOCK_NORM: Final = math.sqrt(0.75)  # of one record's block
HALF: Final = 0.5  # every element of a block is the product divided by two
_FEWEST: Final = 1.0  # records that means are divided by: a sum without any is not divided by 0


@dataclass(frozen=True)
class Moments:
    """Sums over records, halved: outer products [.., d (d + 1) / 2], sums [.., d] and counts [..]."""

    outer: torch.Tensor
    sums: torch.Tensor
    records: torch.Tensor

    def means(self) -> torch.Tensor:
        """[.., d]; zeros without records."""
        return self.sums / self._counts[..., None]

    def covariances(self) -> torch.Tensor:
        """[.., d, d], symmetric; zeros without records."""
        size = self.sums.shape[-1]
        rows, columns = torch.triu_indices(size, size).unbind()
        square = self.outer.new_zeros(*self.outer.shape[:-1], size, size)
        square[..., rows, columns] = self.outer
        square[..., columns, rows] = self.outer
        means = self.means()
        return square / self._counts[..., None, None] - means[..., :, None] * means[..., None, :]

    def spread(self, noise: float) -> torch.Tensor:
        """How far noise of this deviation in every sum moves the eigenvalues of a covariance, about: [..]."""
        return noise * math.sqrt(self.sums.shape[-1]) / self._counts

    @property
    def _counts(self) -> torch.Tensor:
        return self.records.clamp(min=HALF * _FEWEST)


def moments(records: torch.Tensor, weights: torch.Tensor | None = None) -> Moments:
    """The summed blocks of [n, d] records with norms of at most 1; each times its weight, [n], if given."""
    size = records.shape[1]
    rows, columns = torch.triu_indices(size, size).unbind()
    counted = weighted(records, weights)
    outer = (records.T @ counted)[rows, columns]
    count = torch.tensor(float(len(records)), dtype=torch.float64) if weights is None else weights.sum()
    return Moments(HALF * outer, HALF * counted.sum(dim=0), HALF * count)


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
