"""Bugs planted on purpose, and the numerical audits that must notice each of them.

An audit looks at gradients and at the distribution of what is released, never at a flag. Every test runs
its audit twice: on the code as it is (must pass) and with the bug (must fail). Statistical audits have a
false-alarm rate of 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from secfed.dp.accounting.events import Event, PoissonSampledGaussian
from secfed.dp.accounting.interface import Pld, Rdp
from secfed.dp.accounting.unit import Adjacency, GroupPartition, PrivacyUnit, Unit
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training import private_loop as training_module
from secfed.dp.training.engines import ClippedSum
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.dp.training.mechanism import GaussianNoise, Mechanism
from secfed.dp.training.patient_records import TensorRecords
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError
from tests.dp.oracles import FALSE_ALARM, deviation_p
from tests.dp.toys import (
    CROSS_ENTROPY,
    GROUP,
    INFO_NCE,
    LYING_ONE_TOWER,
    info_nce,
    mechanism,
    mlp,
    pairs,
    parameters,
    partition,
    sgd,
    table,
)


def released(private: PrivateTraining, model: nn.Module, loss: DeclaredLoss, data: Batch) -> torch.Tensor:
    """One release, as the sum before division: the change of the parameters under SGD."""
    before = parameters(model)
    with private.session(model, sgd(model), loss, records=len(data[0]), steps=1) as session:
        session.step(TensorRecords(data))
        divisor = session.expected_units
    return (before - parameters(model)).double() * divisor


def change_when_one_record_is_replaced(clip: float, engine: str) -> float:
    """How far the noiseless sum moves when one record is replaced by an extreme one."""
    inputs, labels = table(12)
    strange = inputs.clone()
    strange[5] = 1000.0
    exact = mechanism(clip=clip, sigma=0.0, rate=1.0)
    sums = [
        released(PrivateTraining(exact, engine=engine), mlp(), CROSS_ENTROPY, (rows, labels))
        for rows in (inputs, strange)
    ]
    return float((sums[0] - sums[1]).norm())


@pytest.mark.parametrize("engine", ["loop", "hooks", "ghost"])
def test_clipping_switched_off(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 2: replacing one record moves the sum by at most 2C."""
    clip = 0.05
    assert change_when_one_record_is_replaced(clip, engine) <= 2 * clip * (1 + 1e-4)
    monkeypatch.setattr(ClippedSum, "factors", lambda self, norms: torch.ones_like(norms))
    assert change_when_one_record_is_replaced(clip, engine) > 10 * clip


def noise_audit(promised: Mechanism) -> float:
    """p-value that pure noise has the deviation that the *event* promises."""
    model = nn.Linear(200, 50)
    private = PrivateTraining(promised, engine="loop", random=SecureRandom.for_simulation(11))
    event = private.mechanism.event(1)
    before = parameters(model)
    with private.session(model, sgd(model), CROSS_ENTROPY, records=10, steps=1) as session:
        session.release([], TensorRecords((torch.zeros(10),)))
        noise = (before - parameters(model)).double().numpy() * session.expected_units
    assert isinstance(event, PoissonSampledGaussian)
    return deviation_p(noise, event.noise_multiplier * promised.clip_norm * (1 + 2**-10))


@pytest.mark.parametrize("scale", [0.5, 0.96])
def test_noise_that_is_too_small(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    """At half of its scale, and by what rounding or a wrong constant could do."""
    promised = mechanism(clip=0.7, sigma=1.3, rate=0.5)
    assert noise_audit(promised) > FALSE_ALARM
    real = GaussianNoise.of

    def smaller(mechanism: Mechanism, *rest: object) -> GaussianNoise:
        return real(replace(mechanism, noise_multiplier=mechanism.noise_multiplier * scale), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(training_module.GaussianNoise, "of", smaller)
    assert noise_audit(promised) < FALSE_ALARM


def sampling_audit(promised: Mechanism) -> float:
    """p-value that units take part at the rate that the *event* states."""
    private = PrivateTraining(promised, engine="loop", random=SecureRandom.for_simulation(12))
    event = private.mechanism.event(1)
    assert isinstance(event, PoissonSampledGaussian)
    model, rounds, records = mlp(), 100, 300
    with private.session(model, sgd(model), CROSS_ENTROPY, records=records, steps=1) as session:
        drawn = sum(len(session.draw()) for _ in range(rounds))
    return float(stats.binomtest(drawn, rounds * records, event.sampling_rate).pvalue)


def test_sampling_rate_misstated(monkeypatch: pytest.MonkeyPatch) -> None:
    promised = mechanism(rate=0.1)
    assert sampling_audit(promised) > FALSE_ALARM
    real = SecureRandom.poisson_sample
    monkeypatch.setattr(
        SecureRandom, "poisson_sample", lambda self, rate, units: real(self, rate * 1.15, units)
    )
    assert sampling_audit(promised) < FALSE_ALARM


def test_a_fixed_batch_size_instead_of_poisson(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right on average and still not the sampling that was accounted for: the sizes do not vary."""

    def size_spread() -> float:
        private = PrivateTraining(mechanism(rate=0.1), engine="loop", random=SecureRandom.for_simulation(1))
        model = mlp()
        with private.session(model, sgd(model), CROSS_ENTROPY, records=400, steps=1) as session:
            return float(np.std([len(session.draw()) for _ in range(200)]))

    binomial = math.sqrt(400 * 0.1 * 0.9)
    assert size_spread() == pytest.approx(binomial, rel=0.25)
    monkeypatch.setattr(
        SecureRandom, "poisson_sample", lambda self, rate, units: np.arange(int(rate * units))
    )
    assert size_spread() != pytest.approx(binomial, rel=0.25)


@pytest.mark.parametrize("count", [16, 64])
def test_a_coupled_loss_clipped_per_record_moves_by_n_minus_1(count: int) -> None:
    """Section 1 of the specification: per-row clipping of InfoNCE moves by (n - 1) C, not by 2C.

    All images are e, all texts -e, and one text is replaced by e: every row's gradient jumps.
    """
    direction = torch.zeros(6)
    direction[0] = 1.0
    images = direction.expand(count, 6).clone()
    texts = -images
    changed = texts.clone()
    changed[0] = direction

    def rows_clipped(batch: Batch) -> torch.Tensor:
        embeddings = [part.clone().requires_grad_(True) for part in batch]
        losses = nn.functional.cross_entropy(
            embeddings[0] @ embeddings[1].T / 0.07, torch.arange(count), reduction="none"
        )
        (rows,) = torch.autograd.grad(losses.sum(), embeddings[:1])
        norms = rows.norm(dim=1, keepdim=True)
        return (rows / norms.clamp_min(1.0)).sum(dim=0)

    moved = float((rows_clipped((images, texts)) - rows_clipped((images, changed))).norm())
    assert moved == pytest.approx(count - 1, rel=0.01)


@pytest.mark.parametrize("engine", ["loop", "hooks", "ghost"])
def test_a_batch_coupled_loss_passed_per_record(engine: str) -> None:
    """Declared honestly it is refused; with a false declaration the engines notice from the numbers."""
    model = mlp()
    with pytest.raises(ConfigError, match="couples the records"):
        PrivateTraining(mechanism(), engine=engine).run(model, sgd(model), INFO_NCE, pairs(), steps=1)
    if engine == "loop":
        return  # one record at a time: there is nothing to be coupled with, the bound holds
    before = parameters(model)
    with pytest.raises(ConfigError, match="disagree on per-record gradients"):
        PrivateTraining(mechanism(rate=1.0), engine=engine).run(
            model, sgd(model), LYING_ONE_TOWER, (pairs()[0], pairs()[0][:, :3]), steps=1
        )
    assert torch.equal(parameters(model), before)


@pytest.mark.parametrize("engine", ["hooks", "ghost"])
def test_a_repeated_forward(engine: str) -> None:
    model = mlp()
    siamese = DeclaredLoss(
        "siamese", True, lambda net, batch: ((net(batch[0]) - net(batch[1])) ** 2).sum(dim=1)
    )
    with pytest.raises(ConfigError, match="ran a second time in one step"):
        PrivateTraining(mechanism(rate=1.0), engine=engine).run(model, sgd(model), siamese, pairs(), steps=1)
    PrivateTraining(mechanism(rate=1.0), engine="loop").run(model, sgd(model), siamese, pairs(), steps=1)


def test_replacing_one_record_changes_one_group_by_at_most_two_clips() -> None:
    """Invariant 2 for groups: the sensitivity that the accountant is told."""
    model, groups, clip = mlp(), partition(32, 4), 0.1
    images, texts = pairs(32)
    other = texts.clone()
    other[7] = -50.0 * texts[7]
    exact = mechanism(GROUP, clip=clip, sigma=0.0, rate=1.0)
    moved = []
    for rows in (texts, other):
        private = PrivateTraining(exact, engine="loop", partition=groups)
        moved.append(released(private, mlp(), INFO_NCE, (images, rows)))
    assert 0 < float((moved[0] - moved[1]).norm()) <= 2 * clip * (1 + 1e-5)
    del model
    changed = 0
    for group in groups.groups:
        taken = torch.from_numpy(group)
        first, second = (info_nce(mlp(), (images[taken], rows[taken])) for rows in (texts, other))
        changed += not torch.equal(first, second)
    assert changed == 1


def antipodal_releases(count: int, sign: int) -> np.ndarray:
    """Releases of a one-parameter mechanism on the two data sets that replace-one has to distinguish."""
    clip, sigma = 1.0, 0.8
    model = nn.Linear(1, 1, bias=False)
    pull = DeclaredLoss("pull", False, lambda net, batch: (net(batch[0]) * sign * 5.0).mean())
    groups = GroupPartition.of(2, 2, seed=0)
    private = PrivateTraining(
        mechanism(GROUP, clip=clip, sigma=sigma, rate=1.0),
        engine="loop",
        partition=groups,
        random=SecureRandom.for_simulation(3, sign),
    )
    values = []
    optimiser = sgd(model)
    with private.session(model, optimiser, pull, records=2, steps=count) as session:
        for _ in range(count):
            before = float(parameters(model))
            session.step(TensorRecords((torch.ones(2, 1),)))
            values.append((before - float(parameters(model))) / sigma)
    return np.array(values)


def test_an_accountant_fed_the_wrong_adjacency() -> None:
    """Groups clipped to C move by 2C. Releases themselves refute the add-or-remove number."""
    plus, minus = antipodal_releases(1500, +1), antipodal_releases(1500, -1)
    events: dict[Adjacency, list[Event]] = {
        adjacency: [PoissonSampledGaussian(adjacency, 1.0, 0.8, 1)]
        for adjacency in (Adjacency.ADD_OR_REMOVE_RECORD, Adjacency.REPLACE_RECORD)
    }
    epsilon = 1.0

    def lower_bound_on_delta() -> float:
        # The best test at this epsilon rejects above a threshold; Clopper-Pearson makes it a bound.
        threshold = epsilon / (plus.mean() - minus.mean())
        hits, false = int((plus > threshold).sum()), int((minus > threshold).sum())
        size = len(plus)
        low = stats.beta.ppf(FALSE_ALARM / 2, hits, size - hits + 1)
        high = stats.beta.ppf(1 - FALSE_ALARM / 2, false + 1, size - false)
        return float(low - math.exp(epsilon) * high)

    attacked = lower_bound_on_delta()
    claimed = {key: Pld().epsilon(value, attacked) for key, value in events.items()}
    assert claimed[Adjacency.ADD_OR_REMOVE_RECORD] < epsilon, "the wrong number would go unnoticed"
    assert claimed[Adjacency.REPLACE_RECORD] > epsilon


def test_the_wrong_adjacency_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="no guarantee under"):
        PrivacyUnit(Unit.GROUP, Adjacency.ADD_OR_REMOVE_RECORD)
    event = mechanism(GROUP).event(10)
    assert event.adjacency is Adjacency.REPLACE_RECORD
    with pytest.raises(ConfigError, match="add-or-remove only"):
        Rdp().epsilon([event], 1e-5)
