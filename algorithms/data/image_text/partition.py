"""Dividing image-report pairs among simulated hospitals by their combination of findings.

Every combination of findings is one class, and each class is divided by proportions drawn from a Dirichlet
distribution, the same for training and held-out pairs. The published "degree" of heterogeneity 1 is alpha = 1
(at five sites: a mean pairwise total variation near 0.46); a *smaller* alpha is more skewed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations as pairs_of
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.data.partition import Partition, check_enough, class_shares, cut, drawn_until, joined

_DRAWS: Final = 300

Shares = NDArray[np.float64]


def combination(findings: NDArray[np.int64]) -> NDArray[np.int64]:
    """Findings ([n, k] of 0 and 1, k at most 62) as one number per record, of which bit j is finding j."""
    return np.asarray(findings @ (1 << np.arange(findings.shape[1], dtype=np.int64)), dtype=np.int64)


def by_combination(
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    sites: int,
    alpha: float,
    min_records: int,
    rng: np.random.Generator,
) -> tuple[Partition, Partition]:
    """Divide training ([n]) and held-out pairs ([m]) by the same proportions per class.

    Draws are repeated until every site has ``min_records`` training pairs.
    """
    check_enough(len(train), sites, min_records)
    classes = np.unique(np.concatenate([train, test]))

    def divided(labels: NDArray[np.int64], cuts: Shares) -> Partition:
        pieces = [cut(labels, label, at, rng) for label, at in zip(classes, cuts, strict=True)]
        none = np.empty(0, dtype=np.int64)
        return [np.sort(share) for share in joined(pieces)] if pieces else [none] * sites

    def draw() -> tuple[Partition, Partition] | None:
        cuts = np.cumsum(class_shares(len(classes), sites, alpha, rng), axis=1)[:, :-1]
        parts = divided(train, cuts)
        return (parts, divided(test, cuts)) if min(map(len, parts)) >= min_records else None

    return drawn_until(draw, alpha, min_records, draws=_DRAWS)


def by_value(labels: NDArray[np.int64], sites_of: Sequence[Sequence[int]]) -> Partition:
    """Give whole classes to sites; a class ([n] ``labels``) of several sites is dealt out to them in turn."""
    shares: Partition = [np.empty(0, dtype=np.int64) for _ in range(1 + max(max(s) for s in sites_of))]
    for label, takers in enumerate(sites_of):
        members = np.flatnonzero(labels == label)
        for turn, site in enumerate(takers):
            shares[site] = np.concatenate([shares[site], members[turn :: len(takers)]])
    return [np.sort(share) for share in shares]


def mean_total_variation(labels: Mapping[str, Any] | Sequence[Any]) -> float:
    """How different the sites are: the mean total variation distance between pairs of sites.

    0 when all sites have the same mixture of classes, or fewer than two have records; 1 when no two sites
    share a class. ``labels`` are per site its records' classes ([n], such as :func:`combination`), or its 0/1
    findings ([n, k]). It is read off simulated sites; real sites keep their labels to themselves.
    """
    sites = [_classes(site) for site in (labels.values() if isinstance(labels, Mapping) else labels)]
    sites = [site for site in sites if len(site)]
    if len(sites) < 2:
        return 0.0
    known = np.unique(np.concatenate(sites))
    mixtures = [(site[:, np.newaxis] == known).mean(axis=0) for site in sites]
    return total_variation(np.array(mixtures))


def total_variation(mixtures: Shares) -> float:
    """Mean over pairs of rows ([sites, classes], at least two) of half the absolute difference."""
    distances = [np.abs(one - other).sum() / 2 for one, other in pairs_of(mixtures, 2)]
    return float(np.mean(distances))


def _classes(labels: Any) -> NDArray[np.int64]:
    array = np.asarray(labels.cpu() if isinstance(labels, torch.Tensor) else labels, dtype=np.int64)
    return combination(array) if array.ndim == 2 else array
