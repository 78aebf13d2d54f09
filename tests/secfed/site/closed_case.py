"""A study with closed sums, and what there is to see in a simulation of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.messages import ClosedSum
from secfed.crypto.masked.server import MaskedServer
from secfed.protection.closed import Closed
from secfed.runs.run_folder import prepare
from secfed.runs.run_report import RunReport, SilentObserver
from secfed.server.opened_rounds import OpenedRounds
from secfed.simulation.dropouts import Dropout
from secfed.simulation.simulate import simulate
from secfed.simulation.transport import SimulatedTransport
from secfed.site import build
from secfed.site.opening_session import OpeningSession
from secfed.study.study import Study
from secfed.wire.transport import OnReply

STUDY = """
[study]
name = "closed"
rounds = {rounds}
seed = 5
[algorithm]
name = "fedavg"
batch_size = 64
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
sites = 5
partition = "iid"
[protection]
name = "masked"
reveal = "sites"
bits = 20
"""
SITE = "hospital-1"


def study(rounds: int = 2) -> Study:
    return Study.parse(STUDY.format(rounds=rounds))


def run(plan: Study, out: Path | None, *drops: str) -> RunReport:
    if out is not None:
        prepare(out, overwrite=False)
    return simulate(plan, out=out, drops=[Dropout.parse(text) for text in drops], observer=SilentObserver())


@dataclass
class Seen:
    """What there was in a simulation, at the aggregator and at the sites."""

    sites: dict[str, OpeningSession] = field(default_factory=dict)
    rounds: list[OpenedRounds] = field(default_factory=list)
    sessions: list[MaskedServer] = field(default_factory=list)
    passed: list[bytes] = field(default_factory=list)  # all bytes to and from the aggregator
    sums: list[ClosedSum] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)  # the aggregator's files
    totals: list[tuple[Any, ...]] = field(default_factory=list)  # ring integers that sites opened
    models: list[Mapping[str, torch.Tensor]] = field(default_factory=list)


def watch(patch: pytest.MonkeyPatch) -> Seen:
    made = Seen()
    ask, publish, server, opened = SimulatedTransport.ask, OpenedRounds.publish, Closed.server, Closed.opened

    class Noted(OpeningSession):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            made.sites[self._identity.name] = self

    def overheard(
        self: SimulatedTransport, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply
    ) -> None:
        def note(site: str, reply: Buffer) -> None:
            made.passed.append(bytes(reply))
            on_reply(site, reply)

        made.passed.extend(bytes(message) for message in requests.values())
        ask(self, stage, requests, note)

    def note_sum(self: OpenedRounds, one: ClosedSum, members: Any) -> Any:
        made.rounds = [self]
        made.sums.append(one)
        states = publish(self, one, members)
        made.stored = [path.read_bytes() for path in self.store.folder.iterdir()]
        return states

    def note_session(self: Closed, *arguments: Any) -> MaskedServer:
        made.sessions.append(server(self, *arguments))
        return made.sessions[-1]

    def note_totals(self: Closed, *arguments: Any) -> Any:
        made.totals.append(opened(self, *arguments))
        return made.totals[-1]

    patch.setattr(build, "OpeningSession", Noted)
    patch.setattr(SimulatedTransport, "ask", overheard)
    patch.setattr(OpenedRounds, "publish", note_sum)
    patch.setattr(Closed, "server", note_session)
    patch.setattr(Closed, "opened", note_totals)
    return made
