"""Engines: the same model, transcripts and ledgers wherever hospitals train, and whatever dies meanwhile."""

from __future__ import annotations

import json
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.engine import pool, processes
from secfed.engine.options import EngineOptions
from secfed.errors import ConfigError, RoundAborted
from secfed.runs.run_report import RunReport
from secfed.simulation.simulate import simulate
from secfed.study.study import Study
from tests.secfed.privacy_case import study as private_study

PLAIN = """
[study]
name = "engines"
rounds = 2
seed = 5
[algorithm]
name = "{algorithm}"
{options}
[model]
name = "mlp"
[data]
name = "digits"
sites = 5
[protection]
name = "masked"
colluders = 1
"""
FORKS = EngineOptions("processes", 2)


def _study(algorithm: str = "fedavg", options: str = "local_epochs = 1") -> Study:
    return Study.parse(PLAIN.format(algorithm=algorithm, options=options))


def _chains(folder: Path) -> dict[str, list[Any]]:
    """What every chain of a run says, without what follows from identities made on the spot, and times."""

    def told(value: Any) -> Any:
        if isinstance(value, dict):
            return {told(key): told(item) for key, item in value.items() if key != "time_s"}
        if isinstance(value, list):
            return [told(item) for item in value]
        return len(value) if isinstance(value, str) and len(value) >= 64 else value

    found = {}
    for path in sorted(folder.rglob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[str(path.relative_to(folder))] = [(line["kind"], told(line["body"])) for line in lines]
    return found


def _run(
    study: Study, out: Path, engine: EngineOptions, **more: Any
) -> tuple[RunReport, bytes, dict[str, list[Any]]]:
    report = simulate(study, out=out, engine=engine, **more)
    return report, (out / "model.safetensors").read_bytes(), _chains(out)


CASES = {
    "state at the sites": _study("scaffold"),
    "noise in local steps": private_study("record"),
    "groups": private_study("group", privacy="group_size = 4"),
    "noise for whole sites": private_study("site", epsilon=50.0),
    "encrypted": _study().replace("protection.name", "encrypted"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_engine_changes_nothing(name: str, tmp_path: Path) -> None:
    one, model, chains = _run(CASES[name], tmp_path / "inline", EngineOptions())
    two, again, others = _run(CASES[name], tmp_path / "processes", FORKS)
    assert model == again
    assert chains == others
    assert any("transcript" in name for name in chains)
    assert CASES[name].privacy is None or any("ledger" in name for name in chains)
    assert [row.metrics for row in one.rounds] == [row.metrics for row in two.rounds]
    assert (one.privacy, one.final, one.zeroed) == (two.privacy, two.final, two.zeroed)


@pytest.fixture
def killing(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Kills the worker that is told ``do`` for the n-th time, or of one site, just before.

    One that takes its place is a fork, too: to import torch takes seconds.
    """
    monkeypatch.setattr(processes.Processes, "connect", processes.Processes._forked)
    told: dict[str, int] = {}
    deadly: dict[str, int] = {}
    real = processes.ProcessLink.ask
    lock = threading.Lock()

    def ask(self: Any, head: Any, tensors: Any, timeout_s: float | None) -> Any:
        what = head["do"]
        with lock:
            told[what] = told.get(what, 0) + 1
            dies = deadly.get(what) == told[what] or f"{what} {head.get('site')}" in deadly
        if dies:
            self.kill()
        return real(self, head, tensors, timeout_s)

    monkeypatch.setattr(processes.ProcessLink, "ask", ask)
    return deadly


@pytest.mark.parametrize(("what", "which"), [("work", 3), ("broadcast", 2), ("paid", 4), ("start", 2)])
def test_a_worker_that_dies_costs_time_only(
    what: str, which: int, killing: dict[str, int], tmp_path: Path
) -> None:
    study = CASES["noise in local steps"]
    one, model, chains = _run(study, tmp_path / "inline", EngineOptions())
    killing[what] = which
    two, again, others = _run(study, tmp_path / "processes", FORKS)
    assert model == again
    assert chains == others  # nothing is paid twice
    assert one.privacy == two.privacy


@pytest.mark.slow
def test_a_process_that_starts_afresh_gives_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes.Processes, "_forked", processes.Processes.connect)
    _, model, chains = _run(CASES["groups"], tmp_path / "inline", EngineOptions())
    _, again, others = _run(CASES["groups"], tmp_path / "processes", FORKS)
    assert (model, chains) == (again, others)


def test_work_that_kills_every_worker_drops_one_site(
    killing: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_TRIES", 2)
    killing["work hospital-1"] = 1
    report = simulate(_study().replace("study.rounds", 1), engine=FORKS)
    assert report.rounds[0].survivors == ("hospital-2", "hospital-3", "hospital-4", "hospital-5")
    assert "2 workers in a row ended during the work of hospital-1" in str(report.rounds[0].gave_up)


def test_a_site_that_is_late_drops_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = processes.ProcessLink.ask

    def ask(self: Any, head: Any, tensors: Any, timeout_s: float | None) -> Any:
        assert (timeout_s is not None and 500 < timeout_s <= 600) == (
            head["do"] == "work"
        )  # to start a process takes what it takes
        if head.get("site") == "hospital-2" and head["do"] == "work":
            raise pool.Late("no answer in time")
        return real(self, head, tensors, timeout_s)

    monkeypatch.setattr(processes.ProcessLink, "ask", ask)
    monkeypatch.setattr(processes.Processes, "connect", processes.Processes._forked)
    options = EngineOptions("processes", 2, site_deadline_s=600.0)
    report = simulate(_study().replace("study.rounds", 1), engine=options)
    assert [row.survivors for row in report.rounds] == [tuple(f"hospital-{n}" for n in (1, 3, 4, 5))]
    assert report.rounds[0].gave_up == "hospital-2 gave up: hospital-2 did not finish its work in 600 seconds"


def test_a_worker_that_does_not_answer_is_late_and_one_that_is_gone_has_died() -> None:
    near, far = multiprocessing.Pipe()
    link = processes.ProcessLink(near, lambda: None, lambda _seconds: None)
    with pytest.raises(pool.Late):
        link.ask({"do": "work"}, {}, 0.01)
    far.close()
    with pytest.raises(pool.WorkerDied):
        link.ask({"do": "work"}, {}, None)


REAL_SERVE = processes.serve


def test_a_budget_that_is_spent_refuses_alike(tmp_path: Path) -> None:
    study, budgets = CASES["noise in local steps"], {"hospital-2": 4.0}
    one, model, chains = _run(study, tmp_path / "inline", EngineOptions(), budgets=budgets)
    two, again, others = _run(study, tmp_path / "processes", FORKS, budgets=budgets)
    assert (model, chains) == (again, others)
    assert [row.gave_up for row in one.rounds] == [row.gave_up for row in two.rounds]
    assert one.rounds[-1].gave_up


class Wrong:
    """A site program of somebody's own, with a mistake in it."""

    def __init__(self, program: Any) -> None:
        self.__dict__.update(program.__dict__)
        self.save, self.settled = program.save, program.settled

    def contribute(self, *_: Any) -> Any:
        return torch.zeros(3) @ torch.zeros(4)


def test_a_defect_is_one_error_with_file_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(connection: Any, built: Any) -> None:
        real = built[1].site
        built[1].site = lambda name: Wrong(real(name))
        REAL_SERVE(connection, built)

    monkeypatch.setattr(processes, "serve", wrong)
    with pytest.raises(pool.Defect, match=r"RuntimeError: .*test_engines.py, line \d+\)"):
        simulate(_study().replace("study.rounds", 1), engine=FORKS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "threads"}, "--engine threads: unknown"),
        ({"name": "processes:8"}, "--engine processes:8: unknown"),
        ({"name": "processes", "workers": 0}, "--workers 0"),
        ({"name": "processes", "site_deadline_s": 0.0}, "--site-deadline 0"),
        ({"workers": 2}, "--engine inline"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EngineOptions(**options)


class Misfitting(Wrong):
    """Gives a field that its layout does not have."""

    def contribute(self, *_: Any) -> Any:
        return {"more": torch.zeros(3)}


@pytest.mark.parametrize("engine", [EngineOptions(), FORKS], ids=["inline", "processes"])
def test_what_does_not_fit_is_an_error_under_every_engine(
    engine: EngineOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = _study().replace("study.rounds", 1)
    real = FedAvg.site
    monkeypatch.setattr(FedAvg, "site", lambda self, name: Misfitting(real(self, name)))
    with pytest.raises(RoundAborted, match="summands do not match the layout"):
        simulate(study, engine=engine)
