"""How a report words numbers and names."""

from __future__ import annotations

import numpy as np
import pytest

from secfed.dp.report import words


class TestWords:
    def test_epsilon_is_never_rounded_down_and_left_never_up(self) -> None:
        assert words.number_up(1.00001) == "1.001"
        assert words.number_up(1.0) == "1.000"
        assert words.number_up(1e-9) == "0.001"
        assert words.number_up(float("inf")) == "unbounded"
        assert words.number_down(0.9999) == "0.999"
        assert words.number_down(None) == words.NOTHING

    @pytest.mark.parametrize(
        ("epsilon", "delta"), [(0.0, 0.0), (1.0, 1e-5), (3.0, 1e-5), (8.0, 0.01), (800.0, 1e-5)]
    )
    def test_the_bound_on_membership_tests_is_the_trade_off_of_dp(self, epsilon: float, delta: float) -> None:
        """Against the definition: the largest power that (epsilon, delta) permits in both directions."""
        bound = words.detected(epsilon, delta)
        grow = np.exp(min(epsilon, 700.0))
        power = np.linspace(0, 1, 100_001)
        fine = (power <= grow * 0.01 + delta) & (grow * (1 - power) + delta >= 1 - 0.01)
        assert bound == pytest.approx(power[fine].max(), abs=2e-5)

    def test_it_grows_with_epsilon_from_guessing_to_certainty(self) -> None:
        assert words.detected(0.0, 0.0) == pytest.approx(0.01)
        assert words.percent_up(words.detected(1.0, 1e-5)) == "2.8 %"
        assert words.percent_up(words.detected(8.0, 1e-5)) == "100.0 %"

    def test_delta_and_factor(self) -> None:
        assert words.delta(1e-5) == "1e-5"
        assert words.delta(0.01) == "0.01"
        assert words.factor(1.0) == "2.8"
        assert words.factor(8.0) == "2,981"
        assert words.factor(50.0) == "more than a million"

    def test_fields_are_grouped_sensibly(self) -> None:
        assert words.fields([f"update/{n}" for n in range(12)]) == "12 fields of the model update"
        assert words.fields(["update/w", "weight"]) == "1 field of the model update; weight"
        assert words.fields(["eval/loss"]) == "eval/loss"
        assert (
            words.fields([f"theta/{n}" for n in range(4)])
            == "4 fields of \N{LEFT DOUBLE QUOTATION MARK}theta\N{RIGHT DOUBLE QUOTATION MARK}"
        )
        assert words.fields([]) == "not recorded"
