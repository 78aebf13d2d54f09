"""A bounded number of site programs, however many sites: the same results, and nothing else stays."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from secfed.algorithms.framework.base import SiteProgram
from secfed.engine import choice, pool
from secfed.engine.interface import Inline
from secfed.engine.kept_programs import KeptPrograms, MadeWhenNeeded
from secfed.engine.options import EngineOptions
from secfed.errors import DataError
from secfed.records.chain_file import BriefChainFile
from secfed.simulation import parties
from secfed.study.build import build
from tests.secfed.engine.test_engines import CASES, FORKS, _run, _study
from tests.secfed.engine.test_pool import Counters, _add
from tests.secfed.privacy_case import study as private_study

MORE = {
    "models of the sites' own": _study("ditto", "local_epochs = 1"),
    "noise in sums over records": private_study(
        "record", protection="masked", privacy='noise = "sum"'
    ).replace("algorithm", {"name": "fedsgd", "learning_rate": 0.5, "records": 400, "weighting": "equal"}),
}


def few(monkeypatch: pytest.MonkeyPatch, programs: int) -> None:
    """Let a process hold so many programs."""
    monkeypatch.setattr(choice, "Inline", lambda algorithm, seed: Inline(algorithm, seed, programs))
    monkeypatch.setattr(pool.Pool, "programs", programs)


@pytest.mark.parametrize("name", ["state at the sites", "noise in local steps", *MORE])
def test_programs_that_are_put_away_and_made_again_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = {**CASES, **MORE}[name]
    _, model, chains = _run(study, tmp_path / "all", EngineOptions())
    few(monkeypatch, 1)
    for engine in (EngineOptions(), FORKS):
        _, again, others = _run(study, tmp_path / engine.name, engine)
        assert (again, others) == (model, chains)


class Counter(SiteProgram):
    """Adds how often it has worked."""

    alive = 0

    def __init__(self) -> None:
        self.count = 0
        Counter.alive += 1

    def __del__(self) -> None:
        Counter.alive -= 1

    def contribute(self, *_: Any) -> Any:
        self.count += 1
        return {"count": self.count}

    def save(self) -> dict[str, torch.Tensor]:
        return {"count": torch.tensor(self.count)}

    def load(self, state: Any) -> None:
        self.count = int(state["count"])


def test_no_more_programs_than_are_kept_are_there() -> None:
    kept = KeptPrograms(2)
    programs = [MadeWhenNeeded(f"site-{n}", Counter, kept, 0) for n in range(5)]
    exchange = build(_study()).exchanges(1)[0]
    for wanted in (1, 2, 3):
        for program in programs:
            assert program.contribute(1, exchange, {}) == {"count": wanted}
    gc.collect()
    assert Counter.alive == 2


def test_what_is_wrong_with_records_shows_before_the_first_round() -> None:
    def made() -> SiteProgram:
        raise DataError("no records")

    with pytest.raises(DataError):
        MadeWhenNeeded("site", made, KeptPrograms(1), 0)


def test_a_worker_is_told_whom_to_put_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.Pool, "programs", 2)
    engine = Counters(1)
    programs = {site: engine.program(site, lambda _failure: None, None) for site in "abc"}
    worker = engine.all[0]
    assert list(worker.holds) == ["b", "c"]
    assert _add(programs["b"]) == 1
    assert list(worker.holds) == ["c", "b"]
    assert _add(programs["a"]) == 1
    assert list(worker.holds) == ["b", "a"]
    assert _add(programs["a"]) == 2


def test_no_file_stays_open_for_each_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor a database."""
    there: list[int] = []
    real = parties.Consortium.connect

    def connect(self: Any, *arguments: Any) -> Any:
        there.append(len(os.listdir("/proc/self/fd")))
        return real(self, *arguments)

    monkeypatch.setattr(parties.Consortium, "connect", connect)
    for sites in (4, 12):
        _run(_study().replace("data.sites", sites), tmp_path / str(sites), EngineOptions())
    assert there[1] <= there[0] + 1


def test_a_file_that_is_open_for_a_line_only_continues(tmp_path: Path) -> None:
    file = BriefChainFile(tmp_path / "lines")
    file.append(b"a\n")
    file.close()
    file.append(b"b\n")
    assert (tmp_path / "lines").read_bytes() == b"a\nb\n"
