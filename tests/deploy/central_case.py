"""A study at the study centre with hospitals in the same process, and crashes where a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save

from secfed.audit.transcript_check import verify_run
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.keystream import rounding_stream_for_simulation
from secfed.deploy.aggregator.run import CentralRun
from secfed.deploy.aggregator.standstill import Refusal
from secfed.deploy.aggregator.study import CentralStudy
from secfed.records.transcript import Log, Transcript
from secfed.runs.run_folder import MODEL_FILE, site_folder
from secfed.runs.run_report import Observer, RunReport, SilentObserver
from secfed.simulation.transport import SimulatedTransport
from secfed.site.attempt_store import NullStore
from secfed.site.build import build_site
from secfed.site.journal import Journal
from secfed.site.parts import Draws, Member, Services
from secfed.site.terms import Terms
from secfed.storage import failpoints
from secfed.study.limits import study_id
from secfed.study.study import Study
from secfed.wire.frames import Notice, decode
from secfed.wire.transport import OnReply

TOML = """
[study]
name = "tiny"
rounds = {rounds}
seed = 3
[algorithm]
name = "fedavg"
local_epochs = 1
batch_size = 64
learning_rate = 0.1
[model]
name = "mlp"
hidden = [4]
[data]
name = "breast-cancer"
sites = {sites}
partition = "iid"
test_fraction = 0.25
[protection]
name = "{protection}"
"""


ALIVE: list[Hospitals] = []  # to be closed when a test ends


class Crash(BaseException):
    """The power goes off. No handler of the code under test may catch it."""


class Hospitals:
    """The sites of one study; they outlive the aggregator, and answer a repeated frame as before.

    Attributes:
        down: sites that do not answer; site -> stages.
    """

    def __init__(
        self, folder: Path, *, protection_name: str = "masked", sites: int = 4, rounds: int = 2
    ) -> None:
        text = TOML.format(protection=protection_name, sites=sites, rounds=rounds)
        folder.mkdir(exist_ok=True)
        ALIVE.append(self)
        self.folder, self.text, self.study = folder, text, Study.parse(text)
        self.names = tuple(f"hospital-{index}" for index in range(1, sites + 1))
        self.aggregator = Identity.generate("aggregator")
        identities = {name: Identity.generate(name) for name in self.names}
        self.roster = Roster.of(self.aggregator, list(identities.values()))
        self.central = CentralStudy(self.study, self.roster)
        self.out = folder / "run"
        self.down: dict[str, set[str]] = {}
        self.answered: dict[str, dict[bytes, bytes]] = {name: {} for name in self.names}
        self.handled = 0
        self.sites: dict[str, Any] = {}
        self.logs = []
        for name, identity in identities.items():
            log = Transcript(
                identity,
                study=study_id(self.study),
                roster_digest=self.roster.digest,
                sink=folder / f"{name}.jsonl",
            )
            self.logs.append(log)
            self.sites[name] = build_site(
                Terms(self.study, self.central.algorithm, self.names),
                Member(identity, self.roster),
                self.central.algorithm.site(name),
                limits=SiteLimits(),
                draws=Draws.seeded(self.study.seed, name),
                store=NullStore(Journal(), study_id(self.study)),
                services=Services(log),
            )

    def handle(self, name: str, frame: Buffer) -> Buffer:
        """What an agent does: a frame that was answered is answered from the record."""
        frame = bytes(frame)
        if isinstance(decode(frame), Notice):  # these may be repeated
            return self.sites[name].handle(frame)
        known = self.answered[name]
        if frame not in known:
            self.handled += 1
            known[frame] = bytes(self.sites[name].handle(frame))
        return known[frame]

    def start(
        self, observer: Observer | None = None, carrier: Callable[[Log], Any] | None = None
    ) -> CentralRun:
        carrier = carrier or partial(LocalCarrier, self)
        return CentralRun(self.central, self.aggregator, self.out, carrier, observer or SilentObserver())

    def run(
        self,
        observer: Observer | None = None,
        carrier: Callable[[Log], Any] | None = None,
        *,
        end: bool = False,
    ) -> RunReport:
        """One process: from its start to the end, or to a crash."""
        with closing(self.start(observer, carrier)) as run:  # as the death of a process releases the lock
            return run.run(end=end)

    def close(self) -> None:
        for name, log in zip(self.names, self.logs, strict=True):
            log.close()
            self.sites[name].close()

    def model(self) -> bytes:
        return save(load_file(self.out / MODEL_FILE))

    def check_transcripts(self) -> None:
        """Every transcript verifies, and all say the same."""
        self.close()
        for name in self.names:
            target = site_folder(self.out, name)
            target.mkdir(parents=True, exist_ok=True)
            (target / "transcript.jsonl").write_bytes((self.folder / f"{name}.jsonl").read_bytes())
        verdict = verify_run(self.out, self.roster)
        assert not verdict.problems, [str(problem) for problem in verdict.problems]


def rounding(seed: int, site: str, number: int, index: int) -> Any:
    return rounding_stream_for_simulation(seed, site, str(number), str(index))


class LocalCarrier(SimulatedTransport):
    """Calls the hospitals; those that are down at a stage do not answer."""

    def __init__(self, hospitals: Hospitals, log: Log) -> None:
        super().__init__((), SilentObserver(), log)
        self.refusals: dict[str, Refusal] = {}
        self._hospitals = hospitals
        self.connect({name: partial(hospitals.handle, name) for name in hospitals.names})

    def ask(self, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
        down = self._hospitals.down
        up = {site: frame for site, frame in requests.items() if stage not in down.get(site, ())}
        super().ask(stage, up, on_reply)


def crash_at(monkeypatch: Any, when: Callable[[str], bool]) -> list[str]:
    """Raise :class:`Crash` where ``when(name)`` says so; the names that were reached."""
    names: list[str] = []

    def reached(name: str) -> None:
        names.append(name)
        if when(name):
            raise Crash(name)

    monkeypatch.setattr(failpoints, "failpoint", reached)
    return names
