from __future__ import annotations

from pathlib import Path

import kept_figure as made
import pytest
from matplotlib.figure import Figure

from secfed.sweep.file import SweepFile

EXAMPLE = Path(__file__).parents[2] / "examples" / "vlp-flickr-towers.toml"


def test_a_dot_per_seed_and_a_line_at_their_mean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    first, second, below, _ = drawn[0].axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["FedAvg", "FedRGB"]
    dots = [list(line.get_xdata()) for line in first.lines]
    assert dots == [[50.0], [50.0, 50.0], [25.0, 75.0], [50.0, 50.0]]
    assert not second.lines
    assert below.get_xlabel() == "recall at 1 (%)"
    assert below.get_xlim() == first.get_xlim()
