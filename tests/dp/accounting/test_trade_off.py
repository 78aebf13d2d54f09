"""What a test for membership can find: against the exact trade-off of Gaussian noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from secfed.dp.accounting.events import Event, Gaussian, PoissonSampledGaussian, UnitSkellam
from secfed.dp.accounting.interface import statement
from secfed.dp.accounting.trade_off import found_at, guessed_at, most_found, most_guessed
from secfed.dp.accounting.unit import Adjacency

ADD, REPLACE = Adjacency.ADD_OR_REMOVE_RECORD, Adjacency.REPLACE_RECORD
ALARMS = 0.01


@pytest.mark.parametrize("noise", [0.3, 0.8, 2.0, 10.0])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_of_gaussian_noise_it_is_the_power_of_the_best_test(noise: float, relation: Adjacency) -> None:
    mu = (1.0 if relation is ADD else 2.0) / noise
    exact = float(stats.norm.cdf(stats.norm.ppf(ALARMS) + mu))
    found = most_found([Gaussian(relation, noise, 1)], ALARMS)
    assert exact <= found <= 1.02 * exact + 1e-3


def test_of_skellam_noise_it_is_a_little_more() -> None:
    """On fine grids the exact power is that of Gaussian noise; divergences of whole orders permit more."""
    event = UnitSkellam(ADD, 1e4, 1e6, (0.5e4 * 2) ** 2, 4)
    exact = float(stats.norm.cdf(stats.norm.ppf(ALARMS) + 2.0))
    assert exact <= most_found([event], ALARMS) <= 2 * exact


def test_the_curve_says_less_than_one_point_of_it() -> None:
    events: list[Event] = [PoissonSampledGaussian(ADD, 0.05, 0.7, 400)]
    told = statement(events, 1e-5)
    whole = most_found(events, ALARMS)
    assert whole < 0.6 * found_at(told.epsilon, 1e-5, ALARMS)
    assert whole >= ALARMS


def test_no_noise_and_no_privacy_find_everybody() -> None:
    assert most_found([Gaussian(ADD, 0.0, 1)], ALARMS) == 1.0
    assert found_at(math.inf, 1e-5, ALARMS) == pytest.approx(1.0)
    assert found_at(0.0, 0.0, ALARMS) == pytest.approx(ALARMS)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.0), (1.0, 1e-5), (3.0, 1e-5), (8.0, 0.01), (800.0, 1e-5)]
)
def test_one_point_is_the_trade_off_of_the_definition(epsilon: float, delta: float) -> None:
    """The largest power that (epsilon, delta) permits in both directions."""
    grow = np.exp(min(epsilon, 700.0))
    power = np.linspace(0, 1, 100_001)
    fine = (power <= grow * ALARMS + delta) & (grow * (1 - power) + delta >= 1 - ALARMS)
    assert found_at(epsilon, delta, ALARMS) == pytest.approx(power[fine].max(), abs=2e-5)


@pytest.mark.parametrize("noise", [0.3, 0.8, 2.0, 10.0])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_coin_beside_gaussian_noise_is_beaten_by_no_more_than_the_best_test(
    noise: float, relation: Adjacency
) -> None:
    mu = (1.0 if relation is ADD else 2.0) / noise
    exact = float(stats.norm.cdf(mu / 2))
    assert exact <= most_guessed([Gaussian(relation, noise, 1)]) <= exact + 2e-3


def test_a_coin_beside_skellam_noise() -> None:
    event = UnitSkellam(ADD, 1e4, 1e6, (0.5e4 * 2) ** 2, 4)
    exact = float(stats.norm.cdf(1.0))
    assert exact <= most_guessed([event]) <= 1.0
    assert most_guessed([Gaussian(ADD, 0.0, 1)]) == 1.0


def test_a_coin_at_one_point_is_the_sum_of_errors_of_the_definition() -> None:
    """With false-alarm rate a the power is at most e^epsilon a + delta, and misses likewise."""
    assert guessed_at(0.0, 0.0) == 0.5
    assert guessed_at(math.inf, 1e-5) == pytest.approx(1.0)
    for epsilon, delta in ((0.5, 0.0), (1.0, 1e-5), (3.0, 0.01)):
        alarms = np.linspace(0, 1, 100_001)
        power = np.minimum(
            1, np.minimum(np.exp(epsilon) * alarms + delta, 1 - np.exp(-epsilon) * (1 - alarms - delta))
        )
        assert guessed_at(epsilon, delta) == pytest.approx((1 + (power - alarms).max()) / 2, abs=1e-4)
