"""Starts of k-means from third moments: the sum of x (x) x (x) x over embedded records x peaks at clusters.

Where clusters lie about a common mean of 0, what varies inside them cancels in third powers, and weighted
third powers of their centres are left. One sum takes the place of many restarts, each of which a record would
move: a record adds its third power to one sum only, of norm |x|^3 <= 1.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor decompositions for learning latent variable models",
Journal of Machine Learning Research 15, 2014: power iteration and deflation.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import Final

import torch

from secfed.algorithms.canonical.moments import weighted
from secfed.algorithms.framework.randomness import torch_generator
from secfed.algorithms.models.feature_maps import unit

MOST_DIMENSIONS: Final = 30  # of a record, that are raised: 4960 products
_BATCH: Final = 2048  # records at a time
_TRIED: Final = 100  # directions that peaks are looked for from
_STEPS: Final = 30  # of each, uphill


def size_of_cubes(dimensions: int) -> int:
    """How many products x_i x_j x_k with i <= j <= k there are."""
    return math.comb(dimensions + 2, 3)


def cubes(records: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Summed third powers of [n, q] records with norms of at most 1; each times its weight, [n], if given.

    Every product appears once, times the root of how often it does in the whole tensor, so one record adds as
    much as its tensor is long: |x|^3.
    """
    size = records.shape[1]
    (first, second, third), roots = _products(size)
    whole = records.new_zeros(size * size, size)
    counted = weighted(records, weights)
    for some, times in zip(torch.split(records, _BATCH), torch.split(counted, _BATCH), strict=True):
        whole += (some[:, :, None] * some[:, None, :]).flatten(1).T @ times
    return whole.reshape(size, size, size)[first, second, third] * roots


def peaks(summed: torch.Tensor, dimensions: int, clusters: int, seed: int) -> torch.Tensor:
    """Where the tensor of :func:`cubes` is largest, one direction after the other: [K, dimensions]."""
    places, roots = _products(dimensions)
    tensor = summed.new_zeros(dimensions, dimensions, dimensions)
    for order in permutations(places):
        tensor[order] = summed / roots
    drawn = torch.randn(_TRIED, dimensions, dtype=torch.float64, generator=torch_generator(seed, "peaks"))
    found = []
    for _ in range(clusters):
        tried = unit(drawn)
        for _ in range(_STEPS):
            tried = unit(_along(tensor, tried))
        heights = (_along(tensor, tried) * tried).sum(dim=1)
        best = tried[heights.argmax()]
        found.append(best)
        tensor = tensor - heights.max() * torch.einsum("a,b,c->abc", best, best, best)
    return torch.stack(found)


def _along(tensor: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """The tensor's product with each of [n, q] directions, twice: [n, q]."""
    once = (directions @ tensor.flatten(1)).reshape(len(directions), *tensor.shape[1:])
    return (once * directions[:, :, None]).sum(dim=1)


def _products(dimensions: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Places i <= j <= k, and the roots of how often each product appears: of 1, 3 or 6."""
    places = torch.combinations(torch.arange(dimensions), 3, with_replacement=True).unbind(1)
    first, second, third = places
    alike = (first == second).int() + (second == third).int()
    return places, torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64)[alike].sqrt()
