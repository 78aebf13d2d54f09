"""Adaptive clipping: the same event, a norm that follows the quantile, noise that pays for the counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from secfed.dp.mechanisms.adaptive_clipping import AdaptiveClip
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.losses import DeclaredLoss
from secfed.dp.training.mechanism import GaussianNoise
from secfed.dp.training.patient_records import TensorRecords
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError
from tests.dp.oracles import FALSE_ALARM, deviation_p
from tests.dp.toys import mechanism, sgd

# One parameter vector, one gradient per record: the record itself.
DRIFT = DeclaredLoss("drift", True, lambda model, batch: (model.weight[0] * batch[0]).sum(dim=1))


def records(count: int = 400) -> torch.Tensor:
    """Records whose gradient norms are 1..count."""
    torch.manual_seed(0)
    directions = torch.randn(count, 5)
    return directions / directions.norm(dim=1, keepdim=True) * torch.arange(1, count + 1)[:, None]


@pytest.mark.parametrize(("first", "quantile"), [(20.0, 0.5), (1500.0, 0.5), (100.0, 0.9)])
def test_the_norm_follows_the_quantile(first: float, quantile: float) -> None:
    adaptive = AdaptiveClip(quantile=quantile, rate=0.3, count_deviation=5.0)
    promised = replace(mechanism(clip=first, sigma=1.0, rate=0.5), adaptive=adaptive)
    private = PrivateTraining(promised, engine="loop", random=SecureRandom.for_simulation(1))
    model = nn.Linear(5, 1, bias=False)
    small = records()[::4]
    private.run(model, sgd(model, 0.0), DRIFT, (small,), steps=40)
    assert private.clip_norm == pytest.approx(400 * quantile, rel=0.25)


def test_the_event_is_that_of_the_mechanism_and_the_gradients_carry_more_noise() -> None:
    plain = mechanism(clip=2.0, sigma=1.0)
    adaptive = replace(plain, adaptive=AdaptiveClip(count_deviation=2.0))
    assert adaptive.event(7) == plain.event(7)
    z_g = adaptive.gradient_multiplier
    assert z_g > 1.0
    assert 1 / z_g**2 + 1 / (2 * 2.0) ** 2 == pytest.approx(1.0)
    values = {"weight": nn.Parameter(torch.zeros(10))}
    noises = [
        GaussianNoise.of(one, 2.0, values, SecureRandom.for_simulation(1)).deviation
        for one in (plain, adaptive)
    ]
    assert noises[1] / noises[0] == pytest.approx(z_g)


def test_an_empty_draw_is_noise_around_one_half() -> None:
    adaptive = AdaptiveClip(quantile=0.5, rate=0.2, count_deviation=0.001)
    random = SecureRandom.for_simulation(1)
    norm = adaptive.next_norm(3.0, within=0, units=0, expected_units=50, random=random)
    assert norm == pytest.approx(3.0, rel=1e-3)


def test_gradients_of_zero_leave_a_norm_to_clip_to() -> None:
    adaptive = AdaptiveClip(quantile=0.5, rate=0.2, count_deviation=0.001)
    norm = 1e-30
    for seed in range(5):
        random = SecureRandom.for_simulation(seed)
        norm = adaptive.next_norm(norm, within=50, units=50, expected_units=50, random=random)
    assert norm == 1e-30


def test_the_count_carries_the_noise_that_is_paid_for() -> None:
    """C' = C exp(-rate (fraction - quantile)), and the fraction carries noise of deviation s / M."""
    adaptive = AdaptiveClip(quantile=0.5, rate=0.2, count_deviation=10.0)
    random = SecureRandom.for_simulation(2)
    count = {"within": 40, "units": 80, "expected_units": 200.0}
    norms = np.array([adaptive.next_norm(1.0, **count, random=random) for _ in range(400)])  # type: ignore[arg-type]
    assert deviation_p(-np.log(norms) / 0.2, 10.0 / 200.0) > FALSE_ALARM


def test_the_noise_follows_the_norm_from_step_to_step() -> None:
    """A norm that grows needs more noise in the very next step."""
    adaptive = AdaptiveClip(quantile=0.9, rate=0.3, count_deviation=5.0)
    promised = replace(mechanism(clip=1.0, sigma=1.0, rate=0.5), adaptive=adaptive)
    private = PrivateTraining(promised, engine="loop", random=SecureRandom.for_simulation(1))
    model = nn.Linear(5, 1, bias=False)
    part = records(40)
    with private.session(model, sgd(model, 0.0), DRIFT, records=len(part), steps=5) as session:
        for _ in range(5):
            session.step(TensorRecords((part,)))
            wanted = promised.gradient_multiplier * private.clip_norm * (1 + 2.0**-10)
            assert session.noise.deviation == pytest.approx(wanted, rel=1e-12)
    assert private.clip_norm != 1.0


@pytest.mark.parametrize(
    "options",
    [{"quantile": 0.0}, {"quantile": 1.0}, {"rate": 0.0}, {"count_deviation": 0.0}, {"rate": math.nan}],
)
def test_impossible_settings_and_counts_that_cost_too_much_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        AdaptiveClip(**options)
    with pytest.raises(ConfigError, match="cost more than"):
        replace(mechanism(sigma=4.0), adaptive=AdaptiveClip(count_deviation=1.9))


def test_much_noise_on_a_small_batch_moves_the_norm_by_one_step_at_most() -> None:
    adaptive = AdaptiveClip(quantile=0.5, rate=0.2, count_deviation=100.0)
    random = SecureRandom.for_simulation(1)
    norms = [adaptive.next_norm(1.0, within=1, units=1, expected_units=1.0, random=random) for _ in range(20)]
    assert min(norms) == pytest.approx(math.exp(-0.1))
    assert max(norms) == pytest.approx(math.exp(0.1))
