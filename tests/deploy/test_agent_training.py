"""Training in a process of its own: what it gives, how it pays, and what its death costs."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from secfed.algorithms.registry import build
from secfed.deploy import training
from secfed.deploy.training import Stopping, TrainingProcess
from secfed.deploy.training_wire import Job
from secfed.errors import BudgetExceeded, MalformedMessage, RoundAborted
from secfed.study import Study
from tests.deploy.agent_case import NAMES, TOML

PRIVATE = (
    TOML.replace("learning_rate = 0.1", 'learning_rate = 0.1\nweighting = "equal"').replace(
        "test_fraction = 0.25", "test_fraction = 0.25\nstandardize = false"
    )
    + '[privacy]\nunit = "record"\nepsilon = 8.0\ndelta = 1e-4\naccountant = "rdp"\nclip_quantile = 0.5\n'
)
KEY = bytes(range(32))


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

    def start(toml: str = TOML, book: Any = None, kept: Any = None) -> TrainingProcess:
        process = TrainingProcess(
            Job(site=NAMES[0], settings=toml, study="tiny-id"),
            gpu=False,
            log_path=tmp_path / "training.log",
            local_key=None if book is None else lambda _number, _exchange: KEY,
            ledger=book,
            kept=lambda: kept or {},
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


def test_it_gives_what_the_program_gives_and_a_death_costs_one_exchange(started: Any, tmp_path: Path) -> None:
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
    os.kill(pid, 9)
    with pytest.raises(RoundAborted, match="signal 9"):
        process.contribute(1, exchange, state)
    assert process.deaths == 1
    again = process.contribute(1, exchange, state)  # a new process
    assert all(torch.equal(again[name], given[name]) for name in given)


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


def test_stopping_leaves_no_outcome(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, state = _work(TOML)
    process = started()
    process.check()
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
