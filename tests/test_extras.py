"""The core alone: each command works, or says in one line which extra it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from secfed.cli.app import _COMMANDS
from secfed.errors import EXTRAS, installing
from tests.layout import ROOT

_STUDY = "examples/breast-cancer.toml"
_SWEEP = "examples/sweep-breast-cancer.toml"
# Arguments; {0} is a new folder. In this order: later ones find what earlier ones made.
WORKS = {
    "init {0}/new --table examples/none.csv --label y": 3,
    f"policy from {_STUDY}": 0,
    "simulate --help": 0,
    "new --help": 0,
    "sweep --help": 0,
    "algorithms": 0,
    "examples": 0,
    "examples copy digits-cnn --to {0}/examples": 0,
    "attack --only second-sum --only rare-flag --only ghost-survivors": 0,  # two of them need extras
    "bench masked --params 100 --sites 3 --repeats 1": 0,
    "site init {0}/site --name charite": 0,
    "site status {0}/site --json": 2,  # no roster is pinned yet
    "consortium init {0}/centre --name Heart --aggregator-host heart.example": 0,
    "agent status {0}/site": 0,
    "agent pause {0}/site": 0,
    "agent notify {0}/site": 2,  # nobody is named
    "consortium notify {0}/centre": 2,
    "audit verify {0}": 24,  # nothing to verify
    "transcript verify {0}": 2,
}
LACKS = {
    f"simulate {_STUDY} --protection encrypted": "he",
    f"simulate {_STUDY} --engine ray": "cluster",
    f"sweep {_SWEEP} --engine ray --out {{0}}/1": "cluster",
    f"sweep {_SWEEP} --engine slurm --out {{0}}/2": "cluster",
    "attack --protection encrypted": "he",
    "bench encrypted --params 100 --sites 3": "he",
    "bench link --params 100": "net",
    "agent run {0}/site": "net",
    f"aggregate {_STUDY} --consortium {{0}}/centre --out {{0}}/run": "net",
    "audit report {0} --out {0}/report.html --pdf {0}/report.pdf": "pdf",  # and no browser that prints
    "analyse examples/analyse-diabetes.toml": "analyse",
    "console {0}": "web",
    f"simulate {_STUDY} --track tensorboard:{{0}}/board": "track",
    f"simulate {_STUDY} --track mlflow:{{0}}/mlflow": "mlflow",
}
_NEEDED_BY_MATPLOTLIB = "PIL"

_CODE = """
import importlib.abc, json, shlex, sys
absent, commands = json.loads(sys.argv[1])

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)

sys.meta_path.insert(0, Absent())
from typer.testing import CliRunner
from secfed.cli.app import app

done = {}
for command in commands:
    result = CliRunner().invoke(app, shlex.split(command))
    done[command] = result.exit_code, result.stderr
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and standard error of every command, run where no extra is installed."""
    folder = tmp_path_factory.mktemp("core")
    absent = [package for packages in EXTRAS.values() for package in packages]
    absent.remove(_NEEDED_BY_MATPLOTLIB)
    commands = {command: command.format(folder) for command in (*WORKS, *LACKS)}
    asked = json.dumps([absent, list(commands.values())])
    env = {**os.environ, "PATH": ""}  # no browser
    process = subprocess.run(
        [sys.executable, "-c", _CODE, asked], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    results: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return {command: results[filled] for command, filled in commands.items()}


def test_every_command_is_tried() -> None:
    assert {command.split()[0] for command in (*WORKS, *LACKS)} == set(_COMMANDS)


@pytest.mark.parametrize(("command", "expected"), WORKS.items())
def test_the_core_is_enough(done: dict[str, tuple[int, str]], command: str, expected: int) -> None:
    code, told = done[command]
    assert (code, "constraints.txt" in told) == (expected, False), told


@pytest.mark.parametrize(("command", "extra"), LACKS.items())
def test_a_missing_extra_is_named_with_its_remedy(
    done: dict[str, tuple[int, str]], command: str, extra: str
) -> None:
    code, told = done[command]
    assert (code, told.count("Error:")) == (2, 1)
    assert f"pip install --constraint constraints.txt --editable '.[{extra}]'" in told


def test_the_remedy_is_for_the_environment_that_runs_this(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    told = "in secfed's folder: .venv/bin/pip install --constraint constraints.txt --editable '.[net]'"
    assert installing("net") == told
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr("secfed.errors.__file__", str(tmp_path / "site-packages/secfed/errors.py"))
    assert installing("net") == "in secfed's folder: pip install --constraint constraints.txt '.[net]'"
