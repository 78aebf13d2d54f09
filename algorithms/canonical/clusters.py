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

from secfed.algorithms.canonical.moments import HALF, Moments, moments
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


def local_sums(records: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """The sum of the records in every cluster of every restart: [R, K, q]."""
    clusters, _ = assigned(records, centres)
    sums = torch.zeros_like(centres)
    for restart in range(len(centres)):
        sums[restart].index_add_(0, clusters[:, restart], records)
    return sums


def moved(centres: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """The directions of the summed records; a cluster without any keeps its centre."""
    held = torch.linalg.vector_norm(sums, dim=-1, keepdim=True) > _NOTHING
    return torch.where(held, unit(sums), centres)


def parts_moments(records: torch.Tensor, centres: torch.Tensor, clusters: int) -> Moments:
    """Moments of the records nearest to each of the first centres, [K, ..] with zeros for the others."""
    nearest = assigned(records, centres[None, :clusters])[0][:, 0]
    parts = [moments(records[nearest == cluster]) for cluster in range(len(centres))]
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
    means = found.means()
    values, vectors = torch.linalg.eigh(found.covariances())
    spread = found.records[:clusters].clamp(min=0) / HALF * values[:clusters, -1].clamp(min=0)
    chosen = set(spread.argsort(descending=True, stable=True)[: wanted - clusters].tolist())
    centres, added = means[:clusters].clone(), []
    for part in sorted(chosen):
        direction = vectors[part, :, -1]
        direction = direction * torch.where(direction[direction.abs().argmax()] < 0, -1.0, 1.0)
        step = values[part, -1].clamp(min=0).sqrt() * direction
        centres[part] = means[part] + step
        added.append(means[part] - step)
    result = torch.zeros_like(found.sums)
    result[:wanted] = unit(torch.stack([*centres, *added]))
    return result


def _batches(values: torch.Tensor) -> Iterator[torch.Tensor]:
    yield values[:_BATCH]
    for start in range(_BATCH, len(values), _BATCH):
        yield values[start : start + _BATCH]
