"""The link's benchmark runs and measures what it says, at a size where nothing is slow."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from secfed.bench.link import measure
from secfed.cli.bench import bench_app


def test_the_benchmark_measures_every_quantity_at_a_tiny_size():
    told: list[str] = []
    result = measure(
        parameters=1000,
        sites=2,
        many=4,
        repeats=1,
        messages=3,
        round_parameters=500,
        progress=told.append,
    )
    stages = [text.rpartition(": ")[2] for text in told[6:]]
    assert stages == ["advertise", "share", "confirm", "mask", "consistency", "unmask"]
    masked = result["masked_round"]
    assert (masked["parameters"], masked["sites"], masked["survivors"]) == (500, 4, 4)
    assert masked["seconds"] > 0
    assert (result["parameters"], result["sites"], result["many"]) == (1000, 2, 4)
    assert all(value > 0 for value in result["seconds"].values())
    assert set(result["over_limit"]) == {"empty_round_trip", "both_ways"}
    ratio = result["seconds"]["both_ways"] / result["seconds"]["limit_both_ways"]
    assert result["over_limit"]["both_ways"] == ratio
    assert result["latency_ms"] == 1000 * result["seconds"]["empty_round_trip"]
    assert result["aggregator_threads_with_many_sites"] < 4 + 4  # waiting sites cost no thread


def test_the_command_prints_the_same_quantities():
    small = ["--params", "1000", "--sites", "2", "--many", "3", "--repeats", "1", "--messages", "2"]
    small += ["--round-params", "0"]
    shown = CliRunner().invoke(bench_app, ["link", *small, "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert (result["parameters"], result["sites"], result["many"]) == (1000, 2, 3)
    table = CliRunner(env={"COLUMNS": "120"}).invoke(bench_app, ["link", *small]).stdout
    assert "1,000 parameters each way, 2 sites" in table
    assert "one upload at a time" in table
    assert "a step with 3 sites" in table
