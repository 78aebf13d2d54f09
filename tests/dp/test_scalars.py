"""Private means of bounded numbers (specs: dp.md section 6, invariant 10)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.dp.accountant import Pld
from secfed.dp.randomness import SecureRandom
from secfed.dp.scalars import PrivateMean
from secfed.errors import ConfigError
from tests.dp.oracles import FALSE_ALARM, deviation_p

ANY = st.floats(allow_nan=True, allow_infinity=True)


@given(values=st.lists(ANY, min_size=1, max_size=20), other=ANY, data=st.data())
def test_replacing_one_unit_moves_the_mean_by_at_most_its_share(
    values: list[float], other: float, data: st.DataObject
) -> None:
    mean = PrivateMean(bound=6.0, noise_over_sensitivity=5.0)
    changed = list(values)
    changed[data.draw(st.integers(0, len(values) - 1))] = other
    assert abs(mean.clean(values) - mean.clean(changed)) <= 2**30


@given(values=st.lists(st.floats(-2, 9), min_size=1, max_size=20))
def test_the_clean_value_is_the_clipped_mean(values: list[float]) -> None:
    mean = PrivateMean(bound=6.0, noise_over_sensitivity=5.0)
    wanted = sum(min(max(value, 0.0), 6.0) for value in values)
    assert mean.clean(values) * 6.0 / 2**30 == pytest.approx(wanted, abs=1e-7)


def test_the_noise_has_the_deviation_that_the_event_states() -> None:
    """V = 6, K = 50, sigma = 5: standard deviation 0.6."""
    mean, random = PrivateMean(6.0, 5.0), SecureRandom.for_simulation(1)
    values = [1.0] * 50
    noise = [mean.release(values, random) - 1.0 for _ in range(600)]
    assert deviation_p(noise, 0.6) > FALSE_ALARM  # type: ignore[arg-type]
    assert deviation_p(noise, 0.5) < 1e-3  # type: ignore[arg-type]


def test_the_cost_is_that_of_the_specification() -> None:
    assert Pld(1e-3).epsilon([PrivateMean(6.0, 5.0).event(25)], 1e-5) == pytest.approx(4.4, rel=0.01)


@pytest.mark.parametrize(("bound", "sigma"), [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)])
def test_impossible_settings_are_refused(bound: float, sigma: float) -> None:
    with pytest.raises(ConfigError, match="positive bound and noise"):
        PrivateMean(bound, sigma)


def test_no_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one value"):
        PrivateMean(1.0, 1.0).clean([])
