"""Ray as an engine: the same bytes, an actor that dies, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from secfed.engine.on_ray import join
from secfed.engine.options import EngineOptions
from secfed.errors import ConfigError
from secfed.simulation.simulate import simulate
from tests.secfed.engine.test_engines import CASES, _chains, _run, _study

RAY = EngineOptions("ray", 2)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")

# Ray leaves processes for Python's end to collect, so it runs in a process of its own.
SCRIPT = """
import os, sys
from pathlib import Path
import ray
from secfed.engine import on_ray
from tests.secfed.engine.test_engines import CASES, _run
from tests.secfed.engine.test_on_ray import RAY
asked, real = [], on_ray.ActorLink.ask
def ask(self, head, tensors, timeout_s):
    asked.append(head["do"])
    if len(asked) == 1:
        there = ray.remote(num_cpus=0)(lambda: os.nice(0))
        assert ray.get(there.remote()) == os.nice(0), "workers of Ray give way to everything else"
    if asked[-1] == "work" and asked.count("work") in map(int, sys.argv[3:]):
        ray.kill(self._actor)
    return real(self, head, tensors, timeout_s)
on_ray.ActorLink.ask = ask
_run(CASES[sys.argv[1]], Path(sys.argv[2]), RAY)
"""


def test_without_ray_there_is_one_line_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="--engine ray: Ray is not installed") as caught:
        simulate(_study(), engine=RAY)
    assert "[cluster]" in caught.value.remedy


NICENESS = "RAY_worker_niceness"


@pytest.mark.parametrize("own", ["", "7"])
def test_a_ray_of_its_own_ranks_as_the_command_unless_told(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str | None] = []
    init = SimpleNamespace(init=lambda *_, **__: started.append(os.environ.get(NICENESS)))
    monkeypatch.setitem(sys.modules, "ray", init)
    monkeypatch.setattr(os, "environ", {NICENESS: own} if own else {})
    join(None, 2)
    assert started == [own or "0"]


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(("name", "deaths"), [("state at the sites", []), ("groups", [2, 5])])
def test_ray_changes_nothing_whatever_dies(name: str, deaths: list[int], tmp_path: Path) -> None:
    _, model, chains = _run(CASES[name], tmp_path / "inline", EngineOptions())
    other = tmp_path / "ray"
    command = [sys.executable, "-c", SCRIPT, name, str(other), *map(str, deaths)]
    subprocess.run(command, check=True, timeout=300, cwd=Path(__file__).parents[3])
    assert (other / "model.safetensors").read_bytes() == model
    assert _chains(other) == chains
