"""Settings beside the records fill the report only if they have the digest in the study's id."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secfed.audit.privacy.study_tables import source_and_columns, withheld
from secfed.study.limits import study_id
from secfed.study.study import Study

STUDY = Study.parse(
    """
study = { name = "heart", rounds = 2, seed = 1 }
algorithm = { name = "fedavg" }
model = { name = "mlp" }
[data]
name = "csv"
path = "h.csv"
sites = ["a", "b", "c"]
site_column = "ward"
label_column = "num"
label_above = 0
feature_columns = ["age", "sex"]
"""
)
TABLES = STUDY.identity()


def run(folder: Path) -> Any:
    party = SimpleNamespace(source=SimpleNamespace(run_folder=folder))
    return SimpleNamespace(study=study_id(STUDY), parties=[party])


@pytest.mark.parametrize(
    ("name", "content"), [("study.json", TABLES), ("settings.json", {"study": "x", "tables": TABLES})]
)
def test_settings_of_the_right_digest_name_the_columns(
    tmp_path: Path, name: str, content: dict[str, Any]
) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    assert source_and_columns(run(tmp_path)) == ("csv", ("age", "sex", "num"))


@pytest.mark.parametrize("damage", ["other", "not json", "[]", '{"tables": 1}', '{"data": 1}'])
def test_anything_else_names_nothing(tmp_path: Path, damage: str) -> None:
    other = json.dumps(TABLES).replace('"sex"', '"postcode"')
    (tmp_path / "study.json").write_text(other if damage == "other" else damage)
    assert source_and_columns(run(tmp_path)) == (None, ())
    assert source_and_columns(run(tmp_path / "absent")) == (None, ())


def test_what_statistics_withhold_is_named(tmp_path: Path) -> None:
    text = """
study = { name = "tables", rounds = 1 }
algorithm = { name = "statistics", analyses = { a = { kind = "counts", columns = ["sex"] } }, min_cell = 7 }
model = { name = "none" }
data = { name = "diabetes-table" }
"""
    study = Study.parse(text)
    (tmp_path / "study.json").write_text(json.dumps(study.identity()))
    found = run(tmp_path)
    found.study = study_id(study)
    assert "fewer than min_cell = 7 records" in withheld(found)
    assert "min_hospitals = 2 hospitals" in withheld(found)
    (tmp_path / "study.json").write_text(json.dumps(TABLES))
    assert withheld(run(tmp_path)) == ""
