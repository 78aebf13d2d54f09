"""Which engine ``auto`` comes to: it follows from the model, the loss and the number of records."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.settings import PrivacySection
from secfed.dp.training import engines
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError
from tests.dp.toys import CROSS_ENTROPY, mechanism, mlp, parameters, sgd, table


class Shifted(nn.Module):
    """Uses a table of its own, [1, 6, 1], without one copy of it for each record."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(torch.full((1, 6, 1), 0.1)), nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(inputs + self.table[0].T)
        return scores


class Buffered(nn.Linear):
    """A parameter and a buffer in one layer: no engine with hooks recomputes it."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("offset", torch.zeros(3))


def used(model: nn.Module, **how: object) -> PrivateTraining:
    private = PrivateTraining(mechanism(clip=0.3, rate=1.0), random=SecureRandom(bytes(32)), **how)  # type: ignore[arg-type]
    private.run(model, sgd(model), CROSS_ENTROPY, table(12), steps=2)
    return private


def test_a_model_of_known_layers_takes_ghost() -> None:
    chosen, named = mlp(), mlp()
    assert used(chosen).used == "ghost"
    used(named, engine="ghost")
    assert torch.equal(parameters(chosen), parameters(named))


def test_where_ghost_disagrees_with_the_loop_hooks_are_taken_and_kept() -> None:
    with pytest.raises(ConfigError, match="disagree"):
        used(Shifted(), engine="ghost")
    model = Shifted()
    private = used(model)
    assert private.used == "hooks"
    private.run(model, sgd(model), CROSS_ENTROPY, table(12), steps=1)
    assert private.used == "hooks"
    assert not any(layer._forward_hooks for layer in model.modules())


def test_more_records_than_ghost_adds_up_take_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_MOST_EXPECTED", 11)
    assert used(mlp()).used == "hooks"


def test_a_model_for_neither_is_refused_as_before() -> None:
    with pytest.raises(ConfigError, match="buffers"):
        used(Buffered())


def test_a_study_that_has_nothing_to_choose_is_the_study_that_it_was() -> None:
    def engine(**keys: object) -> object:
        return PrivacySection(epsilon=8.0, delta=1e-4, **keys).canonical()["engine"]  # type: ignore[arg-type]

    assert engine(unit="record") == "auto"
    assert engine(unit="record", engine="hooks") == "hooks"
    assert engine(unit="record", noise="sum") == "hooks"
    assert engine(unit="group", group_size=4) == "hooks"
    assert engine(unit="site") == "hooks"
