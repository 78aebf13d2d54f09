from __future__ import annotations

import math
from pathlib import Path

import kept_figure as made
import pytest
from matplotlib.figure import Figure

from secfed.sweep.file import SweepFile

EXAMPLE = Path(__file__).parents[2] / "examples" / "vlp-flickr-towers.toml"


def test_the_dots_of_a_seed_are_joined_and_a_bar_is_at_each_mean(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(made.style, "save_svg", lambda figure, _path: drawn.append(figure))
    rows = [
        {
            "panel": "topics",
            "variant": variant,
            "seed": str(seed),
            "recall_at_1": f"{value}",
            "recall_at_5": "",
        }
        for variant, values in {"fedrgb": (0.25, 0.75), "fedavg": (0.5,)}.items()
        for seed, value in enumerate(values)
    ]
    made.draw(SweepFile.load(EXAMPLE), rows, ["recall_at_1", "recall_at_5"], tmp_path / "figure.svg")
    first, second = drawn[0].axes  # nothing is kept of the other panel
    assert [label.get_text() for label in first.get_yticklabels()] == ["FedAvg", "FedRGB"]
    seeds, means = first.lines[:2], first.lines[2:]
    assert [list(line.get_xdata()) for line in seeds] == [
        [50.0, 25.0],
        [pytest.approx(math.nan, nan_ok=True), 75.0],
    ]
    assert [list(line.get_xdata()) for line in means] == [[50.0, 50.0]] * 3
    assert [line.get_linestyle() for line in means] == ["-", ":", "-"]  # the second goes through the panel
    assert all(math.isnan(x) for line in second.lines for x in line.get_xdata())
    assert first.get_xlabel() == "R@1 (%)"
