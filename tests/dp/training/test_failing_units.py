"""Records that make private work fail add zeros, and change neither others, noise nor payment."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from secfed.dp.accounting.events import Event
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.engines import ClippedSum, EngineName
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.dp.training.mechanism import GaussianNoise
from secfed.dp.training.patient_records import LazyRecords, LoaderRecords, TensorRecords
from secfed.dp.training.private_loop import PrivateTraining, Session
from secfed.errors import BudgetExceeded, ConfigError
from secfed.wire.parts import listening
from tests.dp.local_case import ledger, local, paid, settings
from tests.dp.toys import ENGINES, GROUP, mechanism, mlp, parameters, partition, sgd, table

BAD = (3, 7)  # of the records of `table`


def _per_record(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def _with(fault: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> DeclaredLoss:
    """Cross entropy, and a fault where the first feature is above 100."""

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return fault(_per_record(model, batch), batch[0][:, 0] > 100)

    return DeclaredLoss("faulty", True, loss)


def _raising(problem: Exception) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def fault(losses: torch.Tensor, caught: torch.Tensor) -> torch.Tensor:
        if bool(caught.any()):
            raise problem
        return losses

    return fault


_raise = _raising(ValueError("a value that nobody should read"))


FAULTS = {
    "nan": lambda losses, caught: losses * torch.where(caught, math.nan, 1.0),
    "inf": lambda losses, caught: losses * torch.where(caught, math.inf, 1.0),
    "raises": _raise,
    "raises like a guard": _raising(ConfigError("this looks like a mistake in the study")),
    "another shape": lambda losses, caught: losses[~caught],
}


def data(*, damaged: bool) -> Batch:
    inputs, labels = table(12)
    if damaged:
        inputs[list(BAD), 0] = 1000.0
    return inputs, labels


def session(engine: EngineName, loss: DeclaredLoss, model: nn.Module, **more: Any) -> Session:
    private = PrivateTraining(
        mechanism(rate=1.0), engine=engine, random=SecureRandom.for_simulation(1), max_records=5, **more
    )
    return private.session(model, sgd(model), loss, records=12, steps=3)


def clipped(engine: EngineName, loss: DeclaredLoss, batches: list[Batch]) -> ClippedSum:
    model = mlp()
    with session(engine, loss, model) as running:
        return running._clipped(batches)


def cut(engine: EngineName, batch: Batch) -> list[Batch]:
    """As a session cuts a draw: units for the loop, pieces for the others."""
    size = 1 if engine == "loop" else 5
    return [tuple(part[at : at + size] for part in batch) for at in range(0, len(batch[0]), size)]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_sum_is_that_of_all_other_records(engine: EngineName, fault: Any) -> None:
    batch = data(damaged=True)
    others = [row for row in range(12) if row not in BAD]
    wanted = clipped(engine, _with(fault), cut(engine, tuple(part[others] for part in batch)))
    found = clipped(engine, _with(fault), cut(engine, batch))
    assert found.units == 12
    assert float(torch.cat([part.reshape(-1) for part in wanted.sums.values()]).norm()) > 0
    for name, part in wanted.sums.items():
        assert torch.allclose(found.sums[name], part, rtol=0, atol=2.0)  # steps of the grid


class Routed(nn.Module):
    """A layer that only some records reach, as in a mixture of experts; a batch without any skips it.

    With ``rows`` the layer is given only the rows that reach it, otherwise all of them and a mask.
    """

    def __init__(self, *, rows: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.common, self.expert = rows, nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        reach, output = inputs[:, 0] > 0.5, self.common(inputs)
        if not bool(reach.any()):
            return output
        if self.rows and not bool(reach.all()):
            return output.index_put((reach.nonzero()[:, 0],), self.expert(inputs[reach]), accumulate=True)
        return output + self.expert(inputs) * reach[:, None]


PER_RECORD = DeclaredLoss("cross entropy", True, _per_record)


def routed_sum(engine: EngineName, reaching: int, *, rows: bool = False) -> torch.Tensor:
    """The clipped sum of 12 records, of which the first so many reach the layer; in units of the norm."""
    torch.manual_seed(4)
    inputs, labels = torch.rand(12, 6), torch.arange(12) % 3
    inputs[:, 0] *= 0.4
    inputs[:reaching, 0] = 0.9
    with session(engine, PER_RECORD, Routed(rows=rows)) as running:
        total = running._clipped(cut(engine, (inputs, labels)))
        assert total.units == 12
        return torch.cat([part.reshape(-1) for part in total.sums.values()]) * running.noise.grid


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("reaching", [0, 1, 3, 7, 12])
@pytest.mark.parametrize("engine", ["hooks", "ghost"])
def test_which_records_reach_a_layer_is_their_own_part_of_the_sum(
    engine: EngineName, reaching: int, rows: bool
) -> None:
    """One record decides whether the engine can sum the batch, and changes no other row's part."""
    found, wanted = routed_sum(engine, reaching, rows=rows), routed_sum("loop", reaching)
    assert float(wanted.norm()) > 1.0
    assert float((found - wanted).norm()) <= 2.0**-11  # the margin of the mechanism's slack
    neighbour = routed_sum(engine, max(reaching - 1, 0), rows=rows)
    assert float((found - neighbour).norm()) <= 2.0 + 2.0**-10  # one record replaced


@pytest.mark.parametrize("engine", ["hooks", "ghost"])
def test_records_that_only_fail_together_are_all_in_the_sum(engine: EngineName) -> None:
    def together(losses: torch.Tensor, caught: torch.Tensor) -> torch.Tensor:
        return _raise(losses, caught) if len(losses) > 1 else losses

    batch = data(damaged=True)
    wanted = clipped("loop", PER_RECORD, cut("loop", batch))
    found = clipped(engine, _with(together), cut(engine, batch))
    assert found.units == 12
    assert float(torch.cat([part.reshape(-1) for part in wanted.sums.values()]).norm()) > 0
    assert all(torch.equal(found.sums[name], part) for name, part in wanted.sums.items())


class Fetched(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The records of `table`; the bad ones have another shape, or cannot be read."""

    def __init__(self, bad: str) -> None:
        self.bad, (self.inputs, self.labels) = bad, table(12)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index in BAD and self.bad == "unreadable":
            raise OSError("a file that is cut off")
        inputs = torch.zeros(7) if index in BAD and self.bad == "of another shape" else self.inputs[index]
        return inputs, self.labels[index]


@pytest.mark.parametrize("bad", ["of another shape", "unreadable"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_that_cannot_be_fetched_adds_zeros_and_the_step_its_noise(
    engine: EngineName, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: list[tuple[int, dict[str, torch.Tensor]]] = []
    write = GaussianNoise.write_gradients

    def seen(self: GaussianNoise, total: ClippedSum, divisor: float) -> None:
        sums.append((total.units, {name: part.clone() for name, part in total.sums.items()}))
        write(self, total, divisor)

    monkeypatch.setattr(GaussianNoise, "write_gradients", seen)
    model, heard = mlp(), list[Exception]()
    before = parameters(model).clone()
    records = LoaderRecords(DataLoader(Fetched(bad), batch_size=4), torch.device("cpu"))
    with listening(heard.append), session(engine, PER_RECORD, model) as running:
        running.step(records)
        assert running.steps_left == 2
    inputs, labels = table(12)
    others = [row for row in range(12) if row not in BAD]
    wanted = clipped("loop", PER_RECORD, cut("loop", (inputs[others], labels[others])))
    ((units, found),) = sums
    assert units == 12
    assert all(torch.equal(found[name], part) for name, part in wanted.sums.items())
    noise = parameters(model) - before
    assert bool((noise != 0).all())
    assert heard


def test_steps_that_were_not_paid_for_are_refused_whatever_can_be_fetched() -> None:
    records = LoaderRecords(DataLoader(Fetched("unreadable"), batch_size=4), torch.device("cpu"))
    with session("hooks", PER_RECORD, mlp()) as running:
        for _ in range(3):
            running.step(records)
        with pytest.raises(ConfigError, match="more private steps"):
            running.step(records)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_steps_go_on_with_their_noise(engine: EngineName, fault: Any) -> None:
    """All records fail: what is left of three steps is three times the noise, and the model is finite."""
    model, (inputs, labels) = mlp(), data(damaged=True)
    inputs[:, 0] = 1000.0
    before, spent = parameters(model), list[Event]()
    private = PrivateTraining(
        mechanism(rate=1.0, sigma=2.0),
        engine=engine,
        random=SecureRandom.for_simulation(1),
        spend=spent.append,
    )
    private.run(model, sgd(model, 1.0), _with(fault), (inputs, labels), steps=3)
    moved = (parameters(model) - before).double()
    assert bool(torch.isfinite(moved).all())
    assert float(moved.std()) == pytest.approx(math.sqrt(3) * 2.0 / 12, rel=0.3)
    assert spent == [private.mechanism.event(3)]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_group_with_such_a_record_adds_zeros(fault: Any) -> None:
    groups = partition(12, 3)
    inputs, labels = data(damaged=True)
    loss = DeclaredLoss("coupled", False, lambda model, batch: _with(fault)(model, batch).mean())
    model = mlp()
    private = PrivateTraining(
        mechanism(GROUP, rate=1.0), engine="loop", partition=groups, random=SecureRandom.for_simulation(1)
    )
    with private.session(model, sgd(model), loss, records=12, steps=1) as running:
        units = [(inputs[rows], labels[rows]) for rows in groups.groups]
        whole = [unit for unit in units if not bool((unit[0][:, 0] > 100).any())]
        found, wanted = running._clipped(units), running._clipped(whole)
    # A mean of no losses is NaN, so a group that lost a record's loss but not all of them is still one.
    if fault is not FAULTS["another shape"]:
        assert all(torch.equal(found.sums[name], part) for name, part in wanted.sums.items())
    assert found.units == len(units)


def test_a_failure_is_heard_of_at_home() -> None:
    heard: list[Exception] = []
    with listening(heard.append):
        clipped("hooks", _with(_raise), cut("hooks", data(damaged=True)))
    assert {type(one) for one in heard} == {ValueError}


def test_a_mistake_in_the_study_is_still_refused_whatever_the_records() -> None:
    """On made-up records, so the refusal tells nothing about real ones."""
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=True))
    model[1] = Counting()
    with session("loop", _with(FAULTS["nan"]), model) as running, pytest.raises(ConfigError, match="buffer"):
        running.step(TensorRecords(data(damaged=False)))


class Counting(nn.Module):
    """Counts the records that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += len(inputs)
        return inputs


class TestReleasedSums:
    SHAPES: ClassVar[dict[str, tuple[int, ...]]] = {"counts": (2,), "total": ()}

    def privacy(self, folder: Path, budget: float = 8.0) -> Any:
        folder.mkdir(exist_ok=True)
        made = local(ledger(folder, budget), settings("record", metrics="private"))
        made.enter(1, "evaluate")
        return made

    def test_payment_comes_before_the_first_touch(self, tmp_path: Path) -> None:
        privacy, payments = self.privacy(tmp_path), list[int]()

        def sums() -> dict[str, torch.Tensor]:
            payments.append(len(paid(privacy._ledger)))
            return {"counts": torch.tensor([3.0, 4.0]), "total": torch.tensor(7.0)}

        released = privacy.release_sums(sums, self.SHAPES, l2=1.0)
        assert payments == [1]
        assert {name: tuple(value.shape) for name, value in released.items()} == self.SHAPES

    def test_nothing_is_computed_that_is_not_paid_for(self, tmp_path: Path) -> None:
        touched = list[int]()

        def sums() -> dict[str, torch.Tensor]:
            touched.append(1)
            return {}

        with pytest.raises(BudgetExceeded):
            self.privacy(tmp_path, budget=1e-3).release_sums(sums, self.SHAPES, l2=1.0)
        assert not touched

    @pytest.mark.parametrize(
        "sums",
        [
            dict,
            lambda: {"counts": torch.tensor([math.nan, 1.0]), "total": torch.tensor(math.inf)},
            lambda: {"counts": torch.ones(3), "total": torch.ones(1)},
            lambda: 1 / 0,
        ],
    )
    def test_what_fails_is_zeros_with_the_same_noise(self, tmp_path: Path, sums: Any) -> None:
        zeros = {name: torch.zeros(shape) for name, shape in self.SHAPES.items()}
        wanted = self.privacy(tmp_path / "zeros").release_sums(lambda: zeros, self.SHAPES, l2=1.0)
        privacy = self.privacy(tmp_path / "failing")
        found = privacy.release_sums(sums, self.SHAPES, l2=1.0)
        assert len(paid(privacy._ledger)) == 1
        assert all(torch.equal(found[name], wanted[name]) for name in self.SHAPES)
        assert all(bool(value.any()) for value in found.values())


@pytest.mark.parametrize("fails", [False, True])
def test_records_to_be_computed_are_tried_once_and_not_before(fails: bool) -> None:
    calls = []

    def make() -> Batch:
        calls.append(1)
        if fails:
            raise ValueError("no features")
        return (torch.arange(6.0),)

    records = LazyRecords(6, make)
    assert len(records) == 6
    assert not calls
    for index in range(3):
        with pytest.raises(ValueError, match="no features") if fails else nullcontext():
            assert records.take(np.array([index, 1]))[0].tolist() == [index, 1.0]
    assert len(calls) == 1
