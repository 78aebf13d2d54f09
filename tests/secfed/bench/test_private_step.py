"""The benchmark of private steps: what it reports, never how long anything takes."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from secfed.bench import private_step, tables
from secfed.bench.private_models import CASES
from secfed.cli.bench import bench_app
from secfed.errors import ConfigError


def test_the_json_has_every_ratio_and_the_table_a_row_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: CASES[name] for name in ("linear", "cnn", "embedding")}
    monkeypatch.setattr(private_step.measure, "__kwdefaults__", {**DEFAULTS, "models": tuple(few)})
    ran = CliRunner().invoke(bench_app, ["private-step", "--quick", "--steps", "1", "--json"])
    assert ran.exit_code == 0, ran.output
    result = json.loads(ran.stdout)
    assert result["normals_per_s"] > 0
    assert list(result["models"]) == list(few)
    for found in result["models"].values():
        assert set(found["ratio_to_plain"]) == {"all", "without_noise"}
        assert set(found["opacus"]) == {"hooks", "ghost"}
        ratios = [*found["ratio_to_plain"].values(), *found["opacus"].values(), found["hooks_to_plain"]]
        assert all(ratio > 0 for ratio in ratios)
    shown = tables.private_step(result)
    assert [row[0] for row in shown.rows] == [*few, "normals"]
    assert all(len(row) == len(shown.headers) for row in shown.rows)


DEFAULTS = dict(private_step.measure.__kwdefaults__ or {})


def test_without_opacus_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(ConfigError, match="compares with Opacus, which cannot be imported") as caught:
        private_step.measure(models=["mlp"], quick=True)
    assert caught.value.remedy


def test_a_model_that_opacus_cannot_do_has_no_ratio_of_it() -> None:
    result = private_step.measure(models=["mlp"], steps=1, quick=True)
    result["models"]["mlp"]["opacus"]["ghost"] = None
    row = tables.private_step(result).rows[0]
    assert row[6] == ""
    assert row[7] != ""
