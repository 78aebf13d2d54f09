"""Training in a process of its own: what it gives, how it pays, and what its death costs."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from secfed.algorithms.federated_averaging.weighted_mean import WeightedMeanSite
from secfed.algorithms.framework.base import SiteProgram
from secfed.deploy.agent import training
from secfed.deploy.agent.training import Stopping, TrainingDied, TrainingProcess
from secfed.engine.trainer import Trainer
from secfed.engine.wire import Job
from secfed.errors import BudgetExceeded, ConfigError, MalformedMessage
from secfed.site.containment import NOT_FINITE, Failure, contained
from secfed.study.build import build
from secfed.study.study import Study
from tests.deploy.agent_case import NAMES, PRIVATE, TOML
from tests.forks import Fork

KEY = bytes(range(32))
REAL_POPEN = subprocess.Popen


class Book:
    """A ledger that pays until it is empty."""

    def __init__(self, payments: int) -> None:
        self.left, self.paid = payments, []

    def spend(self, event: Any, **where: Any) -> None:
        if not self.left:
            raise BudgetExceeded("nothing is left", remedy="wait")
        self.left -= 1
        self.paid.append((event, where))


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    made: list[TrainingProcess] = []

    def start(
        toml: str = TOML, book: Any = None, kept: Any = None, site_seed: int | None = None, **more: Any
    ) -> TrainingProcess:
        process = TrainingProcess(
            Job(site=NAMES[0], settings=toml, study="tiny-id", site_seed=site_seed),
            gpu=False,
            log_path=tmp_path / "training.log",
            local_key=None if book is None else lambda _number, _exchange: KEY,
            ledger=book,
            stored=lambda: kept or {},
            **more,
        )
        made.append(process)
        return process

    yield start
    for process in made:
        process.close()


def _work(toml: str) -> tuple[Any, Any]:
    algorithm = build(Study.parse(toml))
    exchange = algorithm.exchanges(1)[0]
    return exchange, algorithm.server().broadcast(1, exchange)


def test_it_gives_what_the_program_gives_and_a_death_costs_one_exchange(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training.subprocess, "Popen", REAL_POPEN)  # its command and its environment
    exchange, state = _work(TOML)
    process = started()
    given = process.contribute(1, exchange, state)
    expected = build(Study.parse(TOML)).site(NAMES[0]).contribute(1, exchange, state)
    assert set(given) == set(expected)
    for name, value in expected.items():
        assert torch.equal(given[name], torch.as_tensor(value, dtype=given[name].dtype)), name
    pid = process._process.pid
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"CUDA_VISIBLE_DEVICES=\0" in environment
    assert b"PASSPHRASE" not in environment
    assert stat.S_IMODE((tmp_path / "training.log").stat().st_mode) == 0o600
    monkeypatch.setattr(training.subprocess, "Popen", Fork)
    settled = process.settled(1, exchange)
    alarms: list[Failure] = []

    def dying() -> Any:
        os.kill(pid, 9)
        return process.contribute(1, exchange, state)

    zeros = contained(1, exchange, dying, lambda: settled, alarms.append)
    assert [alarm.kind for alarm in alarms] == ["TrainingDied"]
    for name, value in zeros.items():
        assert torch.equal(value.double(), torch.as_tensor(settled.get(name, 0.0)).expand_as(value)), name
    assert process.deaths == 1
    assert process.kept == {}  # what was kept before stays
    (tmp_path / "training.log").write_text("why it died")
    again = process.contribute(1, exchange, state)  # a new process
    assert all(torch.equal(again[name], given[name]) for name in given)
    assert (tmp_path / "training.log.1").read_text() == "why it died"


def test_it_works_from_the_seed_of_the_site_and_repeats_its_work_in_another_process(started: Any) -> None:
    exchange, state = _work(TOML)
    one = started(site_seed=7).contribute(1, exchange, state)

    def here(site_seed: int) -> Any:
        trainer = Trainer(Job(site=NAMES[0], settings=TOML, site_seed=site_seed), Any, {})
        return trainer.contribute({"round": 1, "exchange": exchange.name}, state)[0]

    again, two = here(7), here(8)
    expected = build(Study.parse(TOML), site_seed=7).site(NAMES[0]).contribute(1, exchange, state)
    assert all(torch.equal(one[name], again[name]) for name in one)
    updates = [name for name in one if name.startswith("update/")]
    assert all(torch.equal(one[name], torch.as_tensor(expected[name])) for name in updates)
    assert any(not torch.equal(one[name], two[name]) for name in updates)


class Drawing(SiteProgram):
    """A program of somebody's own that draws from torch's global generator."""

    def __init__(self) -> None:
        self.drawn: list[torch.Tensor] = []

    def contribute(self, *_: object) -> dict[str, torch.Tensor]:
        self.drawn.append(torch.rand(4))
        return {}


def test_own_code_draws_from_the_seed_of_the_site_too_and_the_same_again() -> None:
    def drawn(site_seed: int | None) -> torch.Tensor:
        trainer = Trainer(Job(site=NAMES[0], settings=TOML, site_seed=site_seed), Any, {})
        program = Drawing()
        trainer._program = program
        trainer.contribute({"round": 1, "exchange": "update"}, {})
        return program.drawn[0]

    assert torch.equal(drawn(7), drawn(7))
    assert not torch.equal(drawn(7), drawn(8))
    torch.manual_seed(1)
    simulated = drawn(None)
    torch.manual_seed(1)
    assert torch.equal(drawn(None), simulated)  # nothing is changed there


def test_private_steps_are_paid_here_and_not_taken_without(started: Any) -> None:
    exchange, state = _work(PRIVATE)
    book = Book(1)
    process = started(PRIVATE, book)
    process.use_privacy(None)
    first = process.contribute(1, exchange, state)
    ((_, where),) = book.paid
    assert where == {"study": "tiny-id", "round_number": 1, "exchange": "update"}
    kept = dict(process.kept)
    assert set(kept) == {"clip_norm/train"}
    with pytest.raises(BudgetExceeded):
        process.contribute(1, exchange, state)
    # The same key gives the same release, in another process too; the clipping norm goes on where it was.
    other = started(PRIVATE, Book(9))
    again = other.contribute(1, exchange, state)
    assert all(torch.equal(again[name], first[name]) for name in first)
    moved = started(PRIVATE, Book(9), kept)
    third = moved.contribute(1, exchange, state)
    assert float(moved.kept["clip_norm/train"]) != float(kept["clip_norm/train"])
    assert any(not torch.equal(third[name], first[name]) for name in first)


def test_work_that_diverges_is_contained_in_the_process_which_goes_on(started: Any) -> None:
    toml = TOML.replace("learning_rate = 0.1", "learning_rate = 1e38")
    exchange, state = _work(toml)
    alarms: list[Failure] = []
    process = started(toml, alarm=alarms.append)
    given = process.contribute(1, exchange, state)
    pid = process._process.pid
    assert NOT_FINITE in {alarm.kind for alarm in alarms}
    assert "update" in {name for alarm in alarms for name in alarm.fields}
    assert all(bool(torch.isfinite(value).all()) for value in given.values())
    assert not any(bool(value.any()) for name, value in given.items() if name.startswith("update/"))
    assert float(given["weight"]) > 0
    process.contribute(1, exchange, state)
    assert process._process.pid == pid


def test_what_is_settled_is_asked_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(_self: object, number: int, exchange: Any) -> dict[str, float]:
        return {"weight": number / 4} if exchange.name == "update" else {}

    monkeypatch.setattr(WeightedMeanSite, "settled", settled, raising=False)
    trainer = Trainer(Job(site=NAMES[0], settings=TOML, study="tiny-id"), cast("Any", None), {})
    assert trainer.settled({"round": 1, "exchange": "update"}) == {"weight": torch.tensor(0.25).double()}
    monkeypatch.setattr(WeightedMeanSite, "contribute", lambda *_: {"weight": float("nan")})
    given, _, failures = trainer.contribute({"round": 1, "exchange": "update"}, {})
    assert float(given["weight"]) == 0.25
    assert not any(bool(value.any()) for name, value in given.items() if name != "weight")
    assert failures


def test_a_process_that_says_what_is_no_message_counts_as_dead(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, state = _work(TOML)
    process = started()
    process.start()
    monkeypatch.setattr(training, "_DYING_S", 0.1)

    def babble(_connection: Any) -> Any:
        raise MalformedMessage("the training process said something that is no message")

    monkeypatch.setattr(training, "receive", babble)
    with pytest.raises(TrainingDied):  # a malformed message of the aggregator would be refused
        process.contribute(1, exchange, state)


def test_what_is_kept_here_and_damaged_is_no_malformed_broadcast(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold what an earlier round made of records, so it must not become a refusal."""
    said = {"do": "failed", "kind": "MalformedMessage", "message": "what this site kept is damaged"}
    monkeypatch.setattr(training, "receive", lambda _connection: (said, {}))
    exchange, _ = _work(TOML)
    with pytest.raises(ConfigError, match="damaged"):
        started().settled(1, exchange)


def test_a_refused_payment_passes_whatever_the_process_makes_of_it(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, state = _work(PRIVATE)
    process = started(PRIVATE, Book(0))
    receive = training.receive

    def contained_there(connection: Any) -> Any:
        said, tensors = receive(connection)
        return ({"do": "done"}, {}) if said.get("do") == "failed" else (said, tensors)

    monkeypatch.setattr(training, "receive", contained_there)
    with pytest.raises(BudgetExceeded):
        process.contribute(1, exchange, state)


def test_stopping_leaves_no_outcome(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, state = _work(TOML)
    process = started()
    process.start()
    receive = training.receive

    def slowly(connection: Any) -> Any:
        time.sleep(0.2)
        return receive(connection)

    monkeypatch.setattr(training, "receive", slowly)
    os.kill(process._process.pid, 19)  # SIGSTOP: it never answers
    timer = threading.Timer(0.1, process.stop)
    timer.start()
    with pytest.raises(Stopping):
        process.contribute(1, exchange, state)
    timer.join()


@pytest.mark.parametrize("place", [{"round": 2, "exchange": "update"}, {"round": 1, "exchange": "other"}, {}])
def test_a_payment_is_for_the_exchange_that_was_asked_for(started: Any, place: dict[str, Any]) -> None:
    process = started(PRIVATE, Book(1))
    with pytest.raises(MalformedMessage):
        process._pay({"do": "spend", "event": {}, **place}, 1, "update")
