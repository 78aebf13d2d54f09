"""Starts of k-means for many clusters: parts of the records, split along their principal directions.

Random starts miss most of a hundred clusters. Here all records are one part; every level splits the parts
that spread most, from the summed moments of each part; afterwards, halves of one cluster join while a part
that holds two is split.

Sites replay the server, so every number is the same on every machine: element-wise float64 operations in a
stated order, and a power iteration where LAPACK's eigenvectors would differ.

Source: Boley, "Principal direction divisive partitioning", Data Mining and Knowledge Discovery 2, 1998.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from secfed.algorithms.fmcsc import kmeans

MENDED: Final = 2  # times, once there are as many parts as clusters
_STEPS: Final = 100  # of the power iteration; any direction in which a part spreads nearly as much will do
_EMPTY: Final = 0.5  # as in k-means: fixed point moves a count by far less


def parts_at(level: int, clusters: int) -> int:
    """How many parts there are after this many levels."""
    return min(1 << level, clusters)


def levels(clusters: int) -> int:
    """How often parts are split until there are as many as clusters."""
    return (clusters - 1).bit_length()


@dataclass(frozen=True)
class PartMoments:
    """Sums over the records of each part, float64: outer products [K, d, d], features [K, d], counts [K]."""

    outer: torch.Tensor
    sums: torch.Tensor
    counts: torch.Tensor

    def means(self) -> torch.Tensor:
        """[K, d]; zeros without records."""
        held = (self.counts >= _EMPTY)[:, None]
        return torch.where(held, self.sums / self.counts.clamp(min=_EMPTY)[:, None], 0.0)

    def spread(self) -> tuple[torch.Tensor, torch.Tensor]:
        """How much each part varies along its principal direction, [K], and one deviation along it, [K, d].

        The first is a sum of squares: what a split there saves at most.
        """
        means, counts = self.means(), self.counts.clamp(min=_EMPTY)
        covariances = self.outer / counts[:, None, None] - means[:, :, None] * means[:, None, :]
        variances, directions = _principal(covariances)
        variances = torch.where(self.counts >= _EMPTY, variances, 0.0)
        return variances * self.counts.clamp(min=0.0), variances.sqrt()[:, None] * directions


def part_moments(features: torch.Tensor, centres: torch.Tensor, parts: int) -> PartMoments:
    """One site's sums over its records nearest to each of the first [K, d] centres; zeros for the others.

    Security: the moments of a part of one record are that record; these are for a protected sum only.
    """
    clusters, size = centres.shape
    nearest = kmeans.assign(features, centres[:parts])
    outer = torch.zeros(clusters, size, size, dtype=torch.float64)
    sums, counts = torch.zeros(clusters, size, dtype=torch.float64), torch.zeros(clusters).double()
    for part in range(parts):
        sums[part], outer[part], counts[part] = kmeans.moments(features[nearest == part])
    return PartMoments(outer, sums, counts)


def split(found: PartMoments, wanted: int) -> torch.Tensor:
    """``wanted`` centres, [wanted, d]: two for each of the parts that spread most, one for the others.

    The two lie on either side of the part's mean, one standard deviation away.
    """
    means, (spread, steps) = found.means(), found.spread()
    chosen = sorted(_by_size(spread)[: wanted - len(means)])
    centres = means.clone()
    centres[chosen] += steps[chosen]
    return torch.cat([centres, means[chosen] - steps[chosen]])


def mended(found: PartMoments) -> torch.Tensor:
    """As many centres, [K, d]: two parts join, and a third is split, where that makes records nearer to them.

    Joining parts of n and m records adds n m / (n + m) times their means' squared distance to the sum of all
    squared distances. Every part changes once.
    """
    means, (spread, steps) = found.means(), found.spread()
    counts = found.counts.clamp(min=0.0)
    both = counts[:, None] + counts[None, :]
    weights = counts[:, None] * counts[None, :] / both.clamp(min=_EMPTY)
    squared = torch.zeros_like(weights)
    for column in means.unbind(-1):
        squared = squared + (column[:, None] - column[None, :]) * (column[:, None] - column[None, :])
    apart = (weights * squared).fill_diagonal_(torch.inf)
    centres = means.clone()
    for part in _by_size(spread):
        if bool(apart[part].isinf().all()):
            continue  # it changed, or is all that is left
        costs = apart.clone()
        costs[part] = costs[:, part] = torch.inf
        one, other = divmod(int(costs.argmin()), len(means))
        if not float(costs[one, other]) < float(spread[part]):
            break
        shares = counts[one] * means[one] + counts[other] * means[other]
        centres[one] = shares / both[one, other].clamp(min=_EMPTY)
        centres[part], centres[other] = means[part] + steps[part], means[part] - steps[part]
        changed = [part, one, other]
        apart[changed] = apart[:, changed] = torch.inf
    return centres


def _principal(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest eigenvalues [K] and unit eigenvectors [K, d] of symmetric matrices, by power iteration.

    It begins with the column of the largest variance. A matrix of zeros has the direction zero.
    """
    start = matrices.diagonal(dim1=1, dim2=2).argmax(dim=1)
    vectors = _unit(matrices[torch.arange(len(matrices)), :, start])[0]
    lengths = torch.zeros(len(matrices), dtype=torch.float64)
    for _ in range(_STEPS):
        product = torch.zeros_like(vectors)
        for column in range(matrices.shape[-1]):  # a matrix product would leave the order to the library
            product = product + matrices[:, :, column] * vectors[:, column, None]
        vectors, lengths = _unit(product)
    return lengths, vectors


def _unit(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    squared = torch.zeros(len(rows), dtype=torch.float64)
    for column in rows.unbind(-1):
        squared = squared + column * column
    lengths = squared.sqrt()
    return torch.where(lengths[:, None] > 0.0, rows / lengths[:, None], 0.0), lengths


def _by_size(spread: torch.Tensor) -> list[int]:
    return [int(part) for part in spread.argsort(descending=True, stable=True)]
