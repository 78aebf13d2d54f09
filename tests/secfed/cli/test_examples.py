"""``secfed examples``: every example is listed as what it is, and what needs nothing runs from a copy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from secfed.cli import examples
from secfed.study.build import build_data
from secfed.study.study import Study
from secfed.sweep.file import SweepFile
from tests.layout import ROOT
from tests.secfed.run_case import secfed

WITHOUT_FILES = {"breast-cancer", "digits", "digits-views", "scenes", "chest-synthetic"}
FROM_ELSEWHERE = {"files", "vision-language", "checkout"}


def listed() -> dict[str, dict[str, Any]]:
    done = secfed("examples", "--json")
    assert done.exit_code == 0, done.output
    return {entry["name"]: entry for entry in json.loads(done.stdout)}


def test_every_example_is_listed_with_a_sentence_and_a_command() -> None:
    found = listed()
    there = {path.stem for path in (ROOT / "examples").iterdir() if path.name[0] not in "._"}
    assert set(found) == there
    for name, entry in found.items():
        assert 15 < len(entry["about"]) <= 100, (name, entry["about"])
        assert entry["command"].startswith(f"secfed {entry['kind']} examples/" if entry["kind"] else "read ")
    assert found["digits-cnn"] == {
        "name": "digits-cnn",
        "kind": "simulate",
        "about": "Five hospitals with unequal shares of each class, images and a small convolutional network",
        "needs": [],
        "command": "secfed simulate examples/digits-cnn.toml",
    }
    assert found["heart-disease"]["needs"] == ["files"]
    assert found["analyse-diabetes"]["needs"] == ["analyse"]
    assert found["vlp-lora"]["needs"] == ["vision-language", "checkout"]
    text = secfed("examples").stdout
    assert all(name in text for name in found)


@pytest.mark.parametrize("entry", listed().values(), ids=lambda entry: entry["name"])
def test_what_needs_no_file_finds_its_data_where_there_is_none(
    entry: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if entry["kind"] not in ("simulate", "sweep") or FROM_ELSEWHERE & set(entry["needs"]):
        pytest.skip("needs something, and says so")
    monkeypatch.setenv("SECFED_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = ROOT / entry["command"].split()[2]
    if entry["kind"] == "simulate":
        assert build_data(Study.load(file)).sites
    else:
        varied = re.findall(r'data\.name = "([^"]+)"', file.read_text())
        assert {SweepFile.load(file).tables["data"]["name"], *varied} <= WITHOUT_FILES


def test_a_copy_goes_where_the_commands_look_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = secfed("examples", "copy", "digits-cnn", "bring-your-own", "three-hospitals")
    assert done.exit_code == 0, done.output
    assert "secfed simulate examples/digits-cnn.toml" in done.stdout
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"examples/digits-cnn.toml", "examples/bring-your-own/my_hospital.py"} <= there
    assert (tmp_path / "examples/three-hospitals/run.sh").stat().st_mode & 0o111
    for name in there:
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()

    (tmp_path / "examples" / "digits-cnn.toml").write_text("mine")
    again = secfed("examples", "copy", "fedbn", "digits-cnn")
    assert again.exit_code == 2
    assert "exists already" in again.stderr
    assert (tmp_path / "examples" / "digits-cnn.toml").read_text() == "mine"
    assert not (tmp_path / "examples" / "fedbn.toml").exists()

    elsewhere = secfed("examples", "copy", "examples/digits-cnn.toml", "--to", "mine")
    assert "secfed simulate mine/digits-cnn.toml" in elsewhere.stdout
    assert (tmp_path / "mine" / "digits-cnn.toml").is_file()


def test_all_are_copied_and_shown_as_they_are(tmp_path: Path) -> None:
    assert secfed("examples", "copy", "--all", "--to", tmp_path / "all").exit_code == 0
    assert {path.stem for path in (tmp_path / "all").iterdir()} == set(listed())
    assert (
        secfed("examples", "show", "fedbn").stdout.strip()
        == (ROOT / "examples/fedbn.toml").read_text().strip()
    )
    shown = secfed("examples", "show", "bring-your-own").stdout
    assert shown.startswith("# ==> examples/bring-your-own/study.toml")
    assert (ROOT / "examples/bring-your-own/my_hospital.py").read_text() in shown


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["show", "digit-cnn"], "did you mean 'digits-cnn'"),
        (["copy"], "Which examples"),
        (["copy", "fedbn", "--all"], "Which examples"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked: list[str], why: str) -> None:
    done = secfed("examples", *asked)
    assert done.exit_code == 2
    assert why in done.stderr


def test_an_installed_package_holds_the_examples_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wheel lays it out; a folder of that name beside the package is somebody else's."""
    package = tmp_path / "site-packages" / "secfed"
    (package.parent / "examples").mkdir(parents=True)
    package.mkdir()
    monkeypatch.setattr(examples.secfed, "__file__", str(package / "__init__.py"))
    with pytest.raises(Exception, match="were not installed"):
        examples.folder()
    shutil.copytree(ROOT / "examples" / "bring-your-own", package / "examples" / "bring-your-own")
    assert examples.folder() == package / "examples"


@pytest.mark.slow
def test_a_copied_study_runs_outside_of_the_checkout(tmp_path: Path) -> None:
    assert secfed("examples", "copy", "bring-your-own", "--to", tmp_path / "examples").exit_code == 0
    study = tmp_path / "examples" / "bring-your-own" / "study.toml"
    study.write_text(study.read_text().replace("rounds = 10", "rounds = 1"))
    code = "import sys; from secfed.cli import main; sys.argv[0] = 'secfed'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "simulate", "examples/bring-your-own/study.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
