"""Dividing one pool of records among simulated sites.

A partition is a list of index arrays, one per site: ascending, disjoint, and together all records. It
depends on the labels, the options and the generator only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secfed.errors import ConfigError

_DRAWS = 1000

Partition = list[NDArray[np.int64]]


def iid(records: int, sites: int, min_records: int, rng: np.random.Generator) -> Partition:
    """Random shares of equal size (to within one record).

    Raises:
        ConfigError: fewer than ``sites * min_records`` records.
    """
    _check_enough(records, sites, min_records)
    return [np.sort(part) for part in np.array_split(rng.permutation(records), sites)]


def dirichlet(
    y: NDArray[np.int64], sites: int, alpha: float, min_records: int, rng: np.random.Generator
) -> Partition:
    """Label-skewed shares: each class is divided by proportions drawn from Dirichlet(alpha).

    Args:
        y: [n] labels.
        sites: number of shares.
        alpha: small is skewed (0.1: most sites lack classes), large approaches ``iid``.
        min_records: draws are repeated until every site has this many records.
        rng: source of the proportions and of the order within a class.

    Raises:
        ConfigError: no draw gives every site ``min_records`` records.

    Source: Hsu, Qi, Brown 2019 (arXiv 1909.06335), section 3, drawn per class.
    """
    _check_enough(len(y), sites, min_records)
    for _ in range(_DRAWS):
        shares: list[list[NDArray[np.int64]]] = [[] for _ in range(sites)]
        for label in np.unique(y):
            members = rng.permutation(np.flatnonzero(y == label))
            # A tiny alpha underflows to 0/0; the class then stays undivided and the draw is repeated.
            cuts = np.nan_to_num(np.cumsum(rng.dirichlet(np.full(sites, alpha))), nan=1.0)[:-1]
            parts = np.split(members, (cuts * len(members)).astype(np.int64))
            for share, part in zip(shares, parts, strict=True):
                share.append(part)
        if min(sum(map(len, share)) for share in shares) >= min_records:
            return [np.sort(np.concatenate(share)) for share in shares]
    raise ConfigError(
        f"data.alpha: {_DRAWS} draws with alpha = {alpha} never gave every site {min_records} records",
        remedy="raise data.alpha, or lower data.min_records or data.sites",
    )


def _check_enough(records: int, sites: int, min_records: int) -> None:
    if sites * min_records > records:
        raise ConfigError(
            f"data.min_records: {sites} sites of {min_records} records need more than the data set has",
            remedy="lower data.min_records or data.sites",
        )
