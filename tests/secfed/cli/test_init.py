"""``secfed init``: what it writes runs, and is permitted by the policy that it writes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from secfed.cli.app import app
from secfed.deploy.policy.policy import Policy
from secfed.study.build import build_data
from secfed.study.study import Study


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    lines = ["hospital,age,pulse,note,sick"]
    for number in range(90):
        age, pulse = rng.integers(30, 80), "" if number == 7 else f"{rng.normal(70, 9):.1f}"
        lines.append(f"h{number % 3},{age},{pulse},text {number},{'yes' if age > 55 else 'no'}")
    path = tmp_path / "patients.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def init(folder: Path, *arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["init", str(folder), *map(str, arguments)])


@pytest.mark.parametrize(
    "more", [[], ["--site-column", "hospital", "--epsilon", "3", "--purpose", "To try it."]]
)
def test_what_it_writes_loads_and_is_permitted(table: Path, tmp_path: Path, more: list[str]) -> None:
    folder = tmp_path / "Heart 1"
    done = init(folder, "--table", table, "--label", "sick", *more)
    assert done.exit_code == 0, done.output
    study = Study.load(folder / "study.toml")
    sites = build_data(study).sites
    assert list(sites) == (["h0", "h1", "h2"] if more else ["hospital-1", "hospital-2", "hospital-3"])
    assert study.data.feature_columns == ("age", "pulse")  # type: ignore[attr-defined]
    assert (study.name, study.study.purpose) == ("heart-1", "To try it." if more else "")
    assert Policy.load(folder / "policy.toml").check(study, datetime.now(UTC), sites=3) == []
    assert ("must not come from these records" in " ".join(done.stdout.split())) == bool(more)
    assert all(site in done.stdout for site in sites)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--label", "ill"], 2, "no such column"),
        (["--label", "age"], 2, "values, and 2 to 20 are classes"),
        ([], 2, "--label: is missing"),
    ],
)
def test_what_cannot_be_a_study_is_said(
    table: Path, tmp_path: Path, arguments: list[str], code: int, told: str
) -> None:
    done = init(tmp_path / "new", "--table", table, *arguments)
    assert (done.exit_code, told in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace("h1,", "h1,,", 1), "patients.csv, line 3: 6 cells"),
        (lambda text: text + 'h1,60,70.0,"a note,no\n', "patients.csv, line 92"),
        (lambda _: "", "patients.csv is empty"),
        (lambda text: text.splitlines()[0] + "\n", "has no records"),
        (lambda text: text.replace("pulse", "age", 1), "has the column 'age' twice"),
    ],
)
def test_a_damaged_table_is_named_with_its_line(
    table: Path, tmp_path: Path, change: Callable[[str], str], told: str
) -> None:
    table.write_text(change(table.read_text()))
    done = init(tmp_path / "new", "--table", table, "--label", "sick")
    assert done.exit_code != 0
    assert told in " ".join(done.stderr.split()), done.stderr
    table.write_text("hospital,sick\nhôpital,1\n", encoding="latin-1")
    assert "not a UTF-8 CSV table" in init(tmp_path / "new", "--table", table, "--label", "sick").stderr
    assert not (tmp_path / "new").exists()


def test_a_few_values_that_are_no_numbers_and_names_that_cannot_enrol_are_said(
    table: Path, tmp_path: Path
) -> None:
    text = table.read_text().replace("h2,", "St. Mary's,")
    lines = text.splitlines()
    lines[5] = ",".join([*lines[5].split(",")[:2], "seventy", *lines[5].split(",")[3:]])
    table.write_text("\n".join(lines) + "\n")
    done = init(tmp_path / "heart", "--table", table, "--label", "sick", "--site-column", "hospital")
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "pulse: is left out for 1 value that cannot be read as a number, the first in line 6." in said
    assert 'site name "St. Mary\'s" is not permitted where hospitals enrol: use 1 to 63' in said
    assert said.count("where hospitals enrol") == 1
    assert "note: is left out" not in said  # free text


def test_a_hospital_whose_records_come_last_is_not_left_out(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secfed.cli.init._MOST_ROWS", 90)  # as many as there are
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0], *sorted(lines[1:])]) + "\n")
    arguments = ("--table", table, "--label", "sick", "--site-column", "hospital", "--epsilon", "3")
    assert init(tmp_path / "all", *arguments).exit_code == 0
    study = Study.load(tmp_path / "all" / "study.toml")
    assert list(build_data(study).sites) == ["h0", "h1", "h2"]
    monkeypatch.setattr("secfed.cli.init._MOST_ROWS", 89)
    refused = init(tmp_path / "more", *arguments)
    assert refused.exit_code != 0
    assert "more than 89 records" in refused.stderr
    assert not (tmp_path / "more").exists()


def test_every_record_names_a_hospital(table: Path, tmp_path: Path) -> None:
    table.write_text(table.read_text().replace("h1,", ",", 1))
    done = init(tmp_path / "new", "--table", table, "--label", "sick", "--site-column", "hospital")
    assert done.exit_code != 0
    assert "some records name no hospital" in done.stderr


def test_features_are_named_and_what_may_identify_a_record_is_said(table: Path, tmp_path: Path) -> None:
    lines = table.read_text().splitlines()
    ids = ["patient_id", *(str(70_000 + 7 * number) for number in range(len(lines) - 1))]
    table.write_text("\n".join(f"{one},{line}" for one, line in zip(ids, lines, strict=True)) + "\n")
    done = init(tmp_path / "heart", "--table", table, "--label", "sick", "--site-column", "hospital")
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "Features: patient_id, age, pulse." in said
    assert "Left out: note. Such columns need data.categorical, or --site-column." in said
    assert "patient_id: is another whole number in every record." in said
    assert "age: is another" not in said
    assert "pulse: is another" not in said
