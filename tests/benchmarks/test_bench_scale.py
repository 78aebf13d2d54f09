"""The benchmark of many hospitals, in little: it measures and draws."""

from __future__ import annotations

import json
from pathlib import Path

import bench_scale as made
import pytest


def row(asked: int, parameters: int, **more: object) -> dict[str, object]:
    """As :func:`bench_scale.measure` gives it."""
    cpu = asked * 1e-2 + asked**2 * (1e-3 + 1e-9 * parameters)
    sizes = {"up_bytes": 1e6, "down_bytes": 1e6, "driver_mib": 500.0, "worker_mib": 300.0}
    times = {"round_s": cpu, "train_s": cpu / 10, "driver_cpu_s": cpu}
    return {
        "sites": asked,
        "asked": asked,
        "engine": "inline",
        "parameters": parameters,
        **times,
        **sizes,
        **more,
    }


def test_page_and_figure_are_drawn_from_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [row(asked, 103_210, engine=engine) for asked in (10, 100) for engine in ("inline", "processes")]
    (tmp_path / "scale.json").write_text(json.dumps({"machine": "Here.", "rows": rows}))
    (tmp_path / "scale.md").write_text("above\n<!-- begin scale -->\nold\n<!-- end scale -->\nbelow\n")
    for name, file in (("MEASURED", "scale.json"), ("PAGE", "scale.md"), ("FIGURE", "scale.svg")):
        monkeypatch.setattr(made, name, tmp_path / file)
    made.draw()
    page = (tmp_path / "scale.md").read_text()
    assert page.startswith("above")
    assert page.endswith("below\n")
    assert "old" not in page
    assert "| 100 | 100 | 103,210 | processes |" in page
    assert (tmp_path / "scale.svg").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_reduced_form_runs(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "MOST", 5)
    found = made.measure(60, engine, 2, [20])
    assert (found["asked"], found["sites"], found["parameters"]) == (5, 60, 33 * 20 + 21 * 10)
    assert found["driver_cpu_s"] > 0
    assert found["up_bytes"] > 4 * found["parameters"]
