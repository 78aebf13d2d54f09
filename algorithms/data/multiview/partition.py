"""Who holds what: the split into multi-view and single-view sites, and the division of one pool.

Source: Chen et al., "Bridging Gaps: Federated Multi-View Clustering in Heterogeneous Hybrid Views",
NeurIPS 2024 (arXiv 2410.09484): ratios of multi-view to single-view clients, Dirichlet heterogeneity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.partition import Partition
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.randomness import numpy_generator
from secfed.errors import ConfigError

# Share of single-view sites by ratio of multi-view to single-view sites. The published counts come from
# exactly these decimals: a third of 24 sites is 7, because 24 * 0.3333 is rounded down.
_SINGLE_SHARE: Final = MappingProxyType({"2:1": 0.3333, "1:1": 0.5, "1:2": 0.6667})
_DRAWS: Final = 1000


def single_view_count(sites: int, ratio: str) -> int:
    """How many of the sites hold one view only.

    Args:
        sites: number of sites.
        ratio: multi-view to single-view sites: "2:1", "1:1" or "1:2".
    """
    return int(sites * _SINGLE_SHARE[ratio])


def drawn_views(
    sites: Sequence[SiteId], single_view_sites: int, views: int, seed: int
) -> dict[SiteId, int | None]:
    """Which view each site holds: the last sites hold one each, drawn uniformly from the seed.

    Args:
        sites: all sites; the first ones hold every view.
        single_view_sites: how many hold one view only, at most ``len(sites)``.
        views: number of views.
        seed: the study's seed.

    Returns:
        Site to its view (from 0), or to None where it holds all; in the order of ``sites``.
    """
    drawn = numpy_generator(seed, "views").integers(0, views, size=single_view_sites)
    every: list[int | None] = [None] * (len(sites) - single_view_sites)
    return dict(zip(sites, [*every, *map(int, drawn)], strict=True))


def first_per_class(labels: NDArray[np.int64], per_class: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions of at most ``per_class`` records of each class: the first of a random permutation.

    Args:
        labels: [n].
        per_class: the limit.
        rng: decides the permutation.

    Returns:
        Ascending positions.
    """
    shuffled = rng.permutation(len(labels))
    of_class = [shuffled[labels[shuffled] == label][:per_class] for label in np.unique(labels)]
    return np.sort(np.concatenate(of_class)) if of_class else shuffled


def capped_dirichlet(
    labels: NDArray[np.int64], sites: int, alpha: float, min_records: int, rng: np.random.Generator
) -> Partition:
    """Divide the records class by class by Dirichlet(alpha) proportions, with a cap on every site.

    A site that already holds twice its even share gets nothing of the next class; the draw is repeated
    until every site has ``min_records`` records. Each share is in random order, because its order is
    the order of the batches.

    Args:
        labels: [n].
        sites: number of shares.
        alpha: concentration; 9999 is practically even, small is skewed.
        min_records: the least size of a share.
        rng: source of proportions and orders.

    Returns:
        Disjoint position arrays, together all records; not sorted.

    Raises:
        ConfigError: too few records, or no draw gives every site ``min_records`` records.

    Source: the partition that the authors of the paper published with it; for the uncapped one see
        :func:`secfed.algorithms.data.partition.dirichlet`.
    """
    if sites * min_records > len(labels):
        raise ConfigError(
            f"data.min_records: {sites} sites of {min_records} records need more than the data set has",
            remedy="lower data.min_records or data.sites, or raise data.per_class",
        )
    cap = 2 * len(labels) / sites
    for _ in range(_DRAWS):
        shares: list[list[NDArray[np.int64]]] = [[] for _ in range(sites)]
        held = np.zeros(sites, dtype=np.int64)
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            weights = rng.dirichlet(np.full(sites, alpha)) * (held < cap)
            with np.errstate(invalid="ignore"):
                # A tiny alpha underflows to 0/0; the class then stays undivided and the draw is repeated.
                cuts = np.nan_to_num(np.cumsum(weights / weights.sum()), nan=1.0)[:-1]
            parts = np.split(members, (cuts * len(members)).astype(np.int64))
            for share, part in zip(shares, parts, strict=True):
                share.append(part)
            held += np.array([len(part) for part in parts])
        if held.min() >= min_records:
            return [rng.permutation(np.concatenate(share)) for share in shares]
    raise ConfigError(
        f"data.alpha: {_DRAWS} draws with alpha = {alpha} never gave every site {min_records} records",
        remedy="raise data.alpha, or lower data.min_records or data.sites",
    )


def listed_views(
    sites: Sequence[SiteId], single_view_sites: Mapping[SiteId, str], views: Sequence[str]
) -> dict[SiteId, int | None]:
    """Which view each site holds, from a table of site to the name of its one view."""
    return {
        site: views.index(single_view_sites[site]) if site in single_view_sites else None for site in sites
    }
