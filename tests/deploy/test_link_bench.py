"""The link's benchmark runs and measures what it says, at a size where nothing is slow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from secfed.bench import link
from secfed.cli.bench import bench_app


@pytest.fixture(scope="module")
def measured() -> tuple[dict[str, Any], list[str]]:
    """Every quantity at a tiny size, and what was said on the way."""
    said: list[str] = []
    result = link.measure(
        parameters=1000,
        sites=2,
        many=3,
        repeats=1,
        messages=2,
        round_parameters=500,
        progress=said.append,
    )
    return result, said


def test_the_benchmark_measures_every_quantity(measured):
    result, said = measured
    stages = [text.rpartition(": ")[2] for text in said[6:]]
    assert stages == ["advertise", "share", "confirm", "mask", "consistency", "unmask"]
    masked = result["masked_round"]
    assert (masked["parameters"], masked["sites"], masked["survivors"]) == (500, 3, 3)
    assert masked["seconds"] > 0
    assert (result["parameters"], result["sites"], result["many"]) == (1000, 2, 3)
    assert all(value > 0 for value in result["seconds"].values())
    assert set(result["over_limit"]) == {"empty_round_trip", "both_ways"}
    ratio = result["seconds"]["both_ways"] / result["seconds"]["limit_both_ways"]
    assert result["over_limit"]["both_ways"] == ratio
    assert result["latency_ms"] == 1000 * result["seconds"]["empty_round_trip"]
    assert result["aggregator_threads_with_many_sites"] < 4 + 4  # waiting sites cost no thread


def test_the_command_prints_the_same_quantities(measured, monkeypatch):
    asked: list[dict[str, Any]] = []

    def measure(**options: Any) -> dict[str, Any]:
        asked.append(options)
        return measured[0]

    monkeypatch.setattr(link, "measure", measure)
    small = ["--params", "1000", "--sites", "2", "--many", "3", "--repeats", "1", "--messages", "2"]
    shown = CliRunner().invoke(bench_app, ["link", *small, "--round-params", "500", "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout) == measured[0]
    table = CliRunner(env={"COLUMNS": "120"}).invoke(bench_app, ["link", *small]).stdout
    assert "1,000 parameters each way, 2 sites" in table
    assert "one upload at a time" in table
    assert "a step with 3 sites" in table
    expected = {"parameters": 1000, "sites": 2, "many": 3, "repeats": 1, "messages": 2}
    assert {name: asked[0][name] for name in expected} == expected
    assert asked[0]["round_parameters"] == 500
