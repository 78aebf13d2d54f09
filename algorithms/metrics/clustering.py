"""Clustering scores from one table: how many records of each class each cluster holds.

A site counts its own records into a [K, C] table; only the sum of the tables leaves the protection. ACC,
NMI and ARI are functions of that sum, so they are exactly those of all records together, and no label
and no assignment leaves a site.

Source: ACC: Kuhn, "The Hungarian method for the assignment problem", 1955 (matching by
``scipy.optimize.linear_sum_assignment``). NMI with the arithmetic mean: Vinh, Epps, Bailey, JMLR 11,
2010, table 2. ARI: Hubert, Arabie, Journal of Classification 2, 1985, equation 5.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.metrics.exact_logarithm import logarithm
from secfed.algorithms.metrics.noise_error import stated
from secfed.errors import RangeError

_SCORES: Final = ("acc", "nmi", "ari")
_MOST_MOVED: Final = 0.1  # share of the records
_REDRAWN: Final = 400  # tables


def contingency(
    assigned: torch.Tensor,
    labels: torch.Tensor,
    clusters: int,
    classes: int,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Count one site's records by cluster and class: [K, C] float64, from [n] int64 of each.

    ``weights``, [n], are how much each record counts; 1 if left out.

    Security: a single-site value until it is inside a protected sum.
    """
    if assigned.shape != labels.shape or assigned.dim() != 1:
        raise RangeError("clusters and labels do not belong to the same records", remedy="give [n] of each")
    for what, values, limit in (("cluster", assigned, clusters), ("class", labels, classes)):
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < limit:
            raise RangeError(f"a {what} lies outside 0 .. {limit - 1}", remedy=f"check the number of {what}s")
    cells = assigned.to("cpu", torch.int64) * classes + labels.to("cpu", torch.int64)
    counts = torch.bincount(cells, weights, minlength=clusters * classes)
    return counts.reshape(clusters, classes).to(torch.float64)


def scores(table: torch.Tensor) -> dict[str, float]:
    """ACC (of the best one-to-one matching), NMI (arithmetic mean) and ARI of the summed [K, C] table.

    They equal scikit-learn's; none for an empty table. Fixed point leaves a count off by far less than one
    half, so every cell is taken as the nearest integer of at least 0.
    """
    counts = np.rint(table.to(device="cpu", dtype=torch.float64).numpy()).clip(min=0).astype(np.int64)
    if not counts.sum():
        return {}
    return {"acc": _accuracy(counts), "nmi": _mutual_information(counts), "ari": _rand(counts)}


def noisy_scores(table: torch.Tensor, deviation: float) -> dict[str, float]:
    """The scores of a summed table with noise in every cell, with their errors.

    ACC comes from the cells as they are, and its error holds whichever matching is the true one. NMI and ARI
    need counts, so they are those of the cells without negative ones, which moves small cells upwards. Their
    error is how far they move when as much noise is added once more, and how far when all cells move the
    same way by one deviation. Nothing is given where noise moves more than a tenth of all records, because
    the scores would move little then.
    """
    noisy = table.to(device="cpu", dtype=torch.float64).numpy()
    whole = float(noisy.sum())
    moved = noisy.size * deviation * math.sqrt(2.0 / math.pi)  # expected absolute noise
    if whole <= 0 or moved > _MOST_MOVED * whole:
        return {k: v for name in _SCORES for k, v in stated(name, math.nan, math.inf).items()}
    draws = np.random.default_rng(0).normal(0.0, deviation, (_REDRAWN, *noisy.shape))
    accuracy = _accuracy(noisy)
    made = stated("acc", accuracy, _quantile_95([_accuracy_moved(draw, accuracy) for draw in draws]) / whole)
    found = _of_counts(noisy)
    again = np.array([_of_counts(noisy + draw) for draw in draws])
    shifted = np.array([_of_counts(noisy + shift) for shift in (-deviation, deviation)])
    for at, name in enumerate(("nmi", "ari")):
        off, shift = (np.abs(by[:, at] - found[at]) for by in (again, shifted))
        error = _quantile_95(off) + float(shift.max())
        made |= stated(name, found[at], error)
    return made


def best_names(table: torch.Tensor) -> torch.Tensor:
    """The class of each cluster in the best one-to-one matching of a [K, K] table: [K] int64."""
    from scipy.optimize import linear_sum_assignment  # a slow import that only scoring needs

    return torch.from_numpy(linear_sum_assignment(table.numpy(), maximize=True)[1]).to(torch.int64)


def _accuracy_moved(noise: NDArray[np.float64], accuracy: float) -> float:
    """By how much noise moves the records of any matching at most, beyond its share of the total."""
    from scipy.optimize import linear_sum_assignment  # a slow import that only scoring needs

    share = accuracy * noise.sum()
    most, least = (noise[linear_sum_assignment(noise, maximize=up)].sum() for up in (True, False))
    return float(max(most - share, share - least))


def _of_counts(noisy: NDArray[np.float64]) -> tuple[float, float]:
    counted = scores(torch.from_numpy(noisy))
    return counted.get("nmi", math.nan), counted.get("ari", math.nan)


def _quantile_95(values: NDArray[np.float64] | list[float]) -> float:
    return float(np.quantile(values, 0.95))


def _accuracy(counts: NDArray[np.int64] | NDArray[np.float64]) -> float:
    from scipy.optimize import linear_sum_assignment  # a slow import that only scoring needs

    clusters, classes = linear_sum_assignment(counts, maximize=True)
    return float(counts[clusters, classes].sum() / counts.sum())


def _mutual_information(counts: NDArray[np.int64]) -> float:
    joint = counts / counts.sum()
    of_cluster, of_class = joint.sum(axis=1), joint.sum(axis=0)
    if np.count_nonzero(of_cluster) == np.count_nonzero(of_class) == 1:
        return 1.0  # one cluster, one class: nothing was split, and both entropies are 0
    held = counts > 0
    independent = np.outer(of_cluster, of_class)
    # Where hospitals open the sums, all must come to the same bits: no logarithm or order of a library's own.
    pairs = zip(joint[held].tolist(), independent[held].tolist(), strict=True)
    shared = math.fsum(both * logarithm(both / apart) for both, apart in pairs)
    # Rounding can leave a few ulp below 0 where cluster and class are independent.
    return max(shared, 0.0) / ((_entropy(of_cluster) + _entropy(of_class)) / 2)


def _entropy(shares: NDArray[np.float64]) -> float:
    return -math.fsum(share * logarithm(share) for share in shares[shares > 0].tolist())


def _rand(counts: NDArray[np.int64]) -> float:
    # Python integers: the number of pairs of pairs overflows 64 bits from about 70,000 records on.
    together = sum(math.comb(int(cell), 2) for cell in counts.flat)
    by_cluster = sum(math.comb(int(size), 2) for size in counts.sum(axis=1))
    by_class = sum(math.comb(int(size), 2) for size in counts.sum(axis=0))
    pairs = math.comb(int(counts.sum()), 2)
    if together == by_cluster == by_class:
        return 1.0  # the two partitions are the same; without a single pair the quotient would be 0 / 0
    return float(
        2
        * (together * pairs - by_cluster * by_class)
        / ((by_cluster + by_class) * pairs - 2 * by_cluster * by_class)
    )
