from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secfed.algorithms.fmcsc.mutual_information import mutual_information, sensitivity
from secfed.errors import RangeError

TOP = math.log2(10)
seeds = st.integers(0, 2**32)


def pair(seed: int, n: int = 50, d: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    a = torch.from_numpy(rng.normal(size=(n, d)))
    return a, a * rng.normal() + torch.from_numpy(rng.normal(size=(n, d)))


def by_definition(a: torch.Tensor, b: torch.Tensor, bins: int, limits=None) -> float:
    """The plug-in estimate from NumPy's two-dimensional histogram."""
    joint, _, _ = np.histogram2d(a.numpy().ravel(), b.numpy().ravel(), bins=bins, range=limits)
    joint = joint / joint.sum()
    p, q = joint.sum(axis=1), joint.sum(axis=0)
    cells = [(i, j) for i in range(bins) for j in range(bins) if joint[i, j]]
    return sum(joint[i, j] * math.log2(joint[i, j] / (p[i] * q[j])) for i, j in cells)


@given(seed=seeds, bins=st.integers(2, 12))
def test_it_is_the_plug_in_estimate_of_the_histogram(seed, bins):
    a, b = pair(seed)
    assert mutual_information(a, b, bins=bins) == pytest.approx(by_definition(a, b, bins), abs=1e-9)
    # range= of NumPy leaves values outside away; none is outside here
    limits = ((-9.0, 8.0), (-30.0, 31.0))
    assert mutual_information(a, b, bins=bins, edges=limits) == pytest.approx(
        by_definition(a, b, bins, limits), abs=1e-9
    )


@given(seed=seeds)
def test_it_is_symmetric_and_between_nothing_and_all(seed):
    a, b = pair(seed)
    found = mutual_information(a, b)
    assert 0 <= found <= TOP
    assert found == pytest.approx(mutual_information(b, a), abs=1e-12)
    assert -TOP <= found - mutual_information(a, a) <= TOP


@given(seed=seeds)
def test_of_a_matrix_with_itself_it_is_the_entropy_of_its_histogram(seed):
    a, _ = pair(seed)
    counts = np.histogram(a.numpy(), bins=10)[0]
    shares = counts[counts > 0] / counts.sum()
    entropy = -float((shares * np.log2(shares)).sum())
    assert mutual_information(a, a) == pytest.approx(entropy, abs=1e-9)
    assert entropy <= TOP


def test_of_a_uniform_matrix_with_itself_it_is_log2_of_the_bins():
    a = torch.arange(1000, dtype=torch.float64).reshape(100, 10)
    assert mutual_information(a, a) == pytest.approx(TOP)


@pytest.mark.parametrize("edges", [None, ((-3.0, 3.0), (-1.0, 1.0))])
def test_with_a_constant_it_is_zero(edges):
    a, _ = pair(1)
    for constant in (torch.zeros(50, 4), torch.full((50, 4), 0.1)):
        assert mutual_information(a, constant, edges=edges) == 0.0
        assert mutual_information(constant, a, edges=edges) == 0.0


def test_of_independent_large_samples_it_is_small():
    rng = np.random.default_rng(5)
    a, b = (torch.from_numpy(rng.uniform(size=(208, 20))) for _ in range(2))
    assert mutual_information(a, b) < 0.05


def test_coordinates_pair_by_position_only():
    a, b = pair(3)
    assert mutual_information(a.T.contiguous(), b.T.contiguous()) == mutual_information(a, b)
    assert mutual_information(a, b.flip(0)) < mutual_information(a, b)


def test_values_beyond_fixed_edges_count_at_the_edge():
    a, b = pair(4)
    edges = ((-1.0, 1.0), (-1.0, 1.0))
    assert mutual_information(a, b, edges=edges) == mutual_information(
        a.clamp(-1, 1), b.clamp(-1, 1), edges=edges
    )
    # one outlier moves every border that the data decide, and none that is fixed
    wild = a.clone()
    wild[0, 0] = 1e9
    assert mutual_information(wild, b) < 0.1 * mutual_information(a, b)
    moved = abs(mutual_information(wild, b, edges=edges) - mutual_information(a, b, edges=edges))
    assert moved <= sensitivity(50)


@given(seed=seeds, n=st.integers(1, 30), bins=st.integers(2, 10), far=st.floats(-5, 5))
def test_replacing_one_record_moves_it_by_no_more_than_the_sensitivity(seed, n, bins, far):
    a, b = pair(seed, n)
    edges = ((-3.0, 3.0), (-3.0, 3.0))
    other = (a.clone(), b.clone())
    other[0][seed % n] = far
    other[1][seed % n] = torch.from_numpy(np.random.default_rng(seed + 1).normal(size=4) * 3)
    moved = mutual_information(a, b, bins=bins, edges=edges) - mutual_information(
        *other, bins=bins, edges=edges
    )
    assert abs(moved) <= sensitivity(n, bins=bins) + 1e-12


def test_the_sensitivity_falls_with_the_records_and_never_exceeds_the_range():
    bounds = [sensitivity(n) for n in range(1, 400)]
    assert bounds == sorted(bounds, reverse=True)
    assert max(bounds) == TOP
    assert sensitivity(208) == pytest.approx(0.194, abs=0.001)
    # q (2 log2 9 + log2 99) + 3 hb(q) at q = 1/64, worked by hand: (6.340 + 6.629) / 64 + 3 * 0.11612
    assert sensitivity(64) == pytest.approx(0.5510, abs=0.0005)


@pytest.mark.parametrize(
    ("a", "b", "bins"),
    [
        (torch.zeros(2, 2), torch.zeros(2, 3), 10),
        (torch.zeros(0, 2), torch.zeros(0, 2), 10),
        (torch.ones(2, 2), torch.ones(2, 2), 1),
    ],
)
def test_what_has_no_estimate_is_refused(a, b, bins):
    with pytest.raises(RangeError):
        mutual_information(a, b, bins=bins)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_pairs_that_are_no_numbers_are_left_out(bad):
    a, b = torch.arange(8.0).reshape(4, 2), torch.arange(8.0).reshape(4, 2).square()
    damaged_a, damaged_b = (
        torch.cat([a, torch.tensor([[bad, 1.0]])]),
        torch.cat([b, torch.tensor([[1.0, bad]])]),
    )
    assert mutual_information(damaged_a, damaged_b) == mutual_information(a, b) > 0
    assert mutual_information(torch.full((2, 2), bad), torch.ones(2, 2)) == 0.0


def test_the_sensitivity_of_nothing_is_refused():
    with pytest.raises(RangeError):
        sensitivity(0)
