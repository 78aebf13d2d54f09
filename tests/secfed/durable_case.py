"""A small study whose hospitals keep everything on the disk, and a link that can pull their plugs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import save

from secfed.algorithms.framework.base import ForwardingProgram
from secfed.config.cohort_rules import threshold
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.errors import SecfedError
from secfed.runs.run_folder import ledger_file
from secfed.server.coordinator import RoundOutcome
from secfed.server.make_run import make_run
from secfed.server.round import Rules
from secfed.site import durable_store, journal, local_work, opening_session
from secfed.site.containment import Failure
from secfed.site.parts import Member
from secfed.site.runtime import SiteStudy, open_site_study
from secfed.site.terms import Terms
from secfed.storage import signed_log
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import State
from secfed.wire.transport import OnReply

NAMES = ("hospital-1", "hospital-2", "hospital-3")
VICTIM = NAMES[1]
# By this seed all sites have equally many training records: their noise is sought once.
TOML = """
[study]
name = "tiny"
rounds = {rounds}
seed = 217
[algorithm]
name = "fedavg"
local_epochs = 1
batch_size = 64
learning_rate = 0.1
{algorithm}
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
sites = 3
partition = "iid"
test_fraction = 0.25
{data}
[protection]
{protection}
{privacy}
"""
PRIVACY = {
    None: "",
    "record": '[privacy]\nunit = "record"\nepsilon = 8.0\ndelta = 1e-4\naccountant = "rdp"\n',
    "site": '[privacy]\nunit = "site"\nepsilon = 20.0\ndelta = 1e-4\naccountant = "rdp"\n',
}


PROTECTION = {
    "sparse": 'name = "masked"\ngraph = "sparse"',
    "closed": 'name = "masked"\nreveal = "sites"',
}


class Killed(BaseException):
    """As if the process had been killed: no handler takes it."""


def study(protected: str, unit: str | None, rounds: int = 1) -> Study:
    text = TOML.format(
        protection=PROTECTION.get(protected, f'name = "{protected}"'),
        rounds=rounds,
        privacy=PRIVACY[unit],
        algorithm="" if unit is None else 'weighting = "equal"',
        data="" if unit is None else "standardize = false",
    )
    return Study.parse(text)


@dataclass
class Hospital:
    """One site and its folder; it can be restarted from what is on the disk."""

    terms: Terms
    identity: Identity
    roster: Roster
    state: Path
    simulated: bool = True
    trained: int = 0
    open: SiteStudy | None = None
    alarms: list[Failure] = field(default_factory=list)
    dataset: str = "wards"
    granted: bytes = b""

    def start(self) -> SiteStudy:
        if self.open is not None:
            self.open.close()
        self.open = open_site_study(
            self.terms,
            Member(self.identity, self.roster),
            self.state,
            program=self._program,
            limits=SiteLimits(),
            dataset=self.dataset,
            budgets=(),
            granted=self.granted,
            simulated=self.simulated,
            alarm=self.alarms.append,
        )
        return self.open

    def _program(self, terms: Terms, store: Any, ledger: Any) -> Any:
        del ledger
        # As the training process makes it.
        algorithm = build(terms.study, site_seed=None if self.simulated else store.site_seed())
        hospital, program = self, algorithm.site(self.identity.name)

        class Counted(ForwardingProgram):
            def contribute(self, *arguments: Any) -> Any:
                hospital.trained += 1
                return program.contribute(*arguments)

        return Counted(program)

    def handle(self, frame: Buffer) -> bytes:
        assert self.open is not None
        return bytes(self.open.site.handle(frame))

    @property
    def files(self) -> list[str]:
        assert self.open is not None
        return sorted(path.name for path in (self.open.folder / "work").iterdir())

    def payments(self) -> list[Any]:
        from secfed.dp.ledger.ledger import SPENT, verify

        with ledger_file(self.state, "wards").open("rb") as stream:
            entries = verify(stream, self.identity.public_bytes)
        return [entry for entry in entries if entry.kind == SPENT]


@dataclass
class Consortium:
    """An aggregator in this process and its hospitals."""

    chosen: Study
    folder: Path
    simulated: bool = True
    hospitals: dict[str, Hospital] = field(default_factory=dict)
    frames: list[tuple[str, str, bytes, bytes | None]] = field(default_factory=list)  # stage, site, in, out
    outcomes: list[RoundOutcome] = field(default_factory=list)
    start: State | None = None  # what the aggregator begins with, whatever the study says
    people: tuple[str, ...] = NAMES  # the members of the consortium; the study names all of them or fewer
    log: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)  # the aggregator's transcript
    # (stage, hospital, frame) -> reply or error; tests replace it
    deliver: Callable[[str, Hospital, Buffer], bytes] = lambda _stage, hospital, frame: hospital.handle(frame)

    def __post_init__(self) -> None:
        aggregator = Identity.from_seed("aggregator", hashlib.sha256(b"aggregator").digest())
        identities = [
            Identity.from_seed(name, hashlib.sha256(name.encode()).digest()) for name in self.people
        ]
        self.roster = Roster.of(aggregator, identities)
        self.terms = Terms.of(self.chosen, self.roster, self.people[0])
        for identity in (one for one in identities if one.name in self.terms.sites):
            state = self.folder / identity.name
            state.mkdir(parents=True, exist_ok=True)
            hospital = Hospital(self.terms, identity, self.roster, state, self.simulated)
            self.hospitals[identity.name] = hospital
            hospital.start()
        self.rules = Rules(
            study=self.terms.study_id,
            identity=aggregator,
            roster=self.roster,
            protection=self.terms.protection,
            threshold=partial(threshold, self.chosen.protection, len(self.people)),
            min_cohort=self.chosen.protection.min_cohort,
            sites=tuple(name for name in self.roster.sites if name in self.terms.sites),
        )

    def ask(self, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
        for name, frame in requests.items():
            reply: bytes | None = None
            try:
                reply = self.deliver(stage, self.hospitals[name], frame)
            except SecfedError as error:
                self.frames.append((f"{stage}: {error.message}", name, bytes(frame), None))
                continue
            self.frames.append((stage, name, bytes(frame), reply))
            on_reply(name, reply)

    def run(self) -> bytes:
        """The whole study; the model's bytes."""
        log = _Recorded(self.log)
        rounds = self.chosen.rounds
        with TemporaryDirectory() as sums:
            run = make_run(
                self.terms.algorithm, rounds, self.rules, self.ask, log, start=self.start, sums=Path(sums)
            )
            run.run(self.outcomes.append)
        opened = self.hospitals[VICTIM].open
        assert opened is not None
        server = run.server or opened.site.replica
        assert server is not None
        model = server.model()
        for hospital in self.hospitals.values():
            assert hospital.open is not None
        return save({name: torch.as_tensor(value).contiguous() for name, value in model.items()})

    def close(self) -> None:
        for hospital in self.hospitals.values():
            if hospital.open is not None:
                hospital.open.close()


@dataclass
class _Recorded:
    entries: list[tuple[str, Mapping[str, object]]]

    def append(self, kind: str, body: Mapping[str, object]) -> None:
        self.entries.append((kind, body))


class Plug:
    """Raises :class:`Killed` at the n-th passage of a named point, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.point, self.left, self.pulled = "", 0, 0
        self.passed: list[str] = []
        self.only = False
        for module in (local_work, durable_store, journal, opening_session, signed_log):
            monkeypatch.setattr(module, "failpoint", self.reached)

    def set(self, point: str, count: int = 1) -> None:
        self.point, self.left, self.pulled = point, count, 0

    def reached(self, name: str) -> None:
        if not self.only:
            return
        self.passed.append(name)
        if name == self.point:
            self.left -= 1
            if self.left == 0:
                self.pulled += 1
                raise Killed(name)


def pulling(plug: Plug) -> Callable[[str, Hospital, Buffer], bytes]:
    """Deliver to the victim until it has answered, restarting it whenever it died."""

    def deliver(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        del stage
        plug.only = hospital.identity.name == VICTIM
        try:
            for _ in range(3):
                try:
                    return hospital.handle(frame)
                except Killed:
                    hospital.start()
            raise AssertionError("it dies every time")
        finally:
            plug.only = False

    return deliver


def with_stack(stack: ExitStack, consortium: Consortium) -> Consortium:
    stack.callback(consortium.close)
    return consortium


Begun = Callable[..., Consortium]


def until(consortium: Consortium, stage: str) -> Hospital:
    """Run until the victim has answered the first request of a stage."""

    def deliver(now: str, hospital: Hospital, frame: Buffer) -> bytes:
        reply = hospital.handle(frame)
        if (now, hospital.identity.name) == (stage, VICTIM):
            raise Killed(stage)
        return reply

    consortium.deliver = deliver
    with pytest.raises(Killed):
        consortium.run()
    return consortium.hospitals[VICTIM]
