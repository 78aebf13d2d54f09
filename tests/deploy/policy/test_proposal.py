"""A policy from a study: it permits this study, and no other."""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from secfed.cli.app import app
from secfed.deploy.policy.policy import Policy
from secfed.deploy.policy.proposal import _ledger_name, proposal
from secfed.errors import ConfigError
from secfed.study.study import Study
from tests.conftest import ROOT

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
COLUMNS = """
[study]
name = "wards"
rounds = 1
[algorithm]
name = "fedavg"
weighting = "equal"
[model]
name = "mlp"
[protection]
name = "masked"
[privacy]
unit = "record"
epsilon = 3.0
delta = 1e-5
adjacency = "replace-record"
[data]
name = "columns"
path = "wards.csv"
site_column = "ward"
sites = ["a", "b", "c"]
[data.columns.age]
low = 18
high = 100
"""


def _studies() -> list[Path]:
    found = sorted((ROOT / "examples").rglob("*.toml"))
    return [path for path in found if "[study]" in path.read_text() and "[sweep]" not in path.read_text()]


@pytest.mark.parametrize("path", _studies(), ids=lambda path: path.stem)
def test_it_permits_the_study_that_it_was_made_from(path: Path, tmp_path: Path) -> None:
    try:
        study = Study.load(path)
    except ConfigError as error:
        pytest.skip(error.message)
    file = tmp_path / "policy.toml"
    file.write_text(proposal(study))
    policy = Policy.load(file)
    assert policy.check(study, NOW, sites=10) == []
    assert policy.approve == "manual"


def test_it_permits_nothing_else(tmp_path: Path) -> None:
    study = Study.load(ROOT / "examples" / "three-hospitals" / "study.toml")
    file = tmp_path / "policy.toml"
    done = CliRunner().invoke(
        app, ["policy", "from", str(ROOT / "examples" / "three-hospitals" / "study.toml"), "--out", str(file)]
    )
    assert done.exit_code == 0, done.output
    policy = Policy.load(file)
    changes = {
        "study.name": "another",
        "study.seed": 7,
        "study.rounds": study.rounds + 1,
        "algorithm.local_epochs": 3,
        "algorithm.learning_rate": 0.6,
        "model.hidden": [17],
        "data.partition": "dirichlet",
        "protection.name": "plain",
        "protection.reveal": "sites",
        "privacy.epsilon": 4.1,
        "privacy.delta": 2e-4,
        "privacy.weights": "unprotected",
        "privacy.unit": "site",
    }
    for key, value in changes.items():
        assert policy.check(study.replace(key, value), NOW, sites=3), key


def test_a_person_reads_what_it_means_that_state_is_kept() -> None:
    study = Study.load(ROOT / "examples" / "vlp-synthetic.toml")
    (line,) = [line for line in proposal(study).splitlines() if line.startswith("kept_state")]
    assert line.partition("  # ")[::2] == (
        'kept_state = "permit"',
        "an aggregator that lies could read what the algorithm keeps of this site",
    )
    text = proposal(study.replace("algorithm.rho", 0.0))
    assert "kept_state" not in text


def test_its_limits_are_those_of_the_study() -> None:
    study = Study.load(ROOT / "examples" / "three-hospitals" / "study.toml")
    tables = tomllib.loads(proposal(study))
    assert study.privacy is not None
    assert (tables["privacy"]["max_epsilon"], tables["privacy"]["max_delta"]) == (4.0, 1e-4)
    (data,) = tables["data"]
    assert data["budget"] == [{"epsilon": 4.0, "delta": 1e-4, "protects": "record"}]  # for ever


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ('name = "csv"\npath = "data/Heart (2).csv"', "heart-2"),
        ('name = "columns"\npath = "data/Heart (2).csv"', "heart-2"),  # one file, one budget
        ('name = "csv"\npath = "_.csv"', "records"),
        ('name = "breast-cancer"', "breast-cancer"),
    ],
)
def test_a_data_set_is_named_after_its_file(settings: str, name: str) -> None:
    study = MagicMock()
    study.data.name, study.data.path = (
        tomllib.loads(settings)["name"],
        tomllib.loads(settings).get("path"),
    )
    assert _ledger_name(study) == name


def test_another_column_or_a_weaker_relation_under_the_same_name_is_not_permitted(tmp_path: Path) -> None:
    study = Study.parse(COLUMNS)
    file = tmp_path / "policy.toml"
    file.write_text(proposal(study))
    policy = Policy.load(file)
    assert policy.check(study, NOW, sites=3) == []
    wider = Study.parse(f'{COLUMNS}[data.columns.x]\nsource = "hiv_status"\ncategories = ["neg", "pos"]\n')
    digest, columns = map(str, policy.check(wider, NOW, sites=3))
    assert digest.startswith("study.name: the study has 'wards', digest ")
    assert columns == "data.columns: the study has ['age', 'hiv_status']; permitted here: one of 'age'"
    weaker = study.replace("privacy.adjacency", "add-or-remove-record")
    assert policy.check(weaker, NOW, sites=3)
    assert policy.check(study.replace("protection.keystream", "aes-256-ctr"), NOW, sites=3)
    assert policy.check(study.replace("data.sites", ["a", "b", "d"]), NOW, sites=3)


def test_a_rule_for_columns_is_about_those_of_the_file(tmp_path: Path) -> None:
    """Whatever name, bounds or categories a study gives them: no list could hold every bound."""
    file = tmp_path / "policy.toml"
    file.write_text(re.sub("digests = .*", 'names = ["wards"]', proposal(Study.parse(COLUMNS))))
    policy = Policy.load(file)
    bounds = COLUMNS.replace("low = 18", "low = 20")
    renamed = bounds.replace("columns.age]", 'columns.years]\nsource = "age"')
    taken = bounds.replace("columns.age]", 'columns.age]\nsource = "hiv_status"')
    for text, expected in ((bounds, []), (renamed, []), (taken, ["data.columns"])):
        assert [item.key for item in policy.check(Study.parse(text), NOW, sites=3)] == expected


def test_signs_that_are_not_printable_are_escaped() -> None:
    study = Study.parse(COLUMNS.replace('path = "wards.csv"', 'path = "wa\\u009b2J\\u202erds.csv"'))
    assert "\x9b" in study.data.path  # type: ignore[attr-defined]
    text = proposal(study)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert tomllib.loads(text)["data"][0]["study_path"] == "wa\x9b2J\u202erds.csv"
