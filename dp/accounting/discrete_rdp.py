"""Renyi divergences of the discrete mechanisms of site-level privacy, in units of the integer grid.

Both bounds hold for the sum that the honest surviving sites contribute to; anything the others add is
post-processing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from secfed.dp.accounting.events import DistributedDiscreteGaussian, Skellam


def skellam(orders: NDArray[np.float64], event: Skellam) -> NDArray[np.float64]:
    """RDP of one release with Skellam noise, per order; a fractional one gets the bound of the next integer.

    Renyi divergences do not decrease with the order. Source: Agarwal, Kairouz, Liu 2021 (arXiv 2110.04995),
    theorem 3.5 and its vector form.
    """
    if event.variance == 0:
        return np.full_like(orders, np.inf)
    alpha = np.ceil(orders)
    l2, l1, variance = event.adjacency.factor * event.l2, event.adjacency.factor * event.l1, event.variance
    gaussian = alpha * l2**2 / (2 * variance)
    small = ((2 * alpha - 1) * l2**2 + 6 * l1) / (4 * variance**2)
    return np.asarray(gaussian + np.minimum(small, 3 * l1 / (2 * variance)))


def distributed_gaussian(
    orders: NDArray[np.float64], event: DistributedDiscreteGaussian
) -> NDArray[np.float64]:
    """RDP of one release with the sum of discrete Gaussians, per order.

    Source: Kairouz, Liu, Steinke 2021 (arXiv 2102.06387), proposition 14: a sum of discrete Gaussians is
    close to a discrete Gaussian, with a gap tau per coordinate.
    """
    if event.sigma == 0 or event.shares == 0:
        return np.full_like(orders, np.inf)
    gap = sum_gap(event.sigma, event.shares)
    deviation = event.sigma * math.sqrt(event.shares)
    l2, l1 = event.adjacency.factor * event.l2 / deviation, event.adjacency.factor * event.l1 / deviation
    half = orders / 2
    return np.asarray(
        np.minimum.reduce(
            [
                half * l2**2 + gap * event.dimension,
                half * (l2**2 + 2 * l1 * gap + gap**2 * event.dimension),
                half * (l2 + math.sqrt(event.dimension) * gap) ** 2,
            ]
        )
    )


def sum_gap(sigma: float, shares: int) -> float:
    """How far the sum of ``shares`` discrete Gaussians of scale ``sigma`` is from one (log ratio)."""
    return 10 * sum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, shares))
