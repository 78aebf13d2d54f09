"""How a report words numbers and names."""

from __future__ import annotations

from secfed.audit.privacy import phrases


class TestWords:
    def test_epsilon_is_never_rounded_down_and_left_never_up(self) -> None:
        assert phrases.number_up(1.00001) == "1.001"
        assert phrases.number_up(1.0) == "1.000"
        assert phrases.number_up(1e-9) == "0.001"
        assert phrases.number_up(float("inf")) == "unbounded"
        assert phrases.number_down(0.9999) == "0.999"
        assert phrases.number_down(None) == phrases.NOTHING

    def test_delta_and_factor(self) -> None:
        assert phrases.delta(1e-5) == "1e-5"
        assert phrases.delta(0.01) == "0.01"
        assert phrases.factor(1.0) == "2.8"
        assert phrases.factor(8.0) == "2,981"
        assert phrases.factor(50.0) == "more than a million"

    def test_fields_are_grouped_sensibly(self) -> None:
        assert phrases.fields([f"update/{n}" for n in range(12)]) == "12 fields of “update”"
        assert phrases.fields(["update/w", "weight"]) == "update/w; weight"
        assert phrases.fields(["eval/loss"]) == "eval/loss"
        assert (
            phrases.fields([f"theta/{n}" for n in range(4)])
            == "4 fields of \N{LEFT DOUBLE QUOTATION MARK}theta\N{RIGHT DOUBLE QUOTATION MARK}"
        )
        assert phrases.fields([]) == "not recorded"
