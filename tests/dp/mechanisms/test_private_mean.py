"""Private means of bounded numbers (specs: dp.md section 6, invariant 10)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.dp.mechanisms.private_mean import PrivateMean
from secfed.dp.mechanisms.randomness import SecureRandom
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


@pytest.mark.parametrize(("bound", "sigma"), [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)])
def test_impossible_settings_and_no_values_are_refused(bound: float, sigma: float) -> None:
    with pytest.raises(ConfigError, match="positive bound and noise"):
        PrivateMean(bound, sigma)
    with pytest.raises(ConfigError, match="at least one value"):
        PrivateMean(1.0, 1.0).clean([])


@pytest.mark.parametrize("sigma", [5.0, 118.0, 120.0, 400.0, 4e5])
def test_noise_of_any_size_is_drawn_with_the_deviation_that_was_paid_for(sigma: float) -> None:
    """V = 6, K = 50. Above 119 the noise's grid is coarser than usual; up to 489178 it is fine enough."""
    mean, random = PrivateMean(6.0, sigma), SecureRandom.for_simulation(2)
    noise = [mean.release([1.0] * 50, random) - 1.0 for _ in range(300)]
    wanted = sigma * 6.0 / 50
    assert deviation_p(noise, wanted) > FALSE_ALARM  # type: ignore[arg-type]
    assert deviation_p(noise, wanted / 1.5) < 1e-3  # type: ignore[arg-type]


def test_the_noise_of_usual_settings_has_not_changed_its_grid() -> None:
    assert {PrivateMean(6.0, sigma)._extra_bits for sigma in (0.1, 5.0, 118.0)} == {12}
    assert PrivateMean(6.0, 4e5)._extra_bits == 0


@pytest.mark.parametrize("power", range(19))
def test_the_grid_fits_at_every_power_of_two(power: int) -> None:
    for sigma in (2.0**power, 2.0 ** (power + 0.9), math.nextafter(2.0 ** (power + 0.9), math.inf)):
        PrivateMean(1.0, min(sigma, 4.89e5)).release([0.5], SecureRandom.for_simulation(3))


def test_noise_that_cannot_be_drawn_is_refused_before_anything_is_paid() -> None:
    with pytest.raises(ConfigError, match=r"cannot be drawn.*Remedy.*fewer releases"):
        PrivateMean(6.0, 4.9e5)
