"""The comparison of engines says the same at every site: it sees no record and no received weight."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from secfed.dp.training.engine_check import checked_engine, made_up, one_by_one
from secfed.dp.training.engines import ClippedSum, EngineChoice, EngineName, attached
from secfed.dp.training.losses import Batch, DeclaredLoss, supervised
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError
from tests.dp.toys import CROSS_ENTROPY, mechanism, mlp, parameters, sgd, table

HOOKED: list[EngineName] = ["hooks", "ghost"]
MARK = 7.5


class Trap(nn.Module):
    """Mixes the records of a batch if a feature of one is above a threshold; otherwise it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        if bool((inputs > 50.0).any()):
            hidden = hidden - hidden.mean(dim=0, keepdim=True)
        return self.second(hidden)


def images(classes: int) -> nn.Module:
    parts = [nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.GroupNorm(2, 8)]
    return nn.Sequential(*parts, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))


class OverTheBatch(nn.Module):
    """Normalises by a number over the whole batch, which among many alike is nearly each one's own."""

    def __init__(self, by: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.by, self.net = by, images(2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.net(self.by(inputs))
        return scaled


class MeanOfTheToken(nn.Module):
    """A token that reaches a record as a mean over all records' copies, beside a table that broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.table = nn.Parameter(torch.randn(1, 1, 5)), nn.Parameter(torch.randn(1, 20, 5))
        self.words, self.head = nn.Embedding(11, 5), nn.Linear(5, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        words = self.words(inputs)
        token = self.token.mean() * torch.ones(len(words), 1, 5)
        hidden = torch.cat([token, words], 1)
        mixed: torch.Tensor = self.head(torch.tanh(hidden + self.table[:, : hidden.shape[1]]).mean(1))
        return mixed


class Scaled(nn.Module):
    """One number of its own, as a temperature is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.tensor(0.7)), nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.layer(inputs) * self.scale
        return scaled


class Recomputed(nn.Module):
    """A layer that runs again in the backward pass, to save memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda values: torch.tanh(self.first(values)), inputs, use_reentrant=False)
        out: torch.Tensor = self.second(hidden)
        return out


class InPlace(Recomputed):
    """Changes what a layer gave, in place."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(inputs).relu_())
        return out


def train(model: nn.Module, batch: Batch, engine: EngineChoice, loss: DeclaredLoss = CROSS_ENTROPY) -> None:
    private = PrivateTraining(mechanism(rate=1.0), engine=engine)
    private.run(model, sgd(model), loss, batch, steps=1)


@pytest.mark.parametrize("engine", HOOKED)
def test_whether_a_site_refuses_does_not_depend_on_its_records(engine: EngineName) -> None:
    """With real records in the comparison, a crafted model made the sites with such a record refuse."""
    records, labels = table(6)
    train(Trap(), (records, labels), engine)
    records[0, 0] = 100.0
    train(Trap(), (records, labels), engine)


@pytest.mark.parametrize("engine", HOOKED)
@pytest.mark.parametrize("value", [1e38, torch.nan, torch.inf, 0.0])
def test_whether_a_site_refuses_does_not_depend_on_received_weights(engine: EngineName, value: float) -> None:
    model = mlp()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    train(model, table(6), engine)


@pytest.mark.parametrize("engine", HOOKED)
def test_the_comparison_sees_made_up_records_and_weights_only(engine: EngineName) -> None:
    model = mlp()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(MARK)
    before = [(id(value), value.data_ptr()) for value in model.parameters()]
    seen: list[torch.Tensor] = []

    def spy(net: nn.Module, batch: Batch) -> torch.Tensor:
        seen.extend([*batch, *(value.detach().clone() for value in net.parameters())])
        return CROSS_ENTROPY(net, batch)

    loss = DeclaredLoss("spy", True, spy)
    with attached(engine, model.train(), loss) as runner:
        like = (torch.full((5, 6), MARK), torch.full((5,), 2))
        assert checked_engine(engine, runner, model, loss, like) is runner
    assert seen
    assert not any(bool((part == MARK).any()) for part in seen)
    assert [(id(value), value.data_ptr()) for value in model.parameters()] == before
    assert bool((parameters(model) == MARK).all())


def test_made_up_records_have_the_shapes_and_types_and_none_of_the_values() -> None:
    like = (
        torch.full((7, 4, 2), torch.nan),
        torch.full((7,), -100),
        torch.zeros(7, 9, dtype=torch.bool),
        torch.full((7, 3), 200, dtype=torch.uint8),
        torch.zeros(7, dtype=torch.float64),
    )
    found = made_up(like)
    assert [part.shape for part in found] == [(3, *part.shape[1:]) for part in like]
    assert [part.dtype for part in found] == [part.dtype for part in like]
    assert all(bool(((part >= 0) & (part <= 1)).all()) for part in found)
    assert bool(found[2][:, 0].all()), "a mask that hides a whole record"
    others = made_up(tuple(torch.zeros_like(part) for part in like))
    assert all(torch.equal(part, other) for part, other in zip(found, others, strict=True))


def test_parameters_are_given_back_after_a_refusal_too() -> None:
    def mixing(net: nn.Module, batch: Batch) -> torch.Tensor:
        values = CROSS_ENTROPY(net, batch)
        return values * values.sum()

    model = mlp()
    before = parameters(model)
    with pytest.raises(ConfigError, match="disagree"):
        train(model, table(6), "hooks", DeclaredLoss("mixing", True, mixing))
    assert torch.equal(parameters(model), before)


def test_an_engine_that_adds_right_and_clips_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unclipped it agrees with the loop."""

    def unscaled(self: ClippedSum, norms: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(norms) if len(norms) > 1 else factors(self, norms)

    factors = ClippedSum.factors
    monkeypatch.setattr(ClippedSum, "factors", unscaled)
    with pytest.raises(ConfigError, match="disagree"):
        train(mlp(), table(6), "hooks")


@pytest.mark.parametrize("engine", HOOKED)
def test_a_loss_that_made_up_records_do_not_fit_is_clipped_record_by_record(
    engine: EngineName, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be compared, so it gets the engine that needs no comparison: the same numbers as the loop."""

    def of_two(net: nn.Module, batch: Batch) -> torch.Tensor:
        if bool((batch[0] >= 0).all()):
            raise ValueError("features of a record have both signs")
        return CROSS_ENTROPY(net, batch)

    found = []
    for name in ("loop", engine):
        model = mlp()
        private = PrivateTraining(mechanism(clip=0.3, sigma=0.0, rate=1.0), engine=name, max_records=4)
        with caplog.at_level(logging.WARNING):
            private.run(model, sgd(model), DeclaredLoss("signs", True, of_two), table(10), steps=2)
        found.append(parameters(model))
    assert torch.equal(*found)
    assert [record.message for record in caplog.records if "loss 'signs' cannot be" in record.message]


@pytest.mark.parametrize("engine", ["auto", *HOOKED])
@pytest.mark.parametrize(
    "by",
    [
        lambda x: (x - x.mean()) / (x.std() + 1e-6),
        lambda x: x / x.abs().amax(),
        lambda x: x / x.square().mean().sqrt(),
    ],
    ids=["standardised", "by the largest", "by the root mean square"],
)
def test_a_number_over_the_batch_is_found_by_a_record_far_from_the_others(
    engine: EngineChoice, by: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    records = torch.rand(4, 3, 64, 64), torch.randint(0, 2, (4,))
    with pytest.raises(ConfigError, match="mixes records"):
        train(OverTheBatch(by), records, engine)
    train(images(2), records, engine)


@pytest.mark.parametrize("engine", ["auto", *HOOKED])
@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.L1Loss(), nn.HuberLoss()])
def test_a_loss_that_broadcasts_targets_over_outputs_is_refused(
    engine: EngineChoice, criterion: nn.Module
) -> None:
    """[B, 1] and [B] are [B, B] to PyTorch, which only warns."""
    loss, records = supervised(criterion), (torch.rand(4, 3, 64, 64), torch.rand(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(ConfigError, match="mixes records"):
            train(images(1), records, engine, loss)
    train(nn.Sequential(images(1), nn.Flatten(0)), records, engine, loss)


def test_copies_that_a_layer_averages_are_found_by_records_of_other_weights() -> None:
    batch = torch.randint(0, 11, (4, 7)), torch.randint(0, 3, (4,))
    with pytest.raises(ConfigError, match="disagree"):
        train(MeanOfTheToken(), batch, "ghost")


def test_hooks_refuse_a_function_that_works_in_place_and_do_not_add_zeros() -> None:
    with pytest.raises(ConfigError, match="in place"):
        train(InPlace(), table(6), "hooks")


@pytest.mark.parametrize(("kind", "used"), [(Scaled, "hooks"), (Recomputed, "ghost"), (InPlace, "ghost")])
def test_numbers_alone_and_layers_that_run_again_are_clipped_as_by_the_loop(
    kind: type[nn.Module], used: EngineName
) -> None:
    model, found = kind(), []
    private = PrivateTraining(mechanism(rate=1.0), engine="auto")
    private.run(model, sgd(model), CROSS_ENTROPY, table(6), steps=2)
    assert private.used == used
    runs: list[tuple[EngineName, list[Batch]]] = [(used, [table(6)]), ("loop", one_by_one(table(6)))]
    for engine, units in runs:
        total = ClippedSum(dict(model.named_parameters()), clip_norm=0.5, grid=0.0)
        with attached(engine, model.train(), CROSS_ENTROPY) as runner:
            runner.add(units, total)
        found.append(torch.cat([part.reshape(-1) for part in total.sums.values()]))
    assert torch.allclose(*found, rtol=1e-4, atol=1e-6)
