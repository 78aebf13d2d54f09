"""How much noise there is, and that every coordinate has its own: what an epsilon rests on.

Statistics here are of seeded streams: a test that passes once passes always. Their bounds are those that
fresh streams would exceed with probability below 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from secfed.dp.accounting.events import Gaussian
from secfed.dp.mechanisms.adaptive_clipping import AdaptiveClip
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.engines import ClippedSum
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.dp.training.mechanism import GaussianNoise, Mechanism
from tests.dp.local_case import ledger, local, paid, settings
from tests.dp.oracles import deviation_p
from tests.dp.toys import RECORD, mechanism

FALSE_ALARM = 1e-9
SLACK = 2.0**-10  # of every engine
# Exactly how far the deviation may be off: it is a product of four float64 numbers.
EXACT = 1e-14


def two_layers() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return dict(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).named_parameters())


def pure_noise(parameters: Mapping[str, nn.Parameter], promised: Mechanism, repeats: int) -> np.ndarray:
    """What is written when no unit took part: [repeats, coordinates], in units of the sum."""
    noise = GaussianNoise.of(promised, promised.clip_norm, dict(parameters), SecureRandom.for_simulation(5))
    rows = []
    for _ in range(repeats):
        total = ClippedSum(parameters, clip_norm=promised.clip_norm, grid=noise.grid)
        noise.write_gradients(total, 1.0)
        rows.append(torch.cat([value.grad.double().reshape(-1) for value in parameters.values()]))  # type: ignore[union-attr]
    return torch.stack(rows).numpy()


def test_noise_is_independent_between_coordinates_and_steps_and_has_the_promised_deviation() -> None:
    repeats = 600
    noise = pure_noise(two_layers(), mechanism(clip=2.0, sigma=1.5), repeats)
    dimension = noise.shape[1]
    assert dimension == 3 * 5 + 5 + 5 * 2 + 2
    correlation = np.corrcoef(noise, rowvar=False)[~np.eye(dimension, dtype=bool)]
    bound = stats.norm.isf(FALSE_ALARM / dimension**2) / math.sqrt(repeats)
    assert float(np.abs(correlation).max()) < bound
    for column in noise.T:
        assert deviation_p(column, 2.0 * 1.5 * (1 + SLACK)) > FALSE_ALARM / dimension
    following = (noise[1:] * noise[:-1]).mean(axis=0) / noise.var(axis=0)
    assert float(np.abs(following).max()) < stats.norm.isf(FALSE_ALARM / dimension) / math.sqrt(repeats)


@pytest.mark.parametrize("adaptive", [None, AdaptiveClip(count_deviation=3.0)], ids=["fixed", "adaptive"])
def test_the_sampler_is_given_sigma_times_c_with_the_slack(adaptive: AdaptiveClip | None) -> None:
    """No sample could show 2^-10: this looks at the number that is handed to the sampler."""
    sigma, clip = 1.25, 0.7
    promised = Mechanism(RECORD, clip, sigma, 0.5, adaptive)
    parameters = two_layers()
    noise = GaussianNoise.of(promised, clip, parameters, SecureRandom.for_simulation(1))
    # 1/z^2 = 1/z_g^2 + 1/(2 s)^2: Andrew et al. 2021, theorem 1.
    multiplier = sigma if adaptive is None else 1 / math.sqrt(1 / sigma**2 - 1 / (2 * 3.0) ** 2)
    wanted = multiplier * clip * (1 + SLACK)
    assert noise.deviation == pytest.approx(wanted, rel=EXACT)
    assert noise._sampler is not None
    assert noise._sampler.target.deviation * noise.grid == pytest.approx(wanted, rel=EXACT)


@pytest.mark.parametrize("elements", [1, 32, 10**6])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 40.0])
def test_the_slack_covers_what_rounding_to_the_grid_adds(elements: int, sigma: float) -> None:
    """Rounding moves one unit by at most grid * sqrt(d) / 2; half of the slack of C pays for it."""
    parameters = {"flat": nn.Parameter(torch.empty(elements, device="meta"))}
    promised, clip = mechanism(clip=3.0, sigma=sigma), 3.0
    noise = GaussianNoise.of(promised, clip, parameters, SecureRandom.for_simulation(1))
    assert noise.grid * math.sqrt(elements) / 2 <= SLACK / 2 * clip
    assert noise.deviation >= sigma * (clip + noise.grid * math.sqrt(elements) / 2)


def released_sums(
    private: LocalPrivacy, sums: Mapping[str, torch.Tensor], l2: float
) -> dict[str, torch.Tensor]:
    return private.release_sums(lambda: sums, {name: tuple(one.shape) for name, one in sums.items()}, l2=l2)


def test_released_sums_carry_the_noise_that_was_paid_for_in_1000_draws(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    private = local(book, settings(metrics="private"), seed=3)
    private.enter(1, "evaluation")
    sums = {"correct": torch.full((20, 25), 7.0), "counts": torch.full((500,), 3.0)}
    l2 = math.sqrt(2.0)
    released = released_sums(private, sums, l2)
    noise = np.concatenate([(released[name] - sums[name]).numpy().reshape(-1) for name in sums])
    (event,) = paid(book)
    assert isinstance(event, Gaussian)
    assert len(noise) == 1000
    assert deviation_p(noise, event.noise_multiplier * l2) > FALSE_ALARM
    # A sqrt(2) less would be noticed: the test can fail.
    assert deviation_p(noise, event.noise_multiplier * l2 * math.sqrt(2.0)) < FALSE_ALARM
    first, second = noise[:500], noise[500:]
    assert abs(np.corrcoef(first, second)[0, 1]) < stats.norm.isf(FALSE_ALARM) / math.sqrt(500)
    assert abs(float(noise.mean())) < stats.norm.isf(FALSE_ALARM) * noise.std() / math.sqrt(1000)
