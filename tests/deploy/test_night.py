"""One whole night (``night.py``), by name: ``make night``, or this file with ``-m slow``; it takes minutes.

Which nights: ``SECFED_NIGHTS="1 2 3"`` names their seeds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.deploy.night import FULL_DISKS, JUMPS, KILLS
from tests.deploy.night_parties import Party

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the namespaces of Linux")
SEEDS = os.environ.get("SECFED_NIGHTS", "1 2").split()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_in_the_morning_everything_is_as_it_should_be(tmp_path: Path, seed: str) -> None:
    command = [sys.executable, "-m", "tests.deploy.night", "--seed", seed, "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if "A night needs" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / f"night-{seed}.json").read_bytes())
    assert result["problems"] == []
    counts = result["counts"]
    assert counts["kill"] >= KILLS
    assert counts["full disk"] == FULL_DISKS
    assert counts["clock"] == len(JUMPS)
    assert counts["roster"] == 4


def test_a_party_is_left_alone_where_its_unit_would_leave_it_alone(tmp_path: Path) -> None:
    command = ["no-such-command"]
    for prevented in (frozenset({2}), frozenset({13})):
        party = Party("hospital-1", tmp_path, command, tmp_path / "log", prevented)
        party.shift(-3600.0)
        party.start()
        assert party.process is not None
        assert party.process.wait(120) == 2
        assert party.tend() == ""
        assert party.exits[0][0] == 2
        assert party.left_alone == (2 in prevented)
