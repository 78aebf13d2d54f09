from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secfed.algorithms.fmcsc.mutual_information import mutual_information

seeds = st.integers(0, 2**32)


def pair(seed: int, n: int = 50, d: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    a = torch.from_numpy(rng.normal(size=(n, d)))
    return a, a * rng.normal() + torch.from_numpy(rng.normal(size=(n, d)))


def by_definition(a: torch.Tensor, b: torch.Tensor, bins: int) -> float:
    """The plug-in estimate from NumPy's two-dimensional histogram."""
    joint, _, _ = np.histogram2d(a.numpy().ravel(), b.numpy().ravel(), bins=bins)
    joint = joint / joint.sum()
    p, q = joint.sum(axis=1), joint.sum(axis=0)
    cells = [(i, j) for i in range(bins) for j in range(bins) if joint[i, j]]
    return sum(joint[i, j] * math.log2(joint[i, j] / (p[i] * q[j])) for i, j in cells)


@given(seed=seeds, bins=st.integers(2, 12))
def test_it_is_the_plug_in_estimate_of_the_histogram(seed, bins):
    a, b = pair(seed)
    found = mutual_information(a, b, bins=bins)
    assert found == pytest.approx(by_definition(a, b, bins), abs=1e-9)
    assert 0.0 <= found <= math.log2(bins)
    assert mutual_information(a, a, bins=bins) <= math.log2(bins)


def test_with_a_constant_it_is_zero():
    a, _ = pair(1)
    for constant in (torch.zeros(50, 4), torch.full((50, 4), 0.1)):
        assert mutual_information(a, constant) == 0.0
        assert mutual_information(constant, a) == 0.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_pairs_that_are_no_numbers_are_left_out(bad):
    a, b = torch.arange(8.0).reshape(4, 2), torch.arange(8.0).reshape(4, 2).square()
    damaged_a = torch.cat([a, torch.tensor([[bad, 1.0]])])
    damaged_b = torch.cat([b, torch.tensor([[1.0, bad]])])
    assert mutual_information(damaged_a, damaged_b) == mutual_information(a, b) > 0
    assert mutual_information(torch.full((2, 2), bad), torch.ones(2, 2)) == 0.0
