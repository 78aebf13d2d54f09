"""Without what only Linux has, simulations work; what serves hospitals refuses with one line.

No Mac is at hand here. What Python lacks there is taken away (``fcntl``, too, which a Mac has), and the
system calls itself Darwin; what PyTorch and others do there is not tried.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from secfed.errors import ConfigError
from secfed.storage import flock, private_files
from tests.layout import HOMES, ROOT, files_of

STUDY = """
study = { name = "mac", rounds = 2, seed = 1 }
algorithm = { name = "fedavg", local_epochs = 1, batch_size = 64, learning_rate = 0.1, weighting = "equal" }
model = { name = "logistic-regression" }
data = { name = "breast-cancer", sites = 3, partition = "iid", standardize = false }
protection = { name = "masked" }
privacy = { unit = "record", epsilon = 8.0, delta = 1e-4, clip_norm = 1.0 }
"""
SIMULATED = "simulate {0}/study.toml --out {0}/run"
COMMANDS = {
    SIMULATED: 0,
    f"{SIMULATED} --overwrite": 0,
    "simulate {0}/study.toml --protection plain": 0,
    "audit verify {0}/run": 0,
    "audit report {0}/run --out {0}/report.html": 0,
    "attack --only second-sum": 0,
    "examples": 0,
    "simulate {0}/study.toml --protection encrypted": 2,
    "agent run {0}/site": 2,
    "aggregate {0}/study.toml --consortium {0}/centre --out {0}/served": 2,
}

_CODE = """
import json, os, platform, shlex, sys, time
# These are other builds on a Mac.
import matplotlib.figure, numpy, opacus, scipy.stats, sklearn.datasets, torch

sys.modules["fcntl"] = None
absent = "sched_", "memfd_", "posix_f", "pidfd_", "eventfd", "getrandom", "fdatasync", "O_TMP"
for name in dir(os):
    if name.startswith(absent):
        delattr(os, name)
for name in ("CLOCK_BOOTTIME", "CLOCK_TAI"):
    delattr(time, name)

def look(event, arguments):
    asked = str(arguments[0]) if event in ("open", "os.listdir") else ""
    if asked.startswith("/proc") and asked != "/proc/self/maps":  # threadpoolctl's, which knows Macs
        raise FileNotFoundError(2, "No such file or directory", arguments[0])
    if event == "ctypes.dlsym" and arguments[1] == "prctl":
        raise AttributeError("prctl")

sys.addaudithook(look)
sys.platform = "darwin"
platform.system = lambda: "Darwin"
from typer.testing import CliRunner
from secfed.cli.app import app

done = {}
for command in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, shlex.split(command))
    done[command] = result.exit_code, result.stderr
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    folder = tmp_path_factory.mktemp("mac")
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    commands = {command: command.format(folder) for command in COMMANDS}
    process = subprocess.run(
        [sys.executable, "-c", _CODE, json.dumps(list(commands.values()))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    results: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return {command: results[filled] for command, filled in commands.items()}


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command, code in COMMANDS.items() if code == 0])
def test_simulations_and_what_reads_them_work(done: dict[str, tuple[int, str]], command: str) -> None:
    assert done[command][0] == 0, done[command][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("agent run", "A hospital's agent runs on Linux only; this is Darwin."),
        ("aggregate", "An aggregator runs on Linux only; this is Darwin."),
        ("simulate {0}/study.toml --protection encrypted", "memfd_create"),
    ],
)
def test_what_does_not_says_so_in_one_line(done: dict[str, tuple[int, str]], command: str, why: str) -> None:
    (found,) = [result for asked, result in done.items() if asked.startswith(command)]
    code, told = found
    assert (code, told.count("Error:"), "Remedy:" in told) == (2, 1, True), told
    assert why in told


def test_a_folder_of_several_processes_is_refused_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flock, "AVAILABLE", False)
    with pytest.raises(ConfigError, match="no file locks"), private_files.locked(tmp_path):
        pass


def test_locks_are_asked_for_in_one_place() -> None:
    using = {
        path
        for home in HOMES
        for path in files_of(home)
        if path.suffix == ".py" and re.search(r"^\s*import fcntl|from fcntl", (ROOT / path).read_text(), re.M)
    }
    assert using == {Path("secfed/storage/flock.py")}
