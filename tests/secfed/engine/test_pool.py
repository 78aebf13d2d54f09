"""The pool by itself: who works for a site, from which state, and what a worker is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from secfed.engine.pool import Link, Pool, RemoteProgram, Worker, WorkerDied
from secfed.engine.wire import Job, raise_error
from secfed.errors import SecfedError
from secfed.wire.layout import Exchange, Field, Layout

EXCHANGE = Exchange("fit", "all", Layout((Field("count", (), 10.0, 32),), sites=3))


class Counting:
    """A worker whose program adds how often the site has contributed; dies when it is told to."""

    def __init__(self) -> None:
        self.state: dict[str, float] = {}
        self.told: list[str] = []
        self.dies = False

    def ask(
        self, head: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], timeout_s: float | None
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        del timeout_s
        self.told.append(head["do"])
        if self.dies:
            raise WorkerDied("gone")
        if head["do"] == "start":
            self.state[head["site"]] = float(tensors.get("count", torch.tensor(0.0)))
            return {"weak_delta": False}, {}
        if head["do"] == "broadcast":
            return {}, {}
        count = self.state[head["site"]] = self.state[head["site"]] + 1
        return {"failed": []}, {"s/count": torch.tensor(count), "k/count": torch.tensor(count)}

    def close(self) -> None:
        """Nothing."""


class Counters(Pool):
    """Workers that count; keeps all that it ever made."""

    def __init__(self, workers: int) -> None:
        super().__init__(Job("", ""), workers, None)
        self.made: list[Counting] = []

    def connect(self, _number: int) -> Link:
        self.made.append(Counting())
        return self.made[-1]


def _add(program: RemoteProgram, value: float = 0.0) -> float:
    return float(program.contribute(1, EXCHANGE, {"value": torch.tensor(value)})["count"])


def test_a_site_goes_on_from_its_newest_state_wherever_it_works() -> None:
    pool = Counters(2)
    program = pool.program("a", lambda _failure: None, None)
    assert _add(program) == 1
    with pool.borrow(pool.all[0]):  # its worker is busy for another site
        assert _add(program) == 2
    assert len(pool.made) == 2
    assert _add(program) == 3  # the first worker has the state of the first time
    pool.made[0].dies = True
    assert _add(program) == 4
    assert len(pool.made) == 3


def test_a_worker_is_told_no_more_than_it_needs() -> None:
    pool = Counters(1)
    programs = [pool.program(site, lambda _failure: None, None) for site in "ab"]
    for program in programs:
        _add(program)
    _add(programs[0], 1.0)
    told = pool.made[0].told
    assert told == ["start", "start", "broadcast", "work", "work", "broadcast", "work"]


def test_one_that_works_elsewhere_takes_the_free_worker() -> None:
    pool = Counters(3)
    home = pool.all[1]
    with pool.borrow(home) as first, pool.borrow(home) as second:
        assert first is home
        assert second is not home


def test_a_closed_pool_starts_nobody() -> None:
    pool = Counters(2)
    program = pool.program("a", lambda _failure: None, None)
    pool.close()
    with pytest.raises(WorkerDied):
        _add(program)
    assert len(pool.made) == 1


def test_a_link_is_closed_once_whoever_finds_it_lost() -> None:
    worker, closed, both = Worker(0), list[int](), threading.Barrier(2)

    class Slow:
        def ask(self, *_: Any) -> Any:
            raise AssertionError

        def close(self) -> None:
            closed.append(1)
            time.sleep(0.05)

    def lose() -> None:
        both.wait()
        worker.lose()

    worker.link = Slow()
    threads = [threading.Thread(target=lose) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert closed == [1]


def test_an_agent_hears_of_any_error_of_a_training_process_as_an_expected_one() -> None:
    for kind in ("Defect", "KeyboardInterrupt", "SystemExit"):
        with pytest.raises(SecfedError, match="what it says"):
            raise_error({"do": "failed", "kind": kind, "message": "what it says"})
