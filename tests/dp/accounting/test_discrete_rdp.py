"""The bounds for Skellam and discrete Gaussian noise against exact divergences in one dimension."""

from __future__ import annotations

import numpy as np
import pytest

from secfed.dp.accounting import discrete_rdp
from secfed.dp.accounting.events import DistributedDiscreteGaussian, Skellam
from secfed.dp.accounting.unit import Adjacency
from tests.dp.oracles import discrete_gaussian_pmf, renyi, skellam_pmf

ZERO, SWAP = Adjacency.ZERO_OUT_SITE, Adjacency.REPLACE_SITE
ORDERS = np.array([2.0, 3.0, 8.0, 32.0])


@pytest.mark.parametrize("variance", [4.0, 30.0, 400.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_skellam_bound_holds_and_is_tight(variance: float, shift: int) -> None:
    pmf = skellam_pmf(variance, int(40 * variance**0.5 + 60))
    bound = discrete_rdp.skellam(ORDERS, Skellam(ZERO, float(shift), float(shift), variance, 1))
    for order, value in zip(ORDERS, bound, strict=True):
        if order * shift > 4 * variance:
            continue  # the exact sum would need probabilities below double precision
        exact = renyi(pmf, shift, order)
        assert exact <= value * (1 + 1e-9)
        if variance >= 400:
            assert value <= 1.2 * exact


@pytest.mark.parametrize(("scale", "l1"), [(3.0, 2.0), (3.0, 40.0), (200.0, 40.0)])
def test_skellam_is_the_formula_of_section_8_in_real_units(scale: float, l1: float) -> None:
    """D2, D1, m in real units, S = 1 / grid; both branches of the minimum occur."""
    l2, variance = 1.1, 2.5
    wanted = ORDERS * l2**2 / (2 * variance) + np.minimum(
        ((2 * ORDERS - 1) * scale * l2**2 + 6 * l1) / (4 * scale**3 * variance**2),
        3 * l1 / (2 * scale * variance),
    )
    event = Skellam(ZERO, scale * l2, scale * l1, scale**2 * variance, 1)
    assert discrete_rdp.skellam(ORDERS, event) == pytest.approx(wanted, rel=1e-12)


def test_a_fractional_order_takes_the_next_integer() -> None:
    event = Skellam(ZERO, 3.0, 5.0, 50.0, 1)
    low, high = discrete_rdp.skellam(np.array([2.1, 3.0]), event)
    assert low == high


@pytest.mark.parametrize("shares", [1, 2, 5])
@pytest.mark.parametrize("sigma", [0.6, 1.0, 3.0])
def test_distributed_gaussian_bound_holds(sigma: float, shares: int) -> None:
    one = discrete_gaussian_pmf(sigma, int(40 * sigma) + 8)
    pmf = one
    for _ in range(shares - 1):
        pmf = np.convolve(pmf, one)
    event = DistributedDiscreteGaussian(ZERO, 1.0, 1.0, sigma, shares, 1, 1)
    bound = discrete_rdp.distributed_gaussian(ORDERS, event)
    for order, value in zip(ORDERS, bound, strict=True):
        if order <= 2 * sigma**2 * shares:
            assert renyi(pmf, 1, order) <= value * (1 + 1e-9)


def test_replacing_a_site_doubles_the_sensitivity() -> None:
    zero = discrete_rdp.skellam(ORDERS, Skellam(ZERO, 6.0, 8.0, 500.0, 1))
    swap = discrete_rdp.skellam(ORDERS, Skellam(SWAP, 3.0, 4.0, 500.0, 1))
    assert np.array_equal(zero, swap)
    first = DistributedDiscreteGaussian(ZERO, 6.0, 8.0, 4.0, 3, 9, 1)
    second = DistributedDiscreteGaussian(SWAP, 3.0, 4.0, 4.0, 3, 9, 1)
    assert np.array_equal(
        discrete_rdp.distributed_gaussian(ORDERS, first), discrete_rdp.distributed_gaussian(ORDERS, second)
    )


def test_fine_grids_approach_the_gaussian_mechanism() -> None:
    """Section 8.2: for a fine grid the correction disappears."""
    gaussian = ORDERS / (2 * 4.0)
    fine = discrete_rdp.skellam(ORDERS, Skellam(ZERO, 1e5, 1e7, 4e10, 1))
    assert fine == pytest.approx(gaussian, rel=1e-4)
    assert (fine >= gaussian).all()
