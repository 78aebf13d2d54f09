from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from secfed.algorithms.fmcsc import laplace as paper_laplace
from secfed.algorithms.fmcsc.laplace import laplace
from secfed.algorithms.framework.randomness import torch_generator


@pytest.mark.parametrize("epsilon", [50.0, 10.0])
def test_the_noise_is_laplace_of_the_stated_scale(epsilon):
    noise, width = laplace((400, 500), epsilon, torch_generator(1, "noise")).double(), 1 / epsilon
    assert noise.shape == (400, 500)
    assert float(noise.mean()) == pytest.approx(0, abs=0.02 * width)
    assert float(noise.std()) == pytest.approx(width * math.sqrt(2), rel=0.02)
    # what tells it from a Gaussian of the same spread: mean |x| = b, and half of it within b ln 2
    assert float(noise.abs().mean()) == pytest.approx(width, rel=0.02)
    assert float((noise.abs() < width * math.log(2)).double().mean()) == pytest.approx(0.5, abs=0.01)


def test_epsilon_inf_changes_no_bit_and_draws_nothing():
    generator = torch_generator(1, "noise")
    before = generator.get_state()
    values = torch.tensor([0.0, -0.0, 1.5, -1e-45, float("inf")])
    noisy = values + laplace(values.shape, math.inf, generator)
    assert np.array_equal(noisy.numpy().view(np.uint32), values.numpy().view(np.uint32))
    assert torch.equal(generator.get_state(), before)


def test_noise_depends_on_the_generator_only():
    one, again, other = (laplace((8,), 1.0, torch_generator(seed, "noise")) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_module_says_that_it_guarantees_nothing():
    assert "NOT a privacy guarantee" in (paper_laplace.__doc__ or "")
