"""Dividing image-report pairs among simulated hospitals: every combination of findings is one class.

Each is divided by Dirichlet proportions, the same for training and held-out pairs. The published "degree" of
heterogeneity 1 is alpha = 1 (at five sites a mean total variation near 0.46); a *smaller* alpha is more
skewed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
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
