"""Many records at once, each as if it were alone: to the last bit, whatever the weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from secfed.algorithms.models.networks import SmallCnnOptions, small_cnn
from secfed.dp.training import exact_engine
from secfed.dp.training.engine_check import one_by_one
from secfed.dp.training.engines import ClippedSum, Engine, LoopEngine
from secfed.dp.training.exact import Alive, exp, factor_bits, rounded_weights, term_bits
from secfed.dp.training.exact_engine import ExactEngine
from secfed.dp.training.losses import Batch, supervised

LOSS = supervised(nn.functional.cross_entropy)
COUNT = 263


def cnn(norm: str) -> nn.Module:
    return small_cnn((2, 9, 8), 3, SmallCnnOptions(name="small-cnn", channels=(4, 6), hidden=7, norm=norm))


def deep() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 65, bias=False), nn.ReLU(), nn.Linear(65, 3))
    return nn.Sequential(model, nn.GroupNorm(1, 3, affine=False))


def strided() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 5, (3, 2), stride=2, bias=False), nn.Flatten(), nn.Linear(80, 3))


def normed() -> nn.Module:
    layers = nn.Linear(144, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(nn.Flatten(), *layers)


MODELS: list[Callable[[], nn.Module]] = [lambda: cnn("group"), lambda: cnn("none"), deep, strided, normed]


def made(build: Callable[[], nn.Module], scale: float = 1.0) -> tuple[nn.Module, Batch]:
    torch.manual_seed(3)
    model = build()
    with torch.no_grad():
        for value in model.parameters():
            value *= scale
    return model, (torch.randn(COUNT, 2, 9, 8), torch.randint(0, 3, (COUNT,)))


def engine_of(model: nn.Module, batch: Batch) -> ExactEngine:
    found = ExactEngine.of(model, LOSS, batch)
    assert found is not None
    return found


def summed(engine: Engine, model: nn.Module, units: list[Batch], clip: float) -> torch.Tensor:
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    into = ClippedSum(parameters, clip_norm=clip, grid=0.0)
    engine.add(units, into)
    return torch.cat([part.reshape(-1) for part in into.sums.values()])


class Only(ClippedSum):
    """Takes one record's gradient out of a batch whose other records are all at work."""

    def __init__(self, model: nn.Module, at: int) -> None:
        super().__init__(dict(model.named_parameters()), clip_norm=1.0, grid=0.0)
        self._left = at

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        factors = torch.zeros_like(norms)
        if 0 <= self._left < len(norms):
            self.norm, factors[self._left] = norms[self._left], 1.0
        self._left -= len(norms)
        return factors


def alone_in(model: nn.Module, batch: Batch, at: int) -> torch.Tensor:
    into = Only(model, at)
    engine_of(model, batch).add([batch], into)
    assert bool(torch.isfinite(into.norm))
    return torch.cat([into.norm[None], *[part.reshape(-1) for part in into.sums.values()]])


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("clip", [0.3, math.inf])
def test_the_sum_is_that_of_the_loop(build: Callable[[], nn.Module], clip: float) -> None:
    model, batch = made(build)
    next(iter(model.parameters())).requires_grad_(False)
    exact = summed(engine_of(model, batch), model, [batch], clip)
    wide = model.to(torch.float64)
    rows = one_by_one((batch[0].double(), batch[1]))
    wanted = summed(LoopEngine(wide, LOSS), wide, rows, clip)
    assert float((exact - wanted).norm()) < 1e-4 * float(wanted.norm())


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_neither_neighbours_nor_position_change_a_bit(build: Callable[[], nn.Module], scale: float) -> None:
    model, (x, y) = made(build, scale)
    others = torch.flip(x, [0]) * 1e3
    for at in (0, 255, 256, COUNT - 1):
        wanted = alone_in(model, (x[at : at + 1], y[at : at + 1]), 0)
        assert torch.equal(alone_in(model, (x, y), at), wanted)
        assert torch.equal(alone_in(model, (x[: at + 1], y[: at + 1]), at), wanted)
        changed = others.clone()
        changed[7] = x[at]
        assert torch.equal(alone_in(model, (changed, torch.full_like(y, int(y[at]))), 7), wanted)


def test_weights_that_cancel_get_nothing_from_the_last_digits() -> None:
    """Equal rows of weights, then as much of plus as of minus: nothing but rounding would be left."""
    model, batch = made(deep)
    first, second = model[0][1], model[0][3]
    with torch.no_grad():
        first.weight.copy_(first.weight[:1].expand(65, 144).abs())
        second.weight.copy_(torch.tensor([1e6, -1e6]).repeat(33)[:65].expand(3, 65))
        second.weight[:, -1] = 0.0
    for at in (0, 100, COUNT - 1):
        single = batch[0][at : at + 1], batch[1][at : at + 1]
        assert torch.equal(alone_in(model, batch, at), alone_in(model, single, 0))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
@pytest.mark.parametrize("build", MODELS)
def test_a_record_without_usable_numbers_adds_zeros(build: Callable[[], nn.Module], value: float) -> None:
    model, (x, y) = made(build)
    engine = engine_of(model, (x, y))
    kept = torch.arange(COUNT) != 5
    wanted = summed(engine, model, [(x[kept], y[kept])], 0.5)
    if math.isfinite(value):  # finite in float64, and clipped like any other
        x[5] = value
        assert float((summed(engine, model, [(x, y)], 0.5) - wanted).norm()) <= 0.5 * (1 + 1e-9)
        return
    x[5, 0, 0, 0] = value
    assert torch.allclose(summed(engine, model, [(x, y)], 0.5), wanted, rtol=0, atol=1e-12)
    assert torch.equal(summed(engine, model, [(x[5:6], y[5:6])], 0.5), torch.zeros_like(wanted))


@pytest.mark.parametrize("label", [-100, -1, 3])
def test_a_class_that_there_is_not_adds_zeros(label: int) -> None:
    model, (x, y) = made(deep)
    y[0] = label
    assert not bool(summed(engine_of(model, (x, y)), model, [(x[:1], y[:1])], 0.5).any())


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        return 2.0 * super().forward(input)


def hooked() -> nn.Module:
    layer = nn.Linear(144, 3)
    layer.register_forward_hook(lambda _layer, _inputs, output: output * 2.0)
    return nn.Sequential(nn.Flatten(), layer)


def tied() -> nn.Module:
    first, second = nn.Linear(144, 144), nn.Linear(144, 144)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, second)


def repeated() -> nn.Module:
    """Its two gradients are orthogonal for most weights, so that a comparison does not notice."""
    layer, wider = nn.Linear(784, 784, bias=False), nn.Linear(144, 784, bias=False)
    return nn.Sequential(nn.Flatten(), wider, layer, layer, nn.Linear(784, 2, bias=False))


def half_affine() -> nn.Module:
    layer = nn.GroupNorm(2, 4)
    layer.bias = None
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 4), layer, nn.Linear(4, 3))


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 4), nn.Tanh(), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Flatten(), Doubled(144, 3)),
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(168, 3)),
        lambda: nn.Sequential(nn.MaxPool2d(3, stride=1), nn.Flatten(), nn.Linear(84, 3)),
        lambda: nn.Sequential(nn.Linear(8, 3), nn.Flatten(), nn.Linear(54, 3)),  # a linear layer of images
        hooked,
        tied,
        repeated,
        half_affine,
    ],
)
def test_any_other_model_takes_the_loop(build: Callable[[], nn.Module]) -> None:
    model, batch = made(build)
    assert ExactEngine.of(model, LOSS, batch) is None


def test_another_loss_takes_the_loop() -> None:
    model, batch = made(deep)
    named = supervised(nn.CrossEntropyLoss(label_smoothing=0.1))
    assert ExactEngine.of(model, named, batch) is None
    assert ExactEngine.of(model, LOSS, (batch[0], batch[1].float())) is None


def test_products_of_rounded_numbers_have_no_error() -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(5, 1000, generator=generator, dtype=torch.float64)
    weights = torch.randn(1000, 3, generator=generator, dtype=torch.float64)
    bits = factor_bits(1000)
    left, right = Alive(5).rounded(values, bits), rounded_weights(weights, bits)
    assert float((left - values).abs().max()) <= 4.0 * 2.0**-bits
    exact = [[math.fsum((left[i] * right[:, j]).tolist()) for j in range(3)] for i in range(5)]
    assert (left @ right).tolist() == exact


def test_exponentials_are_near_those_of_the_library() -> None:
    x = torch.linspace(-16.0, 0.0, 4001, dtype=torch.float64)
    assert float((exp(x) / torch.exp(x) - 1.0).abs().max()) < 1e-11
    assert float(exp(torch.tensor([-1e300], dtype=torch.float64))) < 1e-20


@pytest.mark.parametrize("terms", [3, 1000, 1 << 20])
def test_norms_are_never_too_small(terms: int) -> None:
    """Most squares lie just below half a step of what they are rounded to, and are lost."""
    values = torch.full((2, terms), (0.99 * 2.0 ** -term_bits(terms)) ** 0.5, dtype=torch.float64)
    values[:, 0] = 1.0
    values[1] = 2.0**-230  # squares too small to be rounded to anything
    found = Alive(2).squares(values)
    wanted = values.square().sum(1)
    assert bool((found >= wanted).all())
    assert float(found[0]) <= 1.003 * float(wanted[0])


def test_memory_bounds_how_many_records_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = made(deep)
    whole = summed(engine_of(model, batch), model, [batch], 1.0)
    monkeypatch.setattr(exact_engine, "_ELEMENTS", 20_000)
    engine = engine_of(model, batch)
    assert torch.allclose(summed(engine, model, [batch], 1.0), whole, rtol=1e-12, atol=1e-12)
    assert 1 < engine._at_a_time < 100
