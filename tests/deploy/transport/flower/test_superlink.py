"""The same through Flower's own processes: SuperLink, three SuperNodes, `flwr run`, and the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from secfed.study.study import Study
from tests.deploy.deployment_case import STUDY, Deployment
from tests.deploy.simulated import model_in, simulated
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[4]
BIN = Path(sys.executable).parent
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


class Flower:
    """Flower's processes, on ports that were free a moment ago.

    Args:
        folder: for logs and Flower's own files.
        sockets: where `secfed aggregate` and the agents listen.
    """

    def __init__(self, folder: Path, sockets: Path) -> None:
        self.folder, self.sockets, self.port = folder, sockets, free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        home = folder / "flower"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            "insecure = true\n",
            encoding="utf-8",
        )
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"  # SuperLink starts its apps by their names
        self._environment = {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}

    def start(self, sites: Sequence[str]) -> None:
        offline = "--disable-runtime-dependency-installation"
        self._spawn("superlink", "flower-superlink", "--insecure", "--port", self.port, offline)
        self._wait_for_port()
        for site in sites:
            self._spawn(
                f"supernode-{site}",
                "flower-supernode",
                "--insecure",
                *("--superlink", f"127.0.0.1:{self.port}", "--port", free_port()),
                *("--node-config", f'secfed-socket="{self.sockets / site}.sock"'),
            )

    def run(self) -> None:
        """`flwr run`, of a copy of the example: Flower writes beside it."""
        app = self.folder / "app"
        shutil.copytree(ROOT / "examples" / "flower", app)
        config = f'secfed-socket="{self.sockets / "centre.sock"}"'
        command = [str(BIN / "flwr"), "run", str(app), "here", "--run-config", config]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    def stop(self) -> None:
        for process in reversed(self._processes):
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                    process.wait(60)
                except ProcessLookupError:
                    break
                except subprocess.TimeoutExpired:
                    continue

    def tails(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def _spawn(self, name: str, command: str, *arguments: object) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(BIN / command), *map(str, arguments)],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # it and what it starts are ended together
                )
            )

    def _wait_for_port(self) -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError:
                time.sleep(0.2)
        raise AssertionError(self.tails())


@pytest.fixture
def sockets() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="secfed-"))  # a socket's path is short
    yield folder
    shutil.rmtree(folder)


def step_seconds(log: Path) -> list[tuple[str, float]]:
    """How long each step took, from the first request to the last answer."""
    begun: dict[str, datetime] = {}
    found = []
    for line in log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event.get("message") != "step":
            continue
        step, now = f"round {event['round']} {event['stage']}", datetime.fromisoformat(event["time"])
        if event["answered"] == 0:
            begun[step] = now
        else:
            found.append((step, (now - begun[step]).total_seconds()))
    return found


@pytest.mark.slow
def test_a_study_through_a_real_superlink_ends_with_the_bytes_of_a_simulation(tmp_path, sockets):
    text = STUDY.format(rounds=1, sites=3)
    options = ("--flower-socket", str(sockets / "centre.sock"), "--farewell", "300", "--silent", "120")
    deployment = Deployment(tmp_path, text, options=options)
    at = deployment.aggregator.command.index("--listen")
    deployment.aggregator.command = [
        part for index, part in enumerate(deployment.aggregator.command) if index not in (at, at + 1)
    ]
    for name in deployment.names:
        settings = tmp_path / name / "site.toml"
        content = settings.read_text(encoding="utf-8")
        named = f'socket = "{sockets / name}.sock"'
        settings.write_text(content.replace('# socket = "/run/secfed/agent.sock"', named), encoding="utf-8")
    flower = Flower(tmp_path, sockets)
    submitted: list[bool] = []

    def meanwhile() -> None:
        if not submitted and (sockets / "centre.sock").exists():
            submitted.append(True)
            flower.run()

    try:
        flower.start(deployment.names)
        deployment.run(meanwhile)
    except BaseException:
        print(flower.tails())
        raise
    finally:
        flower.stop()
    for step, seconds in step_seconds(deployment.aggregator.log):
        print(f"{step:24} {seconds:6.1f} s")
    assert [survivors for _, _, _, survivors in deployment.sums()] == [deployment.names] * 2
    deployment.verify()
    assert model_in(deployment.out) == simulated(Study.parse(text), tmp_path / "simulated")
