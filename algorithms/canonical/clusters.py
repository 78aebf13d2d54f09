"""Spherical k-means as sums over records of norm 1, and starts that are no record.

One iteration is one secure sum, in all restarts at once: a record adds itself to the cluster with the largest
cosine, so in R restarts it moves the sum by a norm of at most sqrt(R).

Source: Dhillon and Modha, "Concept decompositions for large sparse text data using clustering", Machine
Learning 42, 2001. Splitting along the principal direction: Boley, "Principal direction divisive
partitioning", Data Mining and Knowledge Discovery 2, 1998.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from secfed.algorithms.canonical.moments import HALF, Moments, moments, weighted
from secfed.algorithms.framework.randomness import torch_generator
from secfed.algorithms.models.feature_maps import by_rows, unit

_BATCH: Final = 2048  # records at a time: [batch, R * K] cosines stay a few megabytes
_NOTHING: Final = 1e-6  # a shorter sum is that of no record


def simplexes(restarts: int, clusters: int, dimensions: int, seed: int) -> torch.Tensor:
    """Centres to start from, [R, K, q]: corners of a simplex, turned at random each time."""
    size = max(clusters, dimensions)
    corners = torch.eye(clusters, dtype=torch.float64) - 1 / clusters
    turned = []
    for restart in range(restarts):
        drawn = torch.randn(
            size, size, dtype=torch.float64, generator=torch_generator(seed, "simplex", restart)
        )
        turned.append(unit((corners @ torch.linalg.qr(drawn)[0][:clusters])[:, :dimensions]))
    return torch.stack(turned)


def assigned(records: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The cluster of every record in every restart, the first of equals, and its cosine: [n, R] each."""
    restarts, clusters, size = centres.shape
    found = [
        by_rows(part, centres.reshape(-1, size).T).reshape(-1, restarts, clusters).max(dim=2)
        for part in _batches(records)
    ]
    return torch.cat([one.indices for one in found]), torch.cat([one.values for one in found])


def local_sums(
    records: torch.Tensor, centres: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """The sum of the records in every cluster of every restart: [R, K, q]; each times its weight, [n]."""
    clusters, _ = assigned(records, centres)
    sums, counted = torch.zeros_like(centres), weighted(records, weights)
    for restart in range(len(centres)):
        sums[restart].index_add_(0, clusters[:, restart], counted)
    return sums


def moved(centres: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """The directions of the summed records; a cluster without any keeps its centre."""
    held = torch.linalg.vector_norm(sums, dim=-1, keepdim=True) > _NOTHING
    return torch.where(held, unit(sums), centres)


def parts_moments(
    records: torch.Tensor, centres: torch.Tensor, clusters: int, weights: torch.Tensor | None = None
) -> Moments:
    """Moments of the records nearest to each of the first centres, [K, ..] with zeros for the others."""
    nearest = assigned(records, centres[None, :clusters])[0][:, 0]
    rows = [nearest == cluster for cluster in range(len(centres))]
    parts = [moments(records[mine], None if weights is None else weights[mine]) for mine in rows]
    return Moments(
        torch.stack([part.outer for part in parts]),
        torch.stack([part.sums for part in parts]),
        torch.stack([part.records for part in parts]),
    )


def split(found: Moments, clusters: int, wanted: int) -> torch.Tensor:
    """Two centres for each of the parts that spread most, one for the others: [K, q], zeros after ``wanted``.

    A part spreads as much as its records vary along its principal direction; there the two lie on either side
    of the mean, one standard deviation away.
    """
    means, spread, steps = found.means(), *_principal(found)
    chosen = sorted(_by_size(spread[:clusters])[: wanted - clusters])
    centres = means[:clusters].clone()
    centres[chosen] += steps[chosen]
    result = torch.zeros_like(found.sums)
    result[:wanted] = unit(torch.cat([centres, means[chosen] - steps[chosen]]))
    return result


def mended(found: Moments) -> torch.Tensor:
    """As many centres, [K, q]: two parts join, and a third is split, where that makes records nearer to them.

    Parts are split at every level whatever they are, so some clusters end up in two parts, and some parts
    hold two clusters. Joining parts of n and m records adds n m / (n + m) times their means' squared distance
    to the sum of all squared distances; a part's spread is what splitting it saves at most. Every part
    changes once.
    """
    means, spread, steps = found.means(), *_principal(found)
    counts = found.records.clamp(min=0) / HALF
    weights = counts[:, None] * counts / (counts[:, None] + counts).clamp(min=_NOTHING)
    apart = (weights * torch.cdist(means, means).square()).fill_diagonal_(torch.inf)
    centres = means.clone()
    for part in _by_size(spread):
        if bool(apart[part].isinf().all()):
            continue  # it changed, or is all that is left
        costs = apart.clone()
        costs[part] = costs[:, part] = torch.inf
        cost, place = costs.flatten().min(dim=0)
        if not float(cost) < float(spread[part]):
            break
        one, other = divmod(int(place), len(means))
        both = counts[[one, other]].clamp(min=_NOTHING)
        centres[one] = (both[:, None] * means[[one, other]]).sum(dim=0) / both.sum()
        centres[part], centres[other] = means[part] + steps[part], means[part] - steps[part]
        changed = [part, one, other]
        apart[changed] = apart[:, changed] = torch.inf
    return unit(centres)


def _principal(found: Moments) -> tuple[torch.Tensor, torch.Tensor]:
    """How far each part spreads along its principal direction, [K], and one standard deviation along it."""
    values, vectors = torch.linalg.eigh(found.covariances())
    largest, directions = values[:, -1].clamp(min=0), vectors[:, :, -1]
    ends = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    signed = directions * torch.where(ends < 0, -1.0, 1.0)  # signs are the library's choice
    return found.records.clamp(min=0) / HALF * largest, largest.sqrt()[:, None] * signed


def _by_size(spread: torch.Tensor) -> list[int]:
    return [int(part) for part in spread.argsort(descending=True, stable=True)]


def _batches(values: torch.Tensor) -> Iterator[torch.Tensor]:
    yield values[:_BATCH]
    for start in range(_BATCH, len(values), _BATCH):
        yield values[start : start + _BATCH]
