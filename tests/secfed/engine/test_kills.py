"""Whatever is killed, and whenever: the model is the same in the end. Times are random, from a seed."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from secfed.engine import processes
from secfed.engine.options import EngineOptions
from secfed.simulation.simulate import simulate
from secfed.study.study import Study
from tests.forks import Fork
from tests.secfed.engine.test_engines import FORKS, PLAIN, _study

ROOT = Path(__file__).parents[3]
COMMAND = "from secfed.cli import main; main()"
TEXT = PLAIN.format(algorithm="scaffold", options="local_epochs = 1")


def _model(text: str, out: Path) -> bytes:
    simulate(Study.parse(text), out=out)
    return (out / "model.safetensors").read_bytes()


def _command(study: Path, out: Path, engine: str) -> list[str]:
    workers = [] if engine == "inline" else ["--workers", "2"]
    asked = ["simulate", str(study), "--out", str(out), "--engine", engine, *workers]
    return [sys.executable, "-c", COMMAND, *asked]


@pytest.mark.slow
def test_workers_that_are_killed_at_any_time_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.Processes, "connect", processes.Processes._forked)  # quick to replace
    links: list[Any] = []
    killed: list[Any] = []
    real = processes.ProcessLink.__init__

    def init(self: Any, *given: Any) -> None:
        real(self, *given)
        links.append(self)

    monkeypatch.setattr(processes.ProcessLink, "__init__", init)
    model = _model(TEXT, tmp_path / "inline")
    chance, over = random.Random(17), threading.Event()

    def kill() -> None:
        for _ in range(3):  # a fourth could be of the same work, which is then given up
            if over.wait(chance.uniform(0.02, 0.2)):
                return
            killed.append(chance.choice(links[-2:]))
            killed[-1].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        simulate(Study.parse(TEXT), out=tmp_path / "processes", engine=FORKS)
    finally:
        over.set()
        killer.join()
    assert killed
    assert (tmp_path / "processes" / "model.safetensors").read_bytes() == model


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_the_same_command_after_the_driver_was_killed_gives_the_same_model(
    engine: str, tmp_path: Path
) -> None:
    study, out, chance = tmp_path / "study.toml", tmp_path / "run", random.Random(engine)
    study.write_text(TEXT)
    began = time.monotonic()
    model = _model(TEXT, tmp_path / "inline")
    whole_s = time.monotonic() - began
    for _ in range(3):
        driver = Fork(_command(study, out, engine), cwd=ROOT, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.1, 1.0) * whole_s)
        driver.kill()
        driver.wait()
        if (out / "run.json").exists():
            break
    else:
        done = Fork(_command(study, out, engine), cwd=ROOT, stderr=subprocess.PIPE, text=True)
        _, said = done.communicate(timeout=300)
        assert done.returncode == 0, said
    assert (out / "model.safetensors").read_bytes() == model


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_the_same_command_goes_on_in_the_round_that_was_killed(engine: str, tmp_path: Path) -> None:
    study, out = tmp_path / "study.toml", tmp_path / "run"
    study.write_text(TEXT.replace("rounds = 2", "rounds = 40"))
    model = _model(study.read_text(), tmp_path / "whole")
    with Fork(_command(study, out, engine), cwd=ROOT, stderr=subprocess.DEVNULL) as driver:
        while not (out / "unfinished").exists():
            assert driver.poll() is None
            time.sleep(0.01)
        time.sleep(random.Random(engine).uniform(0.0, 0.5))
        driver.kill()
    assert not (out / "run.json").exists()
    done = Fork(_command(study, out, engine), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    _, said = done.communicate(timeout=300)
    assert done.returncode == 0, said
    assert f"{out}: goes on after round" in said
    assert (out / "model.safetensors").read_bytes() == model
    assert not (out / "unfinished").exists()


def _below(pid: int) -> list[int]:
    """The processes that a process started, and theirs."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    children = [int(text) for text in found.stdout.split()]
    return [*children, *(below for child in children for below in _below(child))]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_killed_head_of_ray_ends_the_command_and_the_next_gives_the_same_model(tmp_path: Path) -> None:
    study, out = tmp_path / "study.toml", tmp_path / "run"
    study.write_text(TEXT.replace("rounds = 2", "rounds = 40"))
    model = _model(study.read_text(), tmp_path / "inline")
    command = _command(study, out, "ray")
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as driver:
        assert driver.stderr is not None
        assert b"5 hospitals" in driver.stderr.readline()
        time.sleep(random.Random(23).uniform(0.0, 2.0))
        for pid in _below(driver.pid):
            if Path(f"/proc/{pid}/comm").read_text().strip() in ("gcs_server", "raylet"):
                subprocess.run(["kill", "-9", str(pid)], check=True)
        driver.communicate(timeout=300)
    assert driver.returncode != 0
    assert not (out / "run.json").exists()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    assert (out / "model.safetensors").read_bytes() == model


def test_an_engine_that_ended_ends_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    from secfed.engine.pool import EngineEnded
    from secfed.errors import LinkError

    def none(_self: Any, _number: int) -> Any:
        raise EngineEnded("--engine ray: Ray has ended (RayError)")

    def ask(self: Any, head: Any, tensors: Any, timeout_s: float | None) -> Any:
        if head["do"] == "work":
            self.kill()
        return real(self, head, tensors, timeout_s)

    real = processes.ProcessLink.ask
    monkeypatch.setattr(processes.ProcessLink, "ask", ask)
    monkeypatch.setattr(processes.Processes, "connect", none)
    with pytest.raises(LinkError, match="Ray has ended") as caught:
        simulate(_study(), engine=EngineOptions("processes", 2))
    assert "same command" in caught.value.remedy
