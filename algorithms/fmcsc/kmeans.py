"""Federated k-means: Lloyd's algorithm as functions over sums; one iteration is one secure sum.

Given the centres, a site contributes, per cluster, the sum and the number of its records, and its inertia;
the new centres are quotients of the totals. Restarts run side by side in one vector of ``R * (K * d + K +
1)`` numbers. A record with a feature that is not finite counts as the origin, so counts are those of the
records. Server-side functions use only operations that give the same bits on every machine: sites replay
them.

Source: Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information Theory 28, 1982.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from secfed.algorithms.framework.randomness import derive_seed
from secfed.errors import RangeError
from secfed.wire.parts import all_finite

_BATCH: Final = 2048  # records at a time: [batch, R * K] distances stay a few megabytes
_EMPTY: Final = 0.5  # a cluster with fewer records is empty; fixed point moves a count by far less
_SEMIDEFINITE: Final = 1e-12  # a pivot below this share of the largest variance is rounding
_UNIFORMS: Final = 12  # the sum of 12 uniforms has variance 1


def moments(features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """A site's part of the records' moments: sum [d], sum of outer products [d, d] (float64), and n."""
    values = _usable(features)
    return values.sum(dim=0), values.T @ values, float(len(values))


def mean_and_covariance(
    total: torch.Tensor, outer: torch.Tensor, count: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean [d] and covariance [d, d] from the summed :func:`moments`."""
    if count < _EMPTY:
        raise RangeError("k-means has no records to start from", remedy="let more sites take part")
    mean = total / count
    return mean, outer / count - mean[:, None] * mean[None, :]


def starts(
    mean: torch.Tensor, covariance: torch.Tensor, restarts: int, clusters: int, seed: int
) -> torch.Tensor:
    """Centres to start from, [R, K, d] float64: draws from a Gaussian with the records' mean and covariance.

    The same bits on every machine: a generator of fixed stream, normals as centred sums of 12 uniforms (no
    logarithm or cosine), a Cholesky factor in plain float64 arithmetic (no LAPACK). ``covariance`` may be
    singular, or slightly indefinite through fixed point; ``seed`` also holds what distinguishes this k-means.
    """
    if not bool(torch.isfinite(mean).all() and torch.isfinite(covariance).all()):
        raise RangeError("mean or covariance contains NaN or Inf", remedy="lower algorithm.learning_rate")
    size = len(mean)
    factor = _cholesky(covariance)
    generator = np.random.PCG64(derive_seed(seed, "k-means starts"))
    words = generator.random_raw(restarts * clusters * size * _UNIFORMS)
    # Sums of 12 integers below 2^48 are exact, in whatever order they are added.
    whole = (words >> np.uint64(16)).astype(np.int64).reshape(restarts, clusters, size, _UNIFORMS).sum(axis=3)
    normal = torch.from_numpy(whole.astype(np.float64) / 2.0**48 - _UNIFORMS / 2)
    centres = mean.to(torch.float64).expand(restarts, clusters, size).clone()
    for column in range(size):  # a matrix product would leave the order of additions to the library
        centres = centres + normal[:, :, column, None] * factor[:, column]
    return centres


def local_sums(
    features: torch.Tensor, centres: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One site's contribution to one iteration of every restart, from [n, d] features and [R, K, d] centres.

    Returns:
        float64 tensors: sums [R, K, d] of the records nearest to each centre (the first of equals),
        counts [R, K], and inertia [R], the sum of squared distances to the nearest centre.

    Security: a count of one makes a sum a record; these are for a protected sum only.
    """
    values, centres = _usable(features), centres.to(torch.float64)
    restarts, clusters, size = centres.shape
    sums = torch.zeros_like(centres)
    counts = torch.zeros(restarts, clusters, dtype=torch.float64)
    inertia = torch.zeros(restarts, dtype=torch.float64)
    first = torch.arange(restarts) * clusters
    for part in _batches(values):
        distances = _distances(part, centres.reshape(-1, size)).reshape(len(part), restarts, clusters)
        nearest, cluster = distances.min(dim=2)
        inertia += nearest.square().sum(dim=0)
        cells = cluster + first  # [batch, R], rows of the flattened tables
        counts.view(-1).index_add_(0, cells.reshape(-1), torch.ones(cells.numel(), dtype=torch.float64))
        flat = sums.view(-1, size)
        for restart in range(restarts):
            flat.index_add_(0, cells[:, restart], part)
    return sums, counts, inertia


def next_centres(centres: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The means of the clusters, [..., K, d] float64, from totals; one without records keeps its centre."""
    held = (counts >= _EMPTY).unsqueeze(-1)
    means = sums.to(torch.float64) / counts.to(torch.float64).clamp(min=_EMPTY).unsqueeze(-1)
    return torch.where(held, means, centres.to(torch.float64))


def on_sphere(centres: torch.Tensor) -> torch.Tensor:
    """Centres of norm 1, which turns k-means of records of norm 1 into spherical k-means; zeros stay.

    As |x - c|^2 = 2 - 2 cos, the nearest centre has the largest cosine; what a site adds stays the same.

    Source: Dhillon, Modha, "Concept decompositions for large sparse text data using clustering", 2001.
    """
    squared = torch.zeros(centres.shape[:-1], dtype=centres.dtype)
    for column in centres.unbind(-1):  # in one order, whatever the machine
        squared = squared + column * column
    length = squared.sqrt()[..., None]
    return torch.where(length > 0.0, centres / length, centres)


def best(inertia: torch.Tensor) -> int:
    """The restart with the lowest inertia, the first of equals."""
    values = inertia.tolist()
    return int(values.index(min(values)))


def assign(features: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """The nearest of [K, d] centres for every one of [n, d] records, the first of equals: [n] int64."""
    centres = centres.to(torch.float64)
    parts = [_distances(part, centres).argmin(dim=1) for part in _batches(_usable(features))]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *parts])


def _batches(values: torch.Tensor) -> Iterator[torch.Tensor]:
    for start in range(0, len(values), _BATCH):
        yield values[start : start + _BATCH]


def _distances(values: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Euclidean distances [n, m], from differences: the expanded square would cancel far from 0."""
    return torch.cdist(values, centres, compute_mode="donot_use_mm_for_euclid_dist")


def _usable(features: torch.Tensor) -> torch.Tensor:
    """[n, d] float64 on the CPU, with zeros for records whose features are not all finite."""
    values = features.detach().to(device="cpu", dtype=torch.float64)
    finite = torch.isfinite(values).all(dim=1, keepdim=True)
    return values if all_finite(finite, "features of records") else torch.where(finite, values, 0.0)


def _cholesky(covariance: torch.Tensor) -> torch.Tensor:
    """Lower factor of a positive semidefinite matrix: [d, d] float64; where a pivot is tiny, a column of 0.

    Source: Golub, Van Loan, "Matrix Computations", 4th edition, section 4.2.8 (semidefinite case).
    """
    rows: list[list[float]] = covariance.to(torch.float64).tolist()
    size = len(rows)
    least = _SEMIDEFINITE * max((rows[i][i] for i in range(size)), default=0.0)
    factor = [[0.0] * size for _ in range(size)]
    for j in range(size):
        pivot = rows[j][j] - math.fsum(factor[j][k] * factor[j][k] for k in range(j))
        if pivot <= least or pivot <= 0.0:
            continue
        factor[j][j] = math.sqrt(pivot)
        for i in range(j + 1, size):
            dot = math.fsum(factor[i][k] * factor[j][k] for k in range(j))
            factor[i][j] = (rows[i][j] - dot) / factor[j][j]
    return torch.tensor(factor, dtype=torch.float64)
