"""A round of two exchanges whose aggregator dies and goes on in its middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.framework.base import Algorithm, ServerProgram, SiteProgram
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Identity, Roster
from secfed.protection.registry import PLAIN
from secfed.records.chain_file import verify_file
from secfed.records.transcript import SUMMED, TRANSCRIPT, Transcript
from secfed.server.checkpoints import KeptRun
from secfed.server.coordinator import Coordinator
from secfed.server.round import Rules
from secfed.site.attempt_store import NullStore
from secfed.site.journal import Journal
from secfed.site.parts import Agreement, Draws, Member, Services
from secfed.site.session import Site
from secfed.storage import failpoints
from secfed.wire.layout import Exchange, Field, Layout, Totals
from tests.secfed.checkpoint_case import SITES, Crash


class TwoStep(Algorithm):
    """Sums a number, then a number that depends on the first sum."""

    def __init__(self) -> None:
        layout = Layout((Field("x", (), 1000.0, 64),), sites=3)
        self.plan = (Exchange("first", "all", layout), Exchange("second", "all", layout))

    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        return self.plan if round_number <= 2 else ()

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[str]) -> Sequence[str]:
        return sites

    def server(self) -> TwoStepServer:
        return TwoStepServer()

    def site(self, site_id: str) -> Any:
        return TwoStepSite(SITES.index(site_id) + 1)


class TwoStepServer(ServerProgram):
    def __init__(self) -> None:
        self.state = {"x": torch.zeros((), dtype=torch.float64)}

    def broadcast(self, *_: Any) -> dict[str, torch.Tensor]:
        return dict(self.state)

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        self.state = {"x": self.state["x"] / 8 + totals["x"]}

    def model(self) -> dict[str, torch.Tensor]:
        return self.state

    def metrics(self) -> dict[int, Any]:
        return {}

    def save(self) -> dict[str, torch.Tensor]:
        return self.state

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self.state = dict(state)


class TwoStepSite(SiteProgram):
    def __init__(self, weight: int) -> None:
        self._weight = weight

    def contribute(self, round_number: int, exchange: Exchange, broadcast: Any) -> dict[str, float]:
        return {"x": self._weight + float(broadcast["x"]) / 4 + (exchange.name == "second")}


class Zeros:
    def words(self, count: int) -> Any:
        return np.zeros(count, np.uint32)


class Toy:
    """Sites that answer repeated frames from a record, and an aggregator that dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.identity = Identity.generate("aggregator")
        identities = [Identity.generate(name) for name in SITES]
        self.roster = Roster.of(self.identity, identities)
        self.algorithm = TwoStep()
        self.answered: dict[tuple[str, bytes], bytes] = {}
        self.asked: list[tuple[str, bytes]] = []
        self.sites = {
            identity.name: Site(
                Member(identity, self.roster),
                Agreement("study", self.algorithm, PLAIN, self.roster.sites),
                self.algorithm.site(identity.name),
                limits=SiteLimits(min_cohort=2, min_threshold=2),
                draws=replace(Draws.seeded(0, identity.name), rounding=lambda *_: Zeros()),
                store=NullStore(Journal(), "study"),
                services=Services(Transcript(identity, study="study", roster_digest=self.roster.digest)),
            )
            for identity in identities
        }

    def ask(self, stage: str, requests: Mapping[str, Any], on_reply: Any) -> None:
        for site, frame in requests.items():
            here = (site, bytes(frame))
            if here not in self.answered:
                self.asked.append(here)
                self.answered[here] = bytes(self.sites[site].handle(frame))
            on_reply(site, self.answered[here])

    def run(self) -> tuple[torch.Tensor, list[tuple[int, str]]]:
        path = self.folder / "transcript.jsonl"
        rules = Rules("study", self.identity, self.roster, PLAIN, lambda cohort: cohort, 2)
        log = Transcript(self.identity, study="study", roster_digest=self.roster.digest, sink=path)
        with log:
            entries = verify_file(path, self.identity.public_bytes, TRANSCRIPT)
            run = KeptRun(self.folder, "study", log, entries, self.ask)
            try:
                coordinator = Coordinator(self.algorithm, 2, rules, run.asks.ask, run.log, run)
                coordinator.run(lambda _: None)
            finally:
                run.asks.close()
        entries = verify_file(path, self.identity.public_bytes, TRANSCRIPT)
        sums = [(int(e.body["round"]), str(e.body["exchange"])) for e in entries if e.kind == SUMMED]
        return coordinator.server.model()["x"], sums


def test_a_round_of_two_exchanges_killed_at_any_step(tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    names: list[str] = []
    monkeypatch.setattr(failpoints, "failpoint", names.append)
    whole = Toy(tmp_path / "whole")
    expected = whole.run()
    assert expected[1] == [(1, "first"), (1, "second"), (2, "first"), (2, "second")]
    for death in range(1, len(names) + 1, 3):
        folder = tmp_path / str(death)
        folder.mkdir()
        toy, count = Toy(folder), 0

        def reached(_: str, death: int = death) -> None:
            nonlocal count
            count += 1
            if count == death:
                raise Crash

        monkeypatch.setattr(failpoints, "failpoint", reached)
        with pytest.raises(Crash):
            toy.run()
        assert toy.run() == expected
        assert len(toy.asked) == len(whole.asked)  # every frame is that of the undisturbed run
