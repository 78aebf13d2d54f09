"""Private training: the invariants of the specification (dp.md section 11) on all engines."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from secfed.algorithms.federated_averaging.fedprox import add_proximal_pull
from secfed.dp.accounting.events import Event, PoissonSampledGaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.accounting.unit import Adjacency, PrivacyUnit, Unit
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.engines import EngineName
from secfed.dp.training.local_plan import Phase
from secfed.dp.training.losses import DeclaredLoss
from secfed.dp.training.mechanism import GaussianNoise, Mechanism
from secfed.dp.training.patient_records import LoaderRecords, TensorRecords
from secfed.dp.training.plain_loop import Training, make_loader
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import BudgetExceeded, ConfigError, DataError
from tests.dp.local_case import ledger, local, paid, settings
from tests.dp.oracles import FALSE_ALARM, deviation_p
from tests.dp.toys import (
    CROSS_ENTROPY,
    ENGINES,
    GROUP,
    INFO_NCE,
    RECORD,
    mechanism,
    mlp,
    pairs,
    parameters,
    partition,
    plain_gradient,
    run,
    sgd,
    table,
)


def seeded(seed: int = 0) -> SecureRandom:
    return SecureRandom.for_simulation(seed)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_noise_and_clipping_a_full_step_is_the_plain_mean_gradient(engine: EngineName) -> None:
    """Invariant 1."""
    model, data = mlp(), table()
    wanted = parameters(model) - plain_gradient(model, CROSS_ENTROPY, data)
    private = PrivateTraining(mechanism(clip=math.inf, sigma=0.0, rate=1.0), engine=engine)
    private.run(model, sgd(model), CROSS_ENTROPY, data, steps=1)
    assert torch.allclose(parameters(model), wanted, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_that_stands_for_none_moves_nothing(engine: EngineName) -> None:
    """Or a sum with the only record there would be 2 C from one without it."""
    for blank in (False, True):
        model, data = mlp(), tuple(torch.zeros_like(part[:1]) for part in table())
        before = parameters(model)
        exact = mechanism(clip=math.inf, sigma=0.0, rate=1.0)
        private = PrivateTraining(exact, engine=engine, blank=blank)
        private.run(model, sgd(model), CROSS_ENTROPY, data, steps=1)
        assert torch.equal(parameters(model), before) == blank


def test_without_noise_and_clipping_a_full_step_is_the_mean_of_group_gradients() -> None:
    """Invariant 1, groups."""
    model, data, groups = mlp(), pairs(), partition()
    per_group = [
        plain_gradient(model, INFO_NCE, tuple(part[torch.from_numpy(group)] for part in data))
        for group in groups.groups
    ]
    wanted = parameters(model) - torch.stack(per_group).mean(dim=0)
    exact = mechanism(GROUP, clip=math.inf, sigma=0.0, rate=1.0)
    private = PrivateTraining(exact, engine="loop", partition=groups)
    private.run(model, sgd(model), INFO_NCE, data, steps=1)
    assert torch.allclose(parameters(model), wanted, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_noise_the_sum_is_bounded_by_units_times_clip(engine: EngineName) -> None:
    """Invariant 1, clipping."""
    model, data = mlp(), table()
    before = parameters(model)
    private = PrivateTraining(mechanism(clip=0.01, sigma=0.0, rate=1.0), engine=engine)
    private.run(model, sgd(model), CROSS_ENTROPY, data, steps=1)
    step = float((before - parameters(model)).norm())
    assert 0.001 < step <= 0.01 * (1 + 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_engines_give_the_same_model(engine: EngineName, rate: float) -> None:
    """Invariant 4: with the same noise, every engine does what the loop does."""
    models = []
    for name in ("loop", engine):
        model, data = mlp(), table()
        private = PrivateTraining(mechanism(clip=0.3, rate=rate), engine=name, random=seeded(), max_records=7)
        private.run(model, sgd(model, 0.1), CROSS_ENTROPY, data, steps=5)
        models.append(parameters(model))
    assert torch.allclose(*models, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_draw_releases_pure_noise_of_the_promised_deviation(engine: EngineName) -> None:
    """Invariant 4."""
    model = nn.Linear(300, 100)
    before = parameters(model)
    promised = mechanism(clip=2.0, sigma=1.5, rate=0.25)
    private = PrivateTraining(promised, engine=engine, random=seeded())
    data = (torch.randn(8, 300), torch.zeros(8, dtype=torch.long))
    with private.session(model, sgd(model), CROSS_ENTROPY, records=8, steps=1) as session:
        session.release([], TensorRecords((torch.zeros(8),)))
    noise = (before - parameters(model)).double().numpy() * 0.25 * len(data[0])
    assert deviation_p(noise, 1.5 * 2.0 * (1 + 2**-10)) > FALSE_ALARM


def test_noise_of_equally_shaped_tensors_differs() -> None:
    """Invariant 8."""
    model = nn.Sequential(nn.Linear(20, 20, bias=False), nn.Linear(20, 20, bias=False))
    private = PrivateTraining(mechanism(rate=0.5), random=seeded())
    before = [value.detach().clone() for value in model.parameters()]
    with private.session(model, sgd(model), CROSS_ENTROPY, records=8, steps=1) as session:
        session.release([], TensorRecords((torch.zeros(8),)))
    first, second = (old - new.detach() for old, new in zip(before, model.parameters(), strict=True))
    assert not torch.any(first == second)


def test_the_sum_is_divided_by_the_expected_number_of_units() -> None:
    model, data = mlp(), table(40)
    exact = mechanism(clip=math.inf, sigma=0.0, rate=0.3)
    private = PrivateTraining(exact, engine="loop", random=seeded(3))
    before = parameters(model)
    with private.session(model, sgd(model), CROSS_ENTROPY, records=40, steps=1) as session:
        drawn = session.draw()
        assert session.expected_units == pytest.approx(12.0)
        assert len(drawn) != 12, "choose another seed: this draw cannot tell"
        rows = torch.from_numpy(np.concatenate(drawn))
        session.release(drawn, TensorRecords(data))
    taken = (data[0][rows], data[1][rows])
    fresh = mlp()
    wanted = before - plain_gradient(fresh, CROSS_ENTROPY, taken) * len(rows) / 12.0
    assert torch.allclose(parameters(model), wanted, atol=1e-6)


def test_every_release_is_on_the_grid_and_the_integers_have_the_promised_distribution() -> None:
    """What an observer sees is an integer times the grid, whatever the data: no floating-point channel."""
    model = nn.Linear(150, 100, bias=False)
    promised, values = mechanism(clip=1.0, sigma=1.0), dict(model.named_parameters())
    noise = GaussianNoise.of(promised, 1.0, values, seeded())
    private = PrivateTraining(mechanism(clip=1.0, sigma=1.0, rate=0.5), engine="loop", random=seeded())
    data = (torch.randn(6, 150), torch.arange(6))
    integers = []
    with private.session(model, sgd(model, 0.0), CROSS_ENTROPY, records=6, steps=3) as session:
        original = session.noise.write_gradients

        def spy(total, divisor) -> None:  # type: ignore[no-untyped-def]
            assert all(torch.equal(part, part.round()) for part in total.sums.values())
            original(total, divisor)
            integers.append(model.weight.grad.double() * divisor / session.noise.grid)

        session.noise.write_gradients = spy  # type: ignore[method-assign]
        for _ in range(3):
            session.step(TensorRecords(data))
    found = torch.cat([part.reshape(-1) for part in integers])
    assert noise.grid == session.noise.grid
    # float32 keeps 24 bits of the integers; that much is on the grid.
    assert torch.allclose(found, found.round(), atol=float(found.abs().max()) * 2**-22)
    # A unit's rounding error is at most 2^-13 C.
    assert noise.grid * math.sqrt(model.weight.numel()) / 2 <= 2**-13


def test_the_event_is_made_from_the_mechanism_and_spent_before_data_is_touched() -> None:
    order: list[object] = []

    class Watched(DeclaredLoss):
        def __call__(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
            order.append("data")
            return super().__call__(model, batch)

    loss = Watched("watched", True, CROSS_ENTROPY.function)
    private = PrivateTraining(mechanism(sigma=1.2, rate=0.5), engine="loop", spend=order.append)
    model = mlp()
    private.run(model, sgd(model), loss, table(), steps=4)
    assert order[0] == PoissonSampledGaussian(Adjacency.ADD_OR_REMOVE_RECORD, 0.5, 1.2, 4)
    assert order.count(order[0]) == 1
    assert "data" in order[1:]


def test_a_refused_budget_touches_neither_data_nor_model() -> None:
    def refuse(event: Event) -> None:
        raise BudgetExceeded("spent")

    def explode(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        raise AssertionError("data was touched")

    model = mlp()
    before = parameters(model)
    private = PrivateTraining(mechanism(), spend=refuse)
    with pytest.raises(BudgetExceeded):
        private.run(model, sgd(model), DeclaredLoss("never", True, explode), table(), steps=1)
    assert torch.equal(parameters(model), before)


def test_no_step_beyond_what_was_paid() -> None:
    model = mlp()
    private = PrivateTraining(mechanism(), engine="loop", random=seeded())
    with private.session(model, sgd(model), CROSS_ENTROPY, records=40, steps=2) as session:
        session.step(TensorRecords(table()))
        session.step(TensorRecords(table()))
        with pytest.raises(ConfigError, match="more private steps"):
            session.step(TensorRecords(table()))


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_stays_on_the_model(engine: EngineName) -> None:
    """Per-record gradients and hooks must not outlive the training; names and mode are as before."""
    model, data = mlp().eval(), table()
    names, hooks = list(model.state_dict()), [len(part._forward_hooks) for part in model.modules()]
    PrivateTraining(mechanism(), engine=engine).run(model, sgd(model), CROSS_ENTROPY, data, steps=2)
    assert list(model.state_dict()) == names
    assert [len(part._forward_hooks) + len(part._backward_hooks) for part in model.modules()] == hooks
    assert not model.training
    for value in model.parameters():
        assert value.grad is None
        assert not {"grad_sample", "_norm_sample", "_forward_counter"} & set(vars(value))
    for part in model.modules():
        assert not hasattr(part, "activations")


def test_seeded_runs_repeat_and_fresh_ones_do_not() -> None:
    def run(random: SecureRandom | None) -> torch.Tensor:
        model = mlp()
        torch.manual_seed(0)  # public seeds do not reach the noise
        np.random.seed(0)
        private = PrivateTraining(mechanism(), engine="loop", random=random)
        private.run(model, sgd(model), CROSS_ENTROPY, table(), steps=2)
        return parameters(model)

    assert torch.equal(run(seeded(7)), run(seeded(7)))
    assert not torch.equal(run(None), run(None))


def test_the_drop_in_for_the_plain_training_loop(tmp_path: Path) -> None:
    """The algorithm hands over what it trains anyway; a data-free pull of the optimiser stays exact."""
    model, (inputs, labels) = mlp(), table(64)
    optimiser = sgd(model, 0.5)
    add_proximal_pull(optimiser, 0.1)
    loader = make_loader(inputs, labels, batch_size=16, generator=torch.Generator())
    training = Training(model, optimiser, nn.functional.cross_entropy, loader)
    ward = ledger(tmp_path, epsilon=60.0, accountant=Rdp())
    privacy = local(ward, settings("record", epsilon=50.0, accountant="rdp"))
    privacy.plan(Phase("train", 64, 16, passes=5))
    privacy.enter(1, "update")
    before = CROSS_ENTROPY(model, (inputs, labels)).mean()
    assert math.isnan(privacy.train_locally(training, epochs=5, device=torch.device("cpu")))
    assert CROSS_ENTROPY(model, (inputs, labels)).mean() < before
    assert [event.times for event in paid(ward)] == [20]
    assert not model.training


def test_any_indexed_data_set_behind_a_loader_is_sampled_and_nothing_else() -> None:
    class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(())

    for loader in (DataLoader(Stream()), [table()]):
        with pytest.raises(ConfigError, match="needs a DataLoader over indexed records"):
            LoaderRecords(loader, torch.device("cpu"))
    data = table(10)
    plain = DataLoader(TensorDataset(*data), batch_size=4)
    records = LoaderRecords(plain, torch.device("cpu"))
    taken = records.take(np.array([3, 1]))
    assert len(records) == 10
    assert all(torch.equal(part, whole[[3, 1]]) for part, whole in zip(taken, data, strict=True))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Mechanism(PrivacyUnit.default(Unit.SITE), 1.0, 1.0, 0.1), "cannot protect a whole site"),
        (lambda: mechanism(clip=0.0), "clip_norm"),
        (lambda: mechanism(clip=math.inf), "clip_norm"),
        (lambda: mechanism(sigma=-1.0), "noise multiplier"),
        (lambda: mechanism(sigma=math.nan), "noise multiplier"),
        (lambda: mechanism(rate=0.0), "sampling rate"),
        (lambda: mechanism(rate=1.5), "sampling rate"),
        (lambda: PrivateTraining(mechanism(GROUP)), "partition belongs to"),
        (lambda: PrivateTraining(mechanism(), partition=partition()), "partition belongs to"),
        (lambda: PrivateTraining(mechanism(GROUP), engine="hooks", partition=partition()), "not groups"),
        (lambda: PrivateTraining(mechanism(), max_records=0), "max_records"),
    ],
)
def test_impossible_settings_are_refused(make, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=why):
        make()


def test_data_of_the_wrong_length_is_refused_before_spending() -> None:
    events: list[Event] = []
    model = mlp()
    private = PrivateTraining(mechanism(GROUP), engine="loop", partition=partition(32), spend=events.append)
    with pytest.raises(DataError, match="the partition divides 32 records"):
        private.run(model, sgd(model), INFO_NCE, pairs(31), steps=1)
    with pytest.raises(DataError, match="one length"):
        private.run(model, sgd(model), INFO_NCE, (torch.zeros(3, 6), torch.zeros(4, 6)), steps=1)
    with pytest.raises(DataError, match="nothing to train"):
        PrivateTraining(mechanism(RECORD), spend=events.append).run(
            model, sgd(model), CROSS_ENTROPY, table(), steps=0
        )
    assert events == []


class _WithRest(nn.Module):
    """A frozen part with a random layer before a trained one, as in a stage that trains a head alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5))
        self.head = nn.Linear(8, 3)
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen.append((self.body[1].training, self.head.training))
        return torch.as_tensor(self.head(self.body(inputs)))


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_parts_that_are_at_rest_stay_so_and_every_part_gets_its_mode_back(engine: EngineName) -> None:
    model = _WithRest().train()
    model.body.requires_grad_(False).eval()
    run(model, table(), engine)
    assert set(model.seen) == {(False, True)}
    assert (model.training, model.body.training, model.body[1].training) == (True, False, False)

    model = _WithRest().eval()  # a model at rest trains as a whole, and is left at rest
    run(model, table(), engine)
    assert (True, True) in model.seen
    assert not any(part.training for part in model.modules())
