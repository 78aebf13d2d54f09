"""A study at the study centre with hospitals in the same process, and crashes where a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
from secfed.crypto.messages import FinalModel
from secfed.deploy.aggregator.run import CentralRun
from secfed.deploy.aggregator.standstill import Refusal
from secfed.deploy.aggregator.study import CentralStudy
from secfed.records.transcript import MODEL, Log, Transcript
from secfed.runs.final_model import record_of
from secfed.runs.run_folder import MODEL_FILE, site_folder
from secfed.runs.run_report import Observer, RunReport, SilentObserver
from secfed.simulation.transport import SimulatedTransport
from secfed.site.attempt_store import NullStore
from secfed.site.build import build_site
from secfed.site.journal import Journal
from secfed.site.parts import Draws, Member, Services
from secfed.site.terms import Terms
from secfed.storage import failpoints
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


class Hospital:
    """One site of a study, which answers a repeated frame as before."""

    def __init__(self, central: CentralStudy, identity: Identity, sink: Path) -> None:
        name, seed = identity.name, central.study.seed
        self.log = Transcript(identity, study=central.id, roster_digest=central.roster.digest, sink=sink)
        self.site = build_site(
            Terms(central.study, central.algorithm, central.names),
            Member(identity, central.roster),
            central.algorithm.site(name),
            limits=SiteLimits(),
            draws=Draws.seeded(seed, name),
            store=NullStore(Journal(), central.id),
            services=Services(self.log, take_model=self._take_model),
        )
        self.answered: dict[bytes, bytes] = {}
        self._last = b""

    def _take_model(self, final: FinalModel) -> None:
        self.log.append(MODEL, record_of(final).to_body())

    def handle(self, frame: Buffer) -> Buffer:
        """What an agent does: the last frame once more is answered from the record."""
        frame = bytes(frame)
        if frame != self._last:
            reply = bytes(self.site.handle(frame))
            if isinstance(decode(frame), Notice):  # these may be repeated
                self._last = b""
                return reply
            self._last, self.answered[frame] = frame, reply
        return self.answered[frame]

    def close(self) -> None:
        self.log.close()
        self.site.close()


class Hospitals:
    """The sites of one study; they outlive the aggregator.

    Attributes:
        down: sites that do not answer; site -> stages.
    """

    def __init__(
        self, folder: Path, *, protection_name: str = "masked", sites: int = 4, rounds: int = 2
    ) -> None:
        # Closed sums are masked ones that the sites open.
        protection_name = 'masked"\nreveal = "sites' if protection_name == "closed" else protection_name
        text = TOML.format(protection=protection_name, sites=sites, rounds=rounds)
        folder.mkdir(exist_ok=True)
        ALIVE.append(self)
        self.folder, self.text, self.study = folder, text, Study.parse(text)
        self.names = tuple(f"hospital-{index}" for index in range(1, sites + 1))
        self.aggregator = Identity.generate("aggregator")
        identities = [Identity.generate(name) for name in self.names]
        self.roster = Roster.of(self.aggregator, identities)
        self.central = CentralStudy(self.study, self.roster)
        self.out = folder / "run"
        self.down: dict[str, set[str]] = {}
        self.made = {
            one.name: Hospital(self.central, one, folder / f"{one.name}.jsonl") for one in identities
        }
        self.sites: dict[str, Any] = {name: one.site for name, one in self.made.items()}

    @property
    def handled(self) -> int:
        """How many frames were worked on."""
        return sum(len(one.answered) for one in self.made.values())

    def handle(self, name: str, frame: Buffer) -> Buffer:
        return self.made[name].handle(frame)

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
        for one in self.made.values():
            one.close()

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

    def failed(self, sites: Collection[str]) -> Collection[str]:
        """Those of sites that refused which are waited for; none."""
        del sites
        return ()

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
