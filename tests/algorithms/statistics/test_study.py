"""A study of statistics over every protection, on the command line, and what hospitals permit."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from secfed.algorithms.statistics.results import Reported, Result, ResultTable
from secfed.deploy.policy.policy import Policy
from secfed.errors import ConfigError, WrongState
from secfed.runs.analysis_files import csv_of, page
from secfed.simulation.simulate import simulate
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Exchange
from tests.secfed.run_case import secfed

STUDY = """
[study]
name = "tables"
rounds = 1
[algorithm]
name = "statistics"
max_records = 1000
[algorithm.analyses.ages]
kind = "describe"
columns = ["age", "bp"]
by = "sex"
[algorithm.analyses.pressure]
kind = "t-test"
column = "bp"
by = "sex"
[model]
name = "none"
[data]
name = "diabetes-table"
[protection]
name = "plain"
"""
GLM = {"kind": "glm", "formula": "progression ~ age + bmi", "max_steps": 4}
POLICY = """
[studies]
names = ["tables"]
[privacy]
require = false
[algorithms.statistics]
analyses = "any"
max_records = "any"
[models.none]
[[data]]
name = "diabetes"
source = "diabetes-table"
options = "any"
"""


def study(**changes: Any) -> Study:
    found = Study.parse(STUDY)
    for key, value in changes.items():
        found = found.replace(key.replace("__", "."), value)
    return found


def test_every_protection_gives_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("formulaic", reason="formulas need the extra analyse")
    pytest.importorskip("tenseal", reason="encrypted protection needs the extra he")
    whole = study(algorithm__analyses__glm=GLM)
    kinds = {
        "plain": whole,
        "masked": whole.replace("protection.name", "masked"),
        "closed": whole.replace("protection.name", "masked").replace("protection.reveal", "sites"),
        "encrypted": whole.replace("protection.name", "encrypted"),
    }
    models = set()
    for name, one in kinds.items():
        simulate(one, out=tmp_path / name)
        models.add((tmp_path / name / "model.safetensors").read_bytes())
    assert len(models) == 1


def test_a_hospital_that_drops_out_is_in_no_number(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(STUDY.replace("plain", "masked"))
    found = secfed("analyse", tmp_path / "s.toml", "--json", "--drop", "hospital-2@mask:1")
    ages = json.loads(found.stdout)["ages"]
    assert ages["hospitals"] == ["hospital-1", "hospital-3", "hospital-4"]
    assert ages["n"][-1] < 442


def test_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    out = tmp_path / "out"
    result = secfed("analyse", tmp_path / "s.toml", "--out", out)
    assert result.exit_code == 0
    assert "4 of 4 hospitals" in result.stdout
    assert "Welch" in result.stdout
    content = json.loads((out / "analysis.json").read_text())
    assert content["ages"]["n"] == [235, 207, 442]
    assert content["pressure"]["df"] == pytest.approx(439.91466, abs=1e-4)
    page = (out / "analysis.html").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert (out / "ages-1.csv").read_text().startswith(",1,2,all\nn,235,207,442\n")
    again = secfed("analyse", tmp_path / "s.toml", "--json", "--model", out / "model.safetensors")
    assert json.loads(again.stdout) == content
    assert secfed("analyse", tmp_path / "s.toml", "--out", out).exit_code == 2  # there is a run already
    assert secfed("analyse", tmp_path / "s.toml", "--out", out, "--overwrite").exit_code == 0


def test_a_model_is_read_by_its_study_alone(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    out = tmp_path / "out"
    assert secfed("analyse", tmp_path / "s.toml", "--out", out).exit_code == 0
    for number, (old, new) in enumerate(
        [
            ('by = "sex"\n[algorithm.analyses.pressure]', "bins = 300\n[algorithm.analyses.pressure]"),
            ("[algorithm.analyses.pressure]", "[algorithm.analyses.other]"),
            ('["age", "bp"]', '["age", "bmi"]'),
            ("max_records = 1000", "max_records = 1000\nmin_cell = 6"),
            ('name = "diabetes-table"', 'name = "diabetes-table"\nsites = 3'),
        ]
    ):
        other = tmp_path / f"{number}.toml"
        assert old in STUDY
        other.write_text(STUDY.replace(old, new))
        result = secfed("analyse", other, "--model", out / "model.safetensors")
        assert (result.exit_code, "is not of this study" in result.stderr) == (3, True), new
    (tmp_path / "model.safetensors").write_bytes(b"none")
    result = secfed("analyse", tmp_path / "s.toml", "--model", tmp_path / "model.safetensors")
    assert "is not of this study" in result.stderr


def test_groups_are_called_groups(tmp_path: Path) -> None:
    counts = '[algorithm.analyses.ages]\nkind = "counts"\ncolumns = ["sex"]\n[model]'
    analyses = STUDY[STUDY.index("[algorithm.analyses.ages]") : STUDY.index("[model]") + 7]
    privacy = '[privacy]\nunit = "group"\ngroup_size = 8\nnoise = "sum"\nepsilon = 8.0\ndelta = 1e-4\n'
    (tmp_path / "s.toml").write_text(STUDY.replace(analyses, counts).replace("plain", "masked") + privacy)
    shown = secfed("analyse", tmp_path / "s.toml").stdout
    assert "Groups of records by sex" in shown
    assert "numbers of records are of groups" in shown
    (tmp_path / "r.toml").write_text(
        (tmp_path / "s.toml").read_text().replace('"group"\ngroup_size = 8', '"record"')
    )
    assert "roups" not in secfed("analyse", tmp_path / "r.toml").stdout


def test_a_spreadsheet_takes_no_category_for_a_formula() -> None:
    names = ("=HYPERLINK(1)", "-2+cmd|x", "@a", "f\x1b[31m", "-1.5 (0.2) [-1, 2]", "usual")
    rows: tuple[tuple[str | float | None, ...], ...] = tuple((name, -1.5, None) for name in names)
    lines = csv_of(ResultTable("t", ("=1", "n", "p"), rows)).splitlines()
    assert lines[0] == "'=1,n,p"
    assert lines[1:4] == ["'=HYPERLINK(1),-1.5,", "'-2+cmd|x,-1.5,", "'@a,-1.5,"]
    assert lines[4] == "f\N{REPLACEMENT CHARACTER}[31m,-1.5,"
    assert lines[5:] == ['"-1.5 (0.2) [-1, 2]",-1.5,', "usual,-1.5,"]
    reported = Reported(
        "one", "counts", ("a",), False, None, Result({}, (ResultTable("t", names[:3], rows[3:4]),))
    )
    assert "\x1b" not in page("s", [reported], 1)


def test_only_a_study_of_statistics_is_analysed(repository: Path) -> None:
    result = secfed("analyse", repository / "examples" / "breast-cancer.toml")
    assert result.exit_code == 2
    assert "secfed simulate" in result.stderr


@pytest.mark.shared_data
def test_the_example_of_four_hospitals(repository: Path, shared_data: Path, monkeypatch) -> None:
    pytest.importorskip("formulaic", reason="formulas need the extra analyse")
    monkeypatch.setenv("SECFED_DATA", str(shared_data))
    found = json.loads(secfed("analyse", repository / "examples" / "analyse-heart.toml", "--json").stdout)
    assert found["glm"]["terms"][:2] == ["Intercept", "age"]
    assert found["glm"]["coefficients"][1] == pytest.approx(0.057882, abs=1e-6)
    assert len(found["glm"]["standard_errors"]) == 6
    assert found["auc"]["auc"] == pytest.approx(0.8445, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study__rounds": 2}, "one round of sums"),
        ({"data": {"name": "breast-cancer"}}, "a table with declared columns"),
        ({"model": {"name": "mlp"}}, "trains no network"),
    ],
)
def test_studies_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(study(**changes))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "names no analysis"),
        ({"Ages": {"kind": "counts", "columns": ["sex"]}}, "cannot be the name"),
        ({"ages": 3}, "is a value, not a table"),
        ({"ages": {"kind": "counts"}}, r"ages\.columns: is missing"),
        ({"ages": {"kind": "counts", "columns": ["sex"], "bin": 3}}, r"ages\.bin: unknown key"),
    ],
)
def test_analyses_that_are_refused(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(algorithm__analyses=tables)


def test_two_divisions_of_one_column_are_refused() -> None:
    one = {"kind": "histogram", "column": "age", "bins": 10}
    with pytest.raises(ConfigError, match="divides 'age' into other cells"):
        build(study(algorithm__analyses__a=one, algorithm__analyses__b={**one, "bins": 11}))


def test_another_exchange_is_refused() -> None:
    algorithm = build(study())
    known = algorithm.exchanges(1)[0]
    assert algorithm.exchanges(2) == ()
    with pytest.raises(WrongState):
        algorithm.check_broadcast(1, Exchange("step-02", "all", known.layout), {})
    with pytest.raises(WrongState):
        algorithm.exchanges(3)


def test_a_server_continues_from_a_checkpoint() -> None:
    algorithm = build(study())
    server = algorithm.server()
    state = server.save()
    other = algorithm.server()
    other.load(state)
    assert {name: value.tolist() for name, value in other.model().items()} == {
        name: value.tolist() for name, value in server.model().items()
    }


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, None),
        ({"algorithm__min_cell": 3}, "algorithm.min_cell"),
        ({"algorithm__min_hospitals": 1}, "algorithm.min_hospitals"),
        ({"algorithm__max_parameter_share": 1.0}, "algorithm.max_parameter_share"),
    ],
)
def test_a_hospital_refuses_a_laxer_study(changes: dict[str, Any], key: str | None) -> None:
    policy = Policy._from_tables(tomllib.loads(POLICY))
    found = policy.check(study(protection__name="masked", **changes), datetime.now(UTC))
    assert [violation.key for violation in found] == ([] if key is None else [key])


def test_a_hospital_may_ask_for_more(tmp_path: Path) -> None:
    stricter = POLICY.replace('max_records = "any"', 'max_records = "any"\nmin_cell = { min = 10 }')
    policy = Policy._from_tables(tomllib.loads(stricter))
    usual = study(protection__name="masked")
    assert [one.key for one in policy.check(usual, datetime.now(UTC))] == ["algorithm.min_cell"]
    assert not policy.check(usual.replace("algorithm.min_cell", 12), datetime.now(UTC))
