"""What workers print reaches whoever looks, whole lines under the worker's name."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from secfed.engine import processes
from secfed.simulation.simulate import simulate
from tests.secfed.engine.test_engines import FORKS, REAL_SERVE, _study


def test_lines_of_workers_have_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def talkative(connection: Any, built: Any) -> None:
        print("from\x1b Python")
        print("an error", file=sys.stderr)
        os.write(1, b"from a library")
        REAL_SERVE(connection, built)

    monkeypatch.setattr(processes, "serve", talkative)
    simulate(_study().replace("study.rounds", 1), engine=FORKS)
    said = capsys.readouterr()
    assert said.out == ""
    assert sorted(said.err.splitlines()) == [
        f"worker {number}: {what}"
        for number in (1, 2)
        for what in ("an error", "from a library", "from\N{REPLACEMENT CHARACTER} Python")
    ]
