"""Figures of analyses: what is drawn where, escaped, and with nothing that is not a number."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from secfed.algorithms.statistics.results import Figure
from secfed.runs.analysis_files import shown
from secfed.runs.analysis_forest import forest
from secfed.runs.analysis_svg import axes
from secfed.runs.svg_parts import ratio_ticks

CURVE = [(6.0 * i, 0.9**i) for i in range(8)]


def texts(drawn: str) -> list[str]:
    """Of well-formed SVG in which every number is finite."""
    assert not re.search(r'="[^"]*(nan|inf)', drawn)
    return [one.text or "" for one in ElementTree.fromstring(drawn).iter("text")]


def test_survival_has_bands_and_numbers_at_risk() -> None:
    names = ("alone", "<both & more>")
    series = dict.fromkeys(names, CURVE)
    bands = {name: [(x, y - 0.1, y + 0.1) for x, y in CURVE] for name in names}
    below = {name: [(x, 400 * y) for x, y in CURVE] for name in names}
    drawn = axes(Figure("step", "Survival", "months", "survival", series, bands, below))
    assert drawn.count("<polygon") == drawn.count("<polyline") == 2
    found = texts(drawn)
    assert found.count("400") == 2
    assert {"at risk", "<both & more>", "months"} <= set(found)


def test_a_forest_tells_ratios_in_numbers_and_leaves_out_what_is_none() -> None:
    points = {"a": (1.2, 0.5, 3.0), "runs off": (1e-30, 0.0, math.inf), "none": (math.nan,) * 3}
    drawn = forest(Figure("forest", "y", "odds ratio", "", {name: [one] for name, one in points.items()}))
    found = texts(drawn)
    assert "1.2 (0.5 to 3)" in found
    assert {"none", "1"} <= set(found)
    assert drawn.count("<circle") == 2
    plain = forest(Figure("forest", "y", "coefficient", "", {"a": [(-1.2, -2.5, 0.3)]}))
    assert {"-2", "0", "-1.2 (-2.5 to 0.3)"} <= set(texts(plain))


def test_bars_of_categories_have_their_names() -> None:
    bars = Figure("bars", "sex", "sex", "records", {"sex": [(0, 10), (1, 20)]}, labels=("female", "male"))
    found = texts(axes(bars))
    assert {"female", "male", "20"} <= set(found)
    assert "0.5" not in found
    assert "<rect" not in axes(Figure("bars", "none", "", "", {}))


def test_chance_is_not_a_result() -> None:
    series = {"AUC 0.8": [(0.0, 0.0), (0.2, 0.8), (1.0, 1.0)], "chance": [(0.0, 0.0), (1.0, 1.0)]}
    assert axes(Figure("line", "ROC", "x", "y", series)).count("stroke-dasharray") == 1


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (0.4, 3.0, [0.5, 1, 2]),
        (0.9, 1.1, [0.9, 0.95, 1, 1.05, 1.1]),
        (1e-4, 1e4, [1e-4, 1e-2, 1, 100, 1e4]),
    ],
)
def test_ratios_have_round_numbers(low: float, high: float, told: list[float]) -> None:
    assert ratio_ticks(low, high) == pytest.approx(told)


def test_digits_of_a_small_p_are_not_shown() -> None:
    assert shown(3e-9, "p") == "<0.0001"
    assert shown(0.00123456, "p") == "0.001235"
    assert shown(3e-9, "se") == "3e-09"
