"""Clipped sums over single records and groups, which leave without noise of their own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from secfed.config.schema import checked
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.settings import PrivacySection
from secfed.dp.training import engine_check, private_loop, unit_sums
from secfed.dp.training.losses import supervised
from secfed.dp.training.patient_records import TensorRecords
from secfed.dp.training.unit_sums import GRADIENT_NORM, UnitSums
from secfed.errors import ConfigError

RECORDS = 24


def unplanned(**more: Any) -> UnitSums:
    table = {"unit": "record", "epsilon": 1.0, "delta": 1e-5, "noise": "sum", "clip_norm": 0.5, **more}
    settings = checked(PrivacySection, table, "privacy")
    return UnitSums(settings, seed=3, random=lambda *_: SecureRandom.for_simulation(1, "test"))


def sums(**more: Any) -> UnitSums:
    made = unplanned(**more)
    made.plan(RECORDS)
    made.enter(1, "update")
    return made


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def records(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(RECORDS, 5, generator=generator), torch.randint(0, 3, (RECORDS,), generator=generator)


LOSS = supervised(nn.functional.cross_entropy)


def flat(parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts.values()])


def by_hand(model: nn.Module, units: list[np.ndarray], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for unit in units:
        loss = nn.functional.cross_entropy(model(x[unit]), y[unit])
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        gradient = gradient.double()
        total = total + gradient * min(1.0, 0.5 / float(gradient.norm()))
    return total


def test_the_sum_is_that_of_every_record_clipped() -> None:
    model, (x, y) = network(), records()
    found = flat(sums().gradients(model, LOSS, TensorRecords((x, y))))
    wanted = by_hand(model, list(np.arange(RECORDS).reshape(-1, 1)), x, y)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_the_sum_is_that_of_every_group_clipped() -> None:
    made, model, (x, y) = sums(unit="group", group_size=4), network(), records()
    units = made.plan(RECORDS)
    assert sorted(np.concatenate(units).tolist()) == list(range(RECORDS))
    found = flat(made.gradients(model, LOSS, TensorRecords((x, y))))
    assert torch.allclose(found, by_hand(model, units, x, y), atol=1e-5)


@pytest.mark.parametrize("value", [1e6, 1e30, math.nan, math.inf])
def test_one_record_moves_it_by_the_norm_at_most(value: float) -> None:
    """Whatever it is: one that has no gradient adds zeros, and the others what they would."""
    model, (x, y) = network(), records()
    x[7] = 0.0  # a record that is there in both, so that the number of records is the same
    before = flat(sums().gradients(model, LOSS, TensorRecords((x, y))))
    x = x.clone()
    x[7] = value
    after = flat(sums().gradients(model, LOSS, TensorRecords((x, y))))
    assert torch.isfinite(after).all()
    assert float((after - before).norm()) <= 2 * 0.5 * GRADIENT_NORM


def test_the_only_record_is_added_or_removed_within_the_norm_and_not_twice_that() -> None:
    """Without it there is a blank one, so that the number of records tells nothing; it must add nothing."""
    model, blank = network(), (torch.zeros(1, 5), torch.zeros(1, dtype=torch.int64))
    made = sums()
    made.plan(1)
    assert float(flat(made.gradients(model, LOSS, TensorRecords(blank))).norm()) > 0.4  # a record of zeros
    made.plan(1, blank=True)
    assert not flat(made.gradients(model, LOSS, TensorRecords(blank))).any()


def test_the_engine_is_checked_once_for_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return engine_check.checked_engine(*arguments)

    monkeypatch.setattr(private_loop, "checked_engine", counted)
    made, data = sums(), TensorRecords(records())
    for model in (network(), network()):
        for _ in range(3):
            made.gradients(model, LOSS, data)
    assert len(calls) == 2


def test_a_delta_for_too_few_records_and_too_many_units_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sums(delta=1e-3)
    assert not made.weak_delta
    made.plan(1_000)
    assert made.weak_delta
    with pytest.raises(ConfigError, match=r"privacy\.delta"):
        made.plan(10_000)
    monkeypatch.setattr(unit_sums, "_MOST_UNITS", 99)
    with pytest.raises(ConfigError, match=r"privacy\.noise"):
        sums().plan(100)


def test_weights_of_records_are_one_for_each_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sums().weights(RECORDS) is None
    grouped = sums(unit="group", group_size=5).weights(RECORDS)
    assert grouped is not None
    assert sorted(grouped.tolist()) == [0.0] * 4 + [0.2] * 20  # no fifth group is filled
    patients = [0] * 6 + [1] * 4 + [2] * 2 + [3, 4] + [5] * 10
    found = sums(unit="group", group_size=4).weights(RECORDS, patients)
    assert found is not None
    assert set(found.tolist()) == {0.25}  # whose they are is nothing to groups of records
    made = unplanned(unit="group", group_size=4, adjacency="replace-patient")
    found = made.weights(RECORDS, patients)
    assert found is not None
    totals = [float(found[np.flatnonzero(np.array(patients) == one)].sum()) for one in range(6)]
    assert totals[:3] == [1.0, 1.0, 1.0]
    assert totals[5] == 1.0
    assert int((found[:6] > 0).sum()) == int((found[14:] > 0).sum()) == 4
    monkeypatch.setattr(unit_sums, "_MOST_UNITS", RECORDS - 1)  # additions are of records here
    with pytest.raises(ConfigError, match=r"privacy\.noise"):
        made.weights(RECORDS, patients)


@pytest.mark.parametrize("more", [[], [nn.Identity()]], ids=["together", "one by one"])
def test_no_unit_depends_on_the_others_to_the_last_bit(more: list[nn.Module]) -> None:
    """Weights that cancel make of a last digit what they like; an aggregator chooses them."""
    count, wide = 257, 300
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(count, wide, generator=generator), torch.zeros(count, dtype=torch.long)
    model = nn.Sequential(nn.Linear(wide, 65, bias=False), nn.Linear(65, 3, bias=False), *more)
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(wide, generator=generator).expand(65, wide))
        model[1].weight.zero_()
        model[1].weight[:, ::2], model[1].weight[:, 1::2] = 1e6, -1e6
        model[1].weight[1:] *= -1
        model[1].weight[:, -1] = 0
    made = sums()
    made.plan(count)
    whole = flat(made.gradients(model, LOSS, TensorRecords((x, y))))
    made.plan(count - 1)
    fewer = flat(made.gradients(model, LOSS, TensorRecords((x[1:], y[1:]))))
    assert torch.allclose(whole - fewer, by_hand(model, [np.array([0])], x, y), atol=1e-5)


@pytest.mark.parametrize("engine", ["hooks", "ghost"])
def test_engines_that_take_batches_are_refused(engine: str) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.engine"):
        sums(engine=engine)
