"""Lower bounds on epsilon: never above the truth more often than agreed, and close to it with many trials."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from secfed.dp.accounting.empirical_bounds import (
    Guesses,
    epsilon_shown,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_epsilon_shown,
)
from secfed.errors import ConfigError
from tests.dp import oracles

DELTA = 1e-5


@pytest.mark.parametrize("distance", [0.01, 0.27, 1.0, 1.665, 5.0, 12.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-3])
def test_epsilon_of_a_distance_is_exact(distance: float, delta: float) -> None:
    found = gaussian_epsilon(distance, delta)
    assert found == pytest.approx(oracles.gaussian_epsilon(delta, distance), rel=1e-6, abs=1e-9)
    assert gaussian_delta(distance, found) == pytest.approx(delta, rel=1e-6)


def test_a_delta_that_pays_for_everything() -> None:
    """Without any epsilon, delta is the total variation 2 Phi(mu / 2) - 1."""
    paid = 2 * float(stats.norm.cdf(0.05)) - 1
    assert gaussian_delta(0.1, 0.0) == pytest.approx(paid, rel=1e-12)
    assert gaussian_epsilon(0.1, paid * 1.001) == 0.0
    assert gaussian_epsilon(0.1, paid * 0.999) > 0.0


def test_an_epsilon_whose_power_no_float_holds() -> None:
    assert gaussian_delta(40.0, 800.0) == pytest.approx(float(stats.norm.cdf(0.0)), rel=0.05)
    assert gaussian_epsilon(60.0, DELTA) > 1800.0


@pytest.mark.parametrize("trials", [1, 50, 4000])
def test_limits_where_they_have_a_closed_form(trials: int) -> None:
    """All hits, no false alarm: the limit is the rate at which that happens with half of the error."""
    least, most = Guesses(trials, trials, 0, trials).limits(0.99)
    assert least == pytest.approx(0.005 ** (1 / trials), rel=1e-9)
    assert most == pytest.approx(1 - 0.005 ** (1 / trials), rel=1e-6)


def test_limits_agree_with_an_independent_library() -> None:
    least, most = Guesses(83, 120, 31, 150).limits(0.95)
    interval = stats.binomtest(83, 120).proportion_ci(0.95, method="exact")
    assert least == pytest.approx(interval.low, rel=1e-9)
    interval = stats.binomtest(31, 150).proportion_ci(0.95, method="exact")
    assert most == pytest.approx(interval.high, rel=1e-9)


@pytest.mark.parametrize(
    "guesses",
    [
        Guesses(0, 500, 0, 500),
        Guesses(500, 500, 500, 500),
        Guesses(0, 500, 500, 500),  # always wrong: turning the guesses round would be looking first
        Guesses(100, 500, 101, 500),
        Guesses(250, 500, 245, 500),  # within chance
        Guesses(0, 0, 0, 500),
        Guesses(500, 500, 0, 0),
        Guesses(0, 0, 0, 0),
    ],
)
def test_guesses_that_prove_nothing(guesses: Guesses) -> None:
    assert epsilon_shown(guesses, DELTA, confidence=0.99) == 0.0
    assert gaussian_epsilon_shown(guesses, DELTA, confidence=0.99) == 0.0


def test_perfect_guesses_are_worth_what_their_number_allows() -> None:
    few, many = (epsilon_shown(Guesses(n, n, 0, n), DELTA, confidence=0.99) for n in (100, 10_000))
    least = 0.005 ** (1 / 100)
    assert few == pytest.approx(math.log((least - DELTA) / (1 - least)), rel=1e-6)
    assert few < many < math.inf


def test_the_better_of_both_directions_counts() -> None:
    """Here it is the silence that gives away: never silent where the canary is."""
    guesses = Guesses(1000, 1000, 500, 1000)
    _, alarms = guesses.limits(0.99)
    wanted = math.log((1 - alarms - DELTA) / (1 - 0.005 ** (1 / 1000)))
    assert epsilon_shown(guesses, DELTA, confidence=0.99) == pytest.approx(wanted, rel=1e-6)
    turned = Guesses(500, 1000, 0, 1000)
    assert epsilon_shown(turned, DELTA, confidence=0.99) == pytest.approx(wanted, rel=1e-6)


@given(
    present=st.integers(1, 3000),
    absent=st.integers(1, 3000),
    said=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    delta=st.sampled_from([1e-9, 1e-5, 1e-2]),
)
def test_knowing_that_noise_is_gaussian_never_proves_less(
    present: int, absent: int, said: tuple[float, float], delta: float
) -> None:
    guesses = Guesses(round(said[0] * present), present, round(said[1] * absent), absent)
    of_any = epsilon_shown(guesses, delta, confidence=0.9)
    assert 0.0 <= of_any <= gaussian_epsilon_shown(guesses, delta, confidence=0.9) + 1e-9


def drawn(hits: float, alarms: float, present: int, absent: int, repeats: int) -> list[Guesses]:
    generator = np.random.default_rng(7)
    counts = zip(
        generator.binomial(present, hits, repeats).tolist(),
        generator.binomial(absent, alarms, repeats).tolist(),
        strict=True,
    )
    return [Guesses(found, present, false, absent) for found, false in counts]


# With as many trials of one kind as settle its rate, all error is in the other: the worst case.
@pytest.mark.parametrize(("present", "absent"), [(60, 60), (300, 300), (200, 10**8), (10**8, 200)])
@pytest.mark.parametrize("threshold", [0.5, 2.0])
def test_no_more_gaussian_bounds_are_wrong_than_agreed(present: int, absent: int, threshold: float) -> None:
    distance, confidence, repeats = 1.2, 0.9, 2000
    truth = gaussian_epsilon(distance, DELTA)
    hits, alarms = float(stats.norm.sf(threshold - distance)), float(stats.norm.sf(threshold))
    samples = drawn(hits, alarms, present, absent, repeats)
    wrong = sum(gaussian_epsilon_shown(one, DELTA, confidence=confidence) > truth for one in samples)
    assert wrong <= stats.binom.ppf(1 - oracles.FALSE_ALARM, repeats, 1 - confidence)


@pytest.mark.parametrize(("present", "absent"), [(60, 60), (200, 10**8), (10**8, 200)])
@pytest.mark.parametrize(("hits", "alarms"), [(0.75, 0.25), (0.75 + DELTA, 0.25), (0.3, 0.1), (0.9, 0.7)])
def test_no_more_bounds_are_wrong_than_agreed(present: int, absent: int, hits: float, alarms: float) -> None:
    """Randomised response with epsilon ln 3, told in other ways, and once with delta on top."""
    confidence, repeats = 0.9, 2000
    samples = drawn(hits, alarms, present, absent, repeats)
    wrong = sum(epsilon_shown(one, DELTA, confidence=confidence) > math.log(3) for one in samples)
    assert wrong <= stats.binom.ppf(1 - oracles.FALSE_ALARM, repeats, 1 - confidence)


def test_many_trials_come_close_to_the_truth() -> None:
    trials = 10**6
    for distance in (0.27, 1.665, 4.0):
        hits = float(stats.norm.cdf(distance / 2))
        (guesses,) = drawn(hits, 1 - hits, trials, trials, 1)
        truth = gaussian_epsilon(distance, DELTA)
        assert 0.94 * truth < gaussian_epsilon_shown(guesses, DELTA, confidence=0.999) <= truth
    (guesses,) = drawn(0.75, 0.25, trials, trials, 1)
    assert 0.98 * math.log(3) < epsilon_shown(guesses, DELTA, confidence=0.999) <= math.log(3)


def test_more_confidence_proves_less() -> None:
    guesses = Guesses(700, 1000, 300, 1000)
    for bound in (epsilon_shown, gaussian_epsilon_shown):
        shown = [bound(guesses, DELTA, confidence=confidence) for confidence in (0.9, 0.99, 0.999)]
        assert shown == sorted(shown, reverse=True)
        assert shown[0] > shown[2] > 0


@pytest.mark.parametrize("counts", [(5, 4, 0, 4), (0, 4, 5, 4), (-1, 4, 0, 4), (0, 4, -1, 4), (0, -1, 0, 4)])
def test_counts_that_cannot_be(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ConfigError, match="cannot be counts of guesses"):
        Guesses(*counts)


def test_a_confidence_a_delta_and_a_distance_that_are_none() -> None:
    for bound in (epsilon_shown, gaussian_epsilon_shown):
        for confidence in (0.0, 1.0, -0.5, 99.0, math.nan):
            with pytest.raises(ConfigError, match=r"confidence = .* is not strictly between 0 and 1"):
                bound(Guesses(1, 2, 1, 2), DELTA, confidence=confidence)
        for delta in (0.0, 1.0, math.nan):
            with pytest.raises(ConfigError, match=r"delta = .* is not between 0 and 1"):
                bound(Guesses(1, 2, 1, 2), delta, confidence=0.9)
    for distance in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="distance = "):
            gaussian_epsilon(distance, DELTA)
