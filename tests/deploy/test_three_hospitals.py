"""examples/three-hospitals: four processes over loopback, from nothing to a finished masked study."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from secfed.deploy.policy.policy import Policy
from secfed.study.study import Study
from tests.conftest import ROOT
from tests.deploy.deployment_case import secfed
from tests.deploy.simulated import model_in, simulated
from tests.ports import free_port

EXAMPLE: Final = ROOT / "examples" / "three-hospitals"
MOST_TYPED: Final = 15
MOST_COMMANDS: Final = {"centre": 4, "hospital-1": 3, "hospital-2": 3, "hospital-3": 3}


def script(folder: Path, program: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run run.sh."""
    environment = {**os.environ, "SECFED": str(program), "COLUMNS": "400", **variables}
    command = ["bash", str(EXAMPLE / "run.sh"), str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The ``secfed`` of this interpreter, wherever it is installed."""
    path = tmp_path / "secfed"
    path.write_text(f"#!{sys.executable}\nfrom secfed.cli import main\nmain()\n")
    path.chmod(0o755)
    return path


def test_the_policy_of_the_example_permits_its_study() -> None:
    policy = Policy.load(EXAMPLE / "policy.toml")
    policy.enforce(Study.load(EXAMPLE / "study.toml"), datetime.now(UTC), sites=3)
    assert policy.approve == "automatic"


def test_the_example_has_the_protections_that_it_shows() -> None:
    study = Study.load(EXAMPLE / "study.toml")
    assert study.protection.name == "masked"
    assert len(study.tables()["data"]) > 1


def test_the_script_does_not_touch_a_folder_that_is_there(tmp_path: Path, program: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = script(tmp_path / "mine", program)
    assert done.returncode == 1
    assert "is there already" in done.stderr
    assert list((tmp_path / "mine").iterdir()) == []


def test_the_script_fails_when_a_command_fails(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 7\n")
    broken.chmod(0o755)
    assert script(tmp_path / "new", broken).returncode == 7


def told(stdout: str, folder: Path, port: int) -> list[str]:
    """What was printed, without what differs: keys, dates, places, times, the table of rounds."""
    text = stdout.replace(str(folder), "FOLDER").replace(str(port), "PORT").replace(str(ROOT), "SECFED")
    for pattern, word in (
        (r"(?<![0-9a-f])[0-9a-f]{4}( [0-9a-f]{4}){9,}|\b[0-9a-f]{64}\b", "DIGEST"),
        (r"\d{4}-\d\d-\d\d", "DATE"),
        (r"\d+\.\d+", "NUMBER"),
        (r" +(?=\n)", ""),
    ):
        text = re.sub(pattern, word, text)
    table = re.compile(r" *(\d+ |Round |balanced_ )")
    return [line for line in text.splitlines() if line and not table.match(line)]


def test_the_readme_names_the_commands_that_the_script_types() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.partition("## Three real machines")[2].split("```")[1]
    command = r"^(?:\S+ \d+ \$ )?secfed ((?:consortium|site|agent) \w+|aggregate)"
    named = re.findall(command, block, re.MULTILINE)
    typed = re.findall(command, (EXAMPLE / "printed.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(typed) == set(named)
    assert len(named) == len(set(named)) == 6
    centre = [line for line in block.splitlines() if line.endswith("# study centre")]
    assert len(centre) + 3 * (len(named) - len(centre)) <= len(typed) <= MOST_TYPED


@pytest.fixture
def loopback() -> None:
    """Four processes talk over 127.0.0.1; where it is down, each would wait for the others for minutes."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        pytest.fail(
            f"no loopback on this machine ({error}): bring it up, for example with: ip link set lo up"
        )


@pytest.mark.slow
@pytest.mark.usefixtures("loopback")
def test_from_nothing_to_a_finished_study(tmp_path: Path, program: Path) -> None:
    folder = tmp_path / "all"
    # The hospitals' rounding and noise from the study's seed, as a simulation takes them.
    port = free_port()
    done = script(folder, program, PORT=str(port), AGENT_OPTIONS="--simulated-randomness")
    logs = "".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:] + logs

    counted = {party: int(count) for party, count in re.findall(r"(\S+) (\d+) \$ secfed ", done.stdout)}
    assert counted.keys() == MOST_COMMANDS.keys()
    assert all(counted[party] <= most for party, most in MOST_COMMANDS.items())

    assert sum(counted.values()) <= MOST_TYPED
    printed = (EXAMPLE / "printed.txt").read_text(encoding="utf-8").splitlines()
    assert told(done.stdout, folder, port) == printed

    expected = simulated(Study.load(EXAMPLE / "study.toml"), tmp_path / "simulated")
    assert model_in(folder / "run") == expected

    states = [folder / f"hospital-{number}" / "state" for number in (1, 2, 3)]
    report = secfed("audit", "verify", folder / "run", *states, "--roster", folder / "centre" / "roster.json")
    for number in (1, 2, 3):
        assert f"hospital-{number}" in report
