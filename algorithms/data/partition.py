"""Dividing one pool of records among simulated sites.

A partition is a list of index arrays, one per site: disjoint, and together all records; ascending unless
said otherwise. It depends on the labels, the options and the generator only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.framework.randomness import numpy_generator
from secfed.errors import ConfigError

T = TypeVar("T")
Records = TypeVar("Records")
Division = TypeVar("Division")
Partition = list[NDArray[np.int64]]

_DRAWS: Final = 1000


class Pool(Generic[Records, Division]):
    """Records that are loaded, and divided among simulated sites, when the first site asks.

    The study's seed decides the division. It is part of the simulation, and no guarantee covers it.
    """

    def __init__(
        self,
        load: Callable[[], Records],
        divide: Callable[[Records, np.random.Generator], Division],
        seed: int,
        *purpose: str,
    ) -> None:
        self._load, self._divide, self._seed, self._purpose = load, divide, seed, purpose

    @cached_property
    def records(self) -> Records:
        """The whole pool."""
        return self._load()

    @cached_property
    def partition(self) -> Division:
        """Positions in the pool, one array per site."""
        return self._divide(self.records, numpy_generator(self._seed, "partition", *self._purpose))


def check_enough(records: int, sites: int, min_records: int) -> None:
    """Refuse a partition that the number of (training) records rules out."""
    if sites * min_records > records:
        raise ConfigError(
            f"data.min_records: {sites} sites of {min_records} records need more than the data set has",
            remedy="lower data.min_records or the number of sites, or use more records",
        )


def drawn_until(draw: Callable[[], T | None], alpha: float, min_records: int, draws: int = _DRAWS) -> T:
    """The first result of ``draw`` that is not None."""
    for _ in range(draws):
        result = draw()
        if result is not None:
            return result
    message = f"data.alpha: {draws} draws with alpha = {alpha} never gave every site {min_records} records"
    raise ConfigError(message, remedy="raise data.alpha, or lower data.min_records or the number of sites")


def class_shares(classes: int, sites: int, alpha: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """For every class, which part of it goes to which site: [classes, sites], rows sum to 1.

    Source: Hsu, Qi, Brown 2019 (arXiv 1909.06335), section 3, drawn per class.
    """
    shares = rng.dirichlet(np.full(sites, alpha), size=classes)
    if not np.isfinite(shares).all() or not np.allclose(shares.sum(axis=1), 1):
        message = f"data.alpha: {alpha} is too small for {sites} sites"
        raise ConfigError(message, remedy="set data.alpha to 0.05 or more")
    return shares


def iid(records: int, sites: int, min_records: int, rng: np.random.Generator) -> Partition:
    """Random shares of equal size (to within one record)."""
    check_enough(records, sites, min_records)
    return [np.sort(part) for part in np.array_split(rng.permutation(records), sites)]


def dirichlet(
    labels: NDArray[np.int64],
    sites: int,
    alpha: float,
    min_records: int,
    rng: np.random.Generator,
    *,
    capped: bool = False,
) -> Partition:
    """Label-skewed shares: each class is divided by proportions drawn from Dirichlet(alpha).

    Draws are repeated until every site has ``min_records`` records. With ``capped``, a site with twice its
    even share gets nothing of the next class, and each share is in random order: that of the batches.

    Source: Hsu, Qi, Brown 2019 (arXiv 1909.06335), section 3, drawn per class; capped as in the partition
    that Chen et al., NeurIPS 2024 (arXiv 2410.09484) published with their paper.
    """
    check_enough(len(labels), sites, min_records)

    def draw() -> Partition | None:
        pieces: list[Partition] = []
        held = np.zeros(sites, dtype=np.int64)
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            weights = rng.dirichlet(np.full(sites, alpha))
            if capped:
                weights = weights * (held < 2 * len(labels) / sites)
                with np.errstate(invalid="ignore"):
                    weights = weights / weights.sum()
            # A tiny alpha underflows to 0/0; the class then stays undivided and the draw is repeated.
            cuts = np.nan_to_num(np.cumsum(weights), nan=1.0)[:-1]
            pieces.append(np.split(members, (cuts * len(members)).astype(np.int64)))
            held += np.array([len(piece) for piece in pieces[-1]])
        return joined(pieces) if pieces and held.min() >= min_records else None

    shares = drawn_until(draw, alpha, min_records)
    return [rng.permutation(share) if capped else np.sort(share) for share in shares]


def cut(
    labels: NDArray[np.int64], label: int, cuts: NDArray[np.float64], rng: np.random.Generator
) -> Partition:
    """The positions of one class, in random order, cut at these cumulative shares (without the last)."""
    members = rng.permutation(np.flatnonzero(labels == label))
    return np.split(members, np.floor(cuts * len(members) + 0.5).astype(np.int64))


def joined(pieces: list[Partition]) -> Partition:
    """The pieces of all classes, site by site; not sorted."""
    return [np.concatenate(of_site) for of_site in zip(*pieces, strict=True)]


def first_per_class(labels: NDArray[np.int64], per_class: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Ascending positions of at most ``per_class`` records of each class: the first of a permutation."""
    shuffled = rng.permutation(len(labels))
    of_class = [shuffled[labels[shuffled] == label][:per_class] for label in np.unique(labels)]
    return np.sort(np.concatenate(of_class)) if of_class else shuffled
