"""Batches that a thread makes ahead of the steps: the same ones, in the same order, and no thread is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from secfed.algorithms.vision_language.stage import run_stage
from secfed.dp.training import step
from secfed.dp.training.losses import Batch
from secfed.dp.training.step import Steps, ahead
from tests.dp.toys import no_thread_is_left

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Made:
    """Random batches, and what became of them."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.threads: list[threading.Thread] = []
        self._count, self._fails_at = count, fails_at

    def __iter__(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(3)
        for number in range(self._count):
            self.threads.append(threading.current_thread())
            if number == self._fails_at:
                raise OSError("a file that is cut off")
            yield (torch.randn(2, generator=generator),)


@pytest.fixture(autouse=True)
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Where batches were pinned; nothing is, as there is no GPU."""
    threads = []

    def pin(batch: Batch) -> Batch:
        threads.append(threading.current_thread())
        return batch

    monkeypatch.setattr(step, "_pinned", pin)
    return threads


def values(batches: Iterator[Batch]) -> list[list[float]]:
    return [part.tolist() for (part,) in batches]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_same_batches_in_the_same_order(count: int, pinned: list[threading.Thread]) -> None:
    plain, made = Made(count), Made(count)
    wanted = values(ahead(plain, CPU))
    assert set(plain.threads) <= {threading.main_thread()}
    assert pinned == []
    assert values(ahead(made, GPU)) == wanted
    assert len(wanted) == len(pinned) == count
    assert threading.main_thread() not in [*made.threads, *pinned]
    assert no_thread_is_left()


def test_one_batch_is_made_while_another_is_used() -> None:
    made = Made(5)
    batches = ahead(made, GPU)
    assert made.threads == []
    for number in range(1, 4):
        next(batches)
        assert number <= len(made.threads) <= number + 1
    batches.close()
    assert len(made.threads) == 4
    assert no_thread_is_left()


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_failure_comes_in_its_turn(device: torch.device) -> None:
    batches = ahead(Made(5, fails_at=2), device)
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(OSError, match="cut off"):
        next(batches)
    assert no_thread_is_left()


def test_a_step_that_fails_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    made, taken = Made(5), list[Batch]()

    def take(_self: Steps, batch: Batch) -> None:
        taken.append(batch)
        if len(taken) == 2:
            raise ArithmeticError

    monkeypatch.setattr(Steps, "take", take)
    # Steps of a GPU need one to be made.
    monkeypatch.setattr(Steps, "__init__", lambda *_: None)
    model = nn.Linear(2, 2)
    optimiser = torch.optim.SGD(model.parameters())
    with pytest.raises(ArithmeticError):
        run_stage(model, optimiser, lambda *_: torch.zeros(()), made, device=GPU, early=True)
    assert no_thread_is_left()
    assert threading.main_thread() not in made.threads
    assert len(made.threads) == 3


def test_without_leave_batches_are_made_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steps, "take", lambda *_: None)
    monkeypatch.setattr(Steps, "__init__", lambda *_: None)
    monkeypatch.setattr(Steps, "mean", lambda _: 0.0)
    model, made = nn.Linear(2, 2), Made(3)
    optimiser = torch.optim.SGD(model.parameters())
    run_stage(model, optimiser, lambda *_: torch.zeros(()), made, device=GPU)
    assert made.threads == [threading.main_thread()] * 3
