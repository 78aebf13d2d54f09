"""A study centre and its hospitals as processes of their own, enrolled and run through the command line.

Every process is started again when it is killed, as systemd would do it; what it dies of is up to the test
(``SECFED_CRASH_AT``). ``--simulated-randomness`` makes the hospitals take rounding and noise from the
study's seed, so that two runs, and a simulation, can be compared byte for byte.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

from secfed.cli.app import app
from secfed.records.chain_file import verify_file
from secfed.records.roster_file import read_roster
from secfed.records.transcript import SUMMED, TRANSCRIPT
from secfed.storage.failpoints import VARIABLE as CRASH_VARIABLE
from tests.forks import Fork
from tests.ports import free_port, without_metrics

PROGRAM: Final = (sys.executable, "-c", "from secfed.cli import main; main()")
_SIMULATED: Final = "--simulated-randomness"
HANGS_S: Final = 1800.0  # nothing is measured here: a run that is still going then goes nowhere

STUDY: Final = """\
[study]
name = "plugs"
rounds = {rounds}
seed = 3

[algorithm]
name = "fedavg"
local_epochs = 1
batch_size = 64
learning_rate = 0.5
weighting = "equal"

[model]
name = "logistic-regression"

[data]
name = "breast-cancer"
sites = {sites}
partition = "iid"
standardize = "public"

[protection]
name = "masked"
deadline_s = 3600

[privacy]
unit = "record"
epsilon = 8.0
delta = 1e-4
metrics = "unprotected"
accountant = "rdp"
"""

POLICY: Final = """\
approve = "automatic"

[studies]
names = ["*"]

[privacy]
max_epsilon = 8.0
max_delta = 1e-4
metrics = ["unprotected"]

[algorithms.fedavg]
local_epochs = "any"
batch_size = "any"
learning_rate = "any"
weighting = ["equal"]

[models.logistic-regression]

[[data]]
name = "breast-cancer"
source = "breast-cancer"
options = "any"

[[data.budget]]
epsilon = 20.0
delta = 1e-4
"""


def secfed(*arguments: object) -> str:
    """Run a command in this process."""
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, [str(item) for item in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def sums(path: Path, owner: bytes, what: str) -> list[tuple[Any, ...]]:
    """(round, exchange, ``what``, survivors) of every sum in a transcript, which is verified."""
    bodies = [entry.body for entry in verify_file(path, owner, TRANSCRIPT) if entry.kind == SUMMED]
    return [(body["round"], body["exchange"], body[what], tuple(body["survivors"])) for body in bodies]


@dataclass
class Process:
    """A process that is started again whenever SIGKILL ends it.

    Attributes:
        name: of the party.
        command: what to run.
        log: gets its output; every start appends.
        points: crash points still to come, one per start.
        deaths: crash points at which it died.
    """

    name: str
    command: Sequence[str]
    log: Path
    points: list[str] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
        environment.pop(CRASH_VARIABLE, None)
        if self.points:
            environment[CRASH_VARIABLE] = self.points[0]
        with self.log.open("ab") as stream:
            self.process = Fork(
                self.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,  # a Ctrl-C at pytest is ours to pass on
            )

    def ended(self) -> bool:
        """Whether it ended by itself; a killed one is started again.

        Raises:
            AssertionError: it failed; with the end of its log.
        """
        code = self.process.poll()
        if code is None:
            return False
        if code == -signal.SIGKILL and self.points:
            self.deaths.append(self.points.pop(0))
            self.start()
            return False
        assert code == 0, f"{self.name} ended with {code}:\n{self.tail()}"
        return True

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]

    def stop(self) -> None:
        """End it, politely at first."""
        if self.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                try:
                    self.process.wait(60)
                except subprocess.TimeoutExpired:
                    continue
        self.process.wait()


class Deployment:
    """A consortium on the disk, and its processes.

    Args:
        folder: an empty one.
        study: text of the study file.
        sites: number of hospitals.
        quorum: how many must be there; None for all.
        host: of the aggregator, as hospitals dial it.
        listen: address on which it listens.
        options: more options of ``secfed aggregate``.
        policy: of every hospital.
        within: what to put before the command of a party, such as ``ip netns exec NAME``.
    """

    def __init__(
        self,
        folder: Path,
        study: str,
        *,
        sites: int = 3,
        quorum: int | None = None,
        host: str = "localhost",
        listen: str = "127.0.0.1",
        options: Sequence[str] = (),
        policy: str = POLICY,
        within: Callable[[str], Sequence[str]] = lambda _party: (),
    ) -> None:
        self.folder, self.out = folder, folder / "run"
        self.names = tuple(f"hospital-{number}" for number in range(1, sites + 1))
        port = free_port()
        self.study = folder / "study.toml"
        self.study.write_text(study, encoding="utf-8")
        self._enrol(host, port, policy)
        command = [*PROGRAM, "aggregate", str(self.study), "--consortium", str(folder / "centre")]
        command += ["--out", str(self.out), "--listen", f"{listen}:{port}", "--quorum", str(quorum or sites)]
        command += ["--log-json", *options]
        self.aggregator = self._process("centre", within, command)
        self.agents = {
            name: self._process(
                name, within, [*PROGRAM, "agent", "run", str(folder / name), "--once", _SIMULATED]
            )
            for name in self.names
        }

    def _process(self, name: str, within: Callable[[str], Sequence[str]], command: list[str]) -> Process:
        return Process(name, [*within(name), *command], self.folder / f"{name}.log")

    def _enrol(self, host: str, port: int, policy: str) -> None:
        centre = self.folder / "centre"
        secfed("consortium", "init", centre, "--name", "Test", "--aggregator-host", host, "--port", port)
        for name in self.names:
            folder = self.folder / name
            secfed("site", "init", folder, "--name", name)
            (folder / "policy.toml").write_text(policy, encoding="utf-8")
            without_metrics(folder)
        requests = [self.folder / name / "request.json" for name in self.names]
        secfed("consortium", "admit", *requests, "--dir", centre, "--yes")
        for name in self.names:
            reply, roster = centre / "replies" / f"{name}.json", centre / "roster.json"
            secfed("site", "join", reply, "--dir", self.folder / name, "--roster", roster, "--yes")

    def run(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """From start to finished study; ``meanwhile`` is called several times a second.

        Raises:
            AssertionError: a process failed, or nothing ends.
        """
        parties = (self.aggregator, *self.agents.values())
        end = time.monotonic() + HANGS_S
        try:
            for party in parties:
                party.start()
            # Every party is looked at every time: each may have to be started again.
            while [party for party in parties if not party.ended()]:
                meanwhile()
                assert time.monotonic() < end, "\n".join(f"{p.name}:\n{p.tail()}" for p in parties)
                time.sleep(0.05)
        finally:
            for party in parties:
                party.stop()

    def sums(self) -> list[tuple[Any, ...]]:
        """(round, exchange, attempt, survivors) of every sum, from the verified transcript."""
        path = self.out / "transcript.jsonl"
        aggregator = read_roster(self.folder / "centre" / "roster.json").aggregator
        return sums(path, aggregator, "attempt") if path.exists() else []

    def verify(self) -> str:
        """Every transcript and ledger of every party verifies, and all say the same.

        Returns:
            What ``secfed audit verify`` printed.
        """
        folders = [self.out, *(self.folder / name / "state" for name in self.names)]
        return secfed("audit", "verify", *folders, "--roster", self.folder / "centre" / "roster.json")
