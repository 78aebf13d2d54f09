"""The two projections, against a generic solver and by what they must keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from secfed.algorithms.dro import kl
from tests.algorithms.dro_case import chi2_project, kl_divergence, kl_project

numbers = st.floats(0.01, 1.0)
simplex = st.lists(numbers, min_size=2, max_size=8).map(
    lambda x: torch.tensor(x, dtype=torch.float64) / math.fsum(x)
)
radii = st.floats(1e-3, 3.0)


def solved(weights, far, near, radius, near_slope, far_slope) -> torch.Tensor:
    """Minimise ``far`` inside the simplex and the ball, knowing nothing of closed forms."""
    count = len(weights)
    found = minimize(
        far,
        np.full(count, 1.0 / count),
        jac=far_slope,
        bounds=[(1e-12, 1.0)] * count,
        constraints=[
            {"type": "eq", "fun": lambda x: x.sum() - 1.0, "jac": np.ones_like},
            {"type": "ineq", "fun": lambda x: radius - near(x), "jac": lambda x: -near_slope(x)},
        ],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return torch.from_numpy(found.x)


@settings(max_examples=20, deadline=None)
@given(simplex, radii)
def test_chi_square_projection_is_the_nearest_point_of_the_ball(weights, radius):
    count, start = len(weights), weights.numpy()
    generic = solved(
        weights,
        lambda x: ((x - start) ** 2).sum() * count,
        lambda x: ((count * x - 1) ** 2).mean(),
        radius,
        lambda x: 2 * (count * x - 1),
        lambda x: 2 * (x - start) * count,
    )
    torch.testing.assert_close(chi2_project(weights, radius), generic, atol=1e-6, rtol=0)


@settings(max_examples=20, deadline=None)
@given(simplex, st.floats(1e-2, 2.0))
def test_kl_projection_is_the_nearest_point_of_the_ball(weights, rho):
    count, start = len(weights), weights.numpy()
    generic = solved(
        weights,
        lambda x: (x * np.log(x / start)).sum(),
        lambda x: (x * np.log(count * x)).sum(),
        rho,
        lambda x: np.log(count * x) + 1,
        lambda x: np.log(x / start) + 1,
    )
    ours = kl_project(weights, rho)
    # The solver stops at a flat place: its point is close, and ours must not be any farther from the start.
    torch.testing.assert_close(ours, generic, atol=2e-5, rtol=0)

    def far(x: torch.Tensor) -> float:
        return float((x * torch.log(x / weights)).sum())

    assert far(ours) <= far(generic) + 1e-8
    assert kl_divergence(ours) <= rho + 1e-9


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_the_largest_weight_is_reached_and_not_passed(count):
    for rho in (0.01, 0.1, 0.5):
        top = kl.largest_weight(count, rho)
        edge = torch.full((count,), (1.0 - top) / (count - 1), dtype=torch.float64)
        edge[0] = top
        assert kl_divergence(edge) == pytest.approx(rho, abs=1e-9)
        one = torch.full((count,), 1e-9, dtype=torch.float64)
        one[0] = 1.0
        assert float(kl_project(one, rho).max()) <= top + 1e-9
    assert kl.largest_weight(count, math.log(count)) == 1.0


def test_powers_are_chebyshev_points_without_0():
    assert kl.powers(2) == pytest.approx((0.5, 1.0))
    points = kl.powers(8)
    assert len(points) == 8
    assert points[-1] == 1.0
    assert points[0] > 0.0
    assert list(points) == sorted(points)
