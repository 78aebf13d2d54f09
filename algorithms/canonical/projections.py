"""The canonical projections: where the views of a record agree, from covariances alone.

With W_v = (C_v + lambda_v I)^(-1/2), the whitened cross-covariances W_u C_uv W_v are blocks of a symmetric
matrix with zeros on its diagonal. Its leading eigenvectors, each scaled by its eigenvalue and cut into views,
are E_v, and W_v E_v the projections. Of two views this is the singular value decomposition of the one block.
A direction counts as much as the views correlate along it, so a direction of noise counts next to nothing.

Source: Hotelling, "Relations between two sets of variates", Biometrika 28, 1936; several views: Kettenring,
"Canonical analysis of several sets of variables", Biometrika 58, 1971 (MAXVAR, without the diagonal blocks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import torch

from secfed.algorithms.canonical.moments import power
from secfed.algorithms.models.feature_maps import by_rows, unit

Crosses = Mapping[tuple[int, int], torch.Tensor]  # by views u < v: [d_u, d_v]


def pairs(views: int) -> tuple[tuple[int, int], ...]:
    """Every pair of views u < v."""
    return tuple((u, v) for u in range(views) for v in range(u + 1, views))


def canonical(
    covariances: Sequence[torch.Tensor],
    crosses: Crosses,
    dimensions: int,
    ridge: float,
    floors: Sequence[float] | None = None,
) -> list[torch.Tensor]:
    """Projections [d_v, dimensions] of every view, each with a largest magnitude of 1.

    Scaling a view's projection changes nothing, for its image is brought to norm 1; nor does a common factor
    in all ``crosses``. ``floors`` are the least that is added to each view's variances.
    """
    least = floors or [0.0] * len(covariances)
    whiten = [power(one, -0.5, ridge, floor) for one, floor in zip(covariances, least, strict=True)]
    blocks = {(u, v): whiten[u] @ cross @ whiten[v] for (u, v), cross in crosses.items()}
    if len(covariances) == 2:
        left, values, right = torch.linalg.svd(blocks[0, 1], full_matrices=False)
        vectors = torch.cat([left, right.T])[:, :dimensions]
        values = values[:dimensions]
    else:
        values, vectors = _leading(blocks, [len(covariance) for covariance in covariances], dimensions)
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    scaled = vectors * torch.where(largest < 0, -1.0, 1.0) * values  # signs are the library's choice
    parts = scaled.split([len(covariance) for covariance in covariances])
    found = []
    for root, part in zip(whiten, parts, strict=True):
        projection = root @ part
        found.append(projection / projection.abs().max().clamp(min=torch.finfo(torch.float64).tiny))
    return found


def _leading(blocks: Crosses, sizes: Sequence[int], dimensions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The leading eigenvalues (none below 0) and eigenvectors of the matrix of all blocks."""
    start = [sum(sizes[:view]) for view in range(len(sizes))]
    whole = torch.zeros(sum(sizes), sum(sizes), dtype=torch.float64)
    for (u, v), block in blocks.items():
        rows, columns = slice(start[u], start[u] + sizes[u]), slice(start[v], start[v] + sizes[v])
        whole[rows, columns], whole[columns, rows] = block, block.T
    values, vectors = torch.linalg.eigh(whole)
    return values.flip(0)[:dimensions].clamp(min=0), vectors.flip(1)[:, :dimensions]


def shortened(centred: torch.Tensor, radius: float) -> torch.Tensor:
    """Rows of [n, d] that are no longer than ``radius``."""
    length: torch.Tensor = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    return centred * (radius / length.clamp(min=radius))


def embedded(
    views: Sequence[torch.Tensor | None], means: Sequence[torch.Tensor], projections: Sequence[torch.Tensor]
) -> torch.Tensor:
    """[n, dimensions] of norm 1: the direction of the sum of the views' directions; some may be zeros."""
    directions = [
        unit(by_rows(view - mean, projection))
        for view, mean, projection in zip(views, means, projections, strict=True)
        if view is not None
    ]
    return unit(reduce(torch.add, directions))  # a library's sum of five goes by the place of a record
