"""Who holds what: the split into multi-view and single-view sites.

Source: Chen et al., "Bridging Gaps: Federated Multi-View Clustering in Heterogeneous Hybrid Views",
NeurIPS 2024 (arXiv 2410.09484): ratios of multi-view to single-view clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.randomness import numpy_generator

# Share of single-view sites by ratio of multi-view to single-view sites. The published counts come from
# exactly these decimals: a third of 24 sites is 7, because 24 * 0.3333 is rounded down.
_SINGLE_SHARE: Final = MappingProxyType({"2:1": 0.3333, "1:1": 0.5, "1:2": 0.6667})


def single_view_count(sites: int, ratio: str) -> int:
    """How many of the sites hold one view only, by the ratio of multi-view to single-view sites."""
    return int(sites * _SINGLE_SHARE[ratio])


def drawn_views(
    sites: Sequence[SiteId], single_view_sites: int, views: int, seed: int
) -> dict[SiteId, int | None]:
    """Site to its view (from 0), or None for all; the last ``single_view_sites`` hold one each, at random."""
    drawn = numpy_generator(seed, "views").integers(0, views, size=single_view_sites)
    every: list[int | None] = [None] * (len(sites) - single_view_sites)
    return dict(zip(sites, [*every, *map(int, drawn)], strict=True))
