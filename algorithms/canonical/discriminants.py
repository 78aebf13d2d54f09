"""Refinement: records are assigned again by class means, and by how the records of a class vary.

The total covariance is known already; per view only the sums of x by cluster are new, over *all* records that
have the view. With m_k the means about the common one, W = C - sum pi_k m_k m_k^T varies inside clusters, and

    score of cluster k = sum over the record's views of x^T W^-1 m_k - m_k^T W^-1 m_k / 2, plus log pi_k.

Source: Fisher's linear discriminants as expectation-maximisation with a common covariance: McLachlan, Peel,
"Finite Mixture Models", 2000, chapter 3; shrinking: James and Stein 1961.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from secfed.algorithms.canonical.moments import power, weighted
from secfed.algorithms.models.feature_maps import by_rows

_FEWEST: Final = 1.0  # records of a cluster that means and shares are computed from


@dataclass(frozen=True)
class Discriminants:
    """Per view directions [d_v, K] and offsets [K]; and what a cluster's size adds, [K]."""

    directions: Sequence[torch.Tensor]
    offsets: Sequence[torch.Tensor]
    sizes: torch.Tensor

    def assigned(self, views: Sequence[torch.Tensor | None], means: Sequence[torch.Tensor]) -> torch.Tensor:
        """The cluster with the best score, the first of equals: [n] int64."""
        score = self.sizes[None]
        for view, mean, directions, offsets in zip(views, means, self.directions, self.offsets, strict=True):
            if view is not None:
                score = score + by_rows(view - mean, directions) + offsets
        return score.argmax(dim=1)


def class_sums(
    records: torch.Tensor, clusters: torch.Tensor, count: int, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums [K, d] and numbers [K] of the records by cluster: one record moves them by at most sqrt(2).

    ``weights``, [n], are how much each record counts; 1 if left out.
    """
    sums = records.new_zeros(count, records.shape[1]).index_add_(0, clusters, weighted(records, weights))
    return sums, torch.bincount(clusters, weights, minlength=count).to(torch.float64)


def discriminants(
    sums: Sequence[torch.Tensor],
    counts: Sequence[torch.Tensor],
    means: Sequence[torch.Tensor],
    covariances: Sequence[torch.Tensor],
    ridge: float,
    *,
    floors: Sequence[float] | None = None,
    noise: float = 0.0,
) -> Discriminants:
    """What the totals of :func:`class_sums` say, per view; scaled so that no number exceeds 1.

    A common factor in all scores changes no assignment, and bounds what is broadcast. ``floors`` are the
    least that is added to each view's variances. Means that ``noise`` of this deviation moved are shrunk
    towards the common one, by the share of their squared length that noise makes up (positive-part
    James-Stein).
    """
    directions, offsets = [], []
    parts = zip(sums, counts, means, covariances, floors or [0.0] * len(means), strict=True)
    for one, count, mean, covariance, floor in parts:
        held = count.clamp(min=_FEWEST)
        apart = torch.where(count[:, None] < _FEWEST / 2, 0.0, one / held[:, None] - mean)
        apart = apart * _kept(apart, noise / held)
        between = (apart.T * (held / held.sum())) @ apart
        solved = power(covariance - between, -1.0, ridge, floor) @ apart.T
        directions.append(solved)
        offsets.append(-(apart.T * solved).sum(dim=0) / 2)
    together = torch.stack(list(counts)).sum(dim=0).clamp(min=_FEWEST)
    # Shrunk directions make scores small, beside which sizes would put every record into the largest cluster.
    sizes = torch.zeros_like(together) if noise else (together / together.sum()).log()
    largest = max(float(one.abs().max()) for one in (*directions, *offsets, sizes))
    factor = 1 / largest if largest > 0 else 1.0
    return Discriminants(
        [one * factor for one in directions], [one * factor for one in offsets], sizes * factor
    )


def _kept(apart: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """What to keep of means [K, d] that noise of these deviations [K] is in: [K, 1]."""
    length = apart.square().sum(dim=1)
    usual = apart.shape[1] * noise.square()
    return torch.where(length > usual, 1.0 - usual / length, 0.0)[:, None]
