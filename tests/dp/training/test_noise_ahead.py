"""Noise that a thread draws while the sum is computed is what would be drawn afterwards, bit by bit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from secfed.dp.mechanisms.adaptive_clipping import AdaptiveClip
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.sampler import NoiseSampler
from secfed.dp.training import mechanism as module
from secfed.dp.training.engines import ClippedSum, EngineName
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.dp.training.mechanism import GaussianNoise, Mechanism
from secfed.dp.training.patient_records import TensorRecords
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError
from tests.dp.toys import (
    CROSS_ENTROPY,
    ENGINES,
    LYING_ONE_TOWER,
    mechanism,
    mlp,
    no_thread_is_left,
    pairs,
    parameters,
    sgd,
    table,
)

STEPS = 4


class Alone(SecureRandom):
    """Takes its time, and fails where two threads draw at once."""

    def __init__(self, stream_key: bytes | None = None) -> None:
        super().__init__(stream_key)
        self._busy = threading.Lock()

    def words(self, count: int) -> NDArray[np.uint64]:
        assert self._busy.acquire(blocking=False)
        try:
            time.sleep(0.01)
            return super().words(count)
        finally:
            self._busy.release()


class Interrupted(TensorRecords):
    """Records that are interrupted when they are taken for the second time, while noise is drawn."""

    taken = 0

    def take(self, indices: NDArray[np.int64]) -> Batch:
        self.taken += 1
        if self.taken == 2:
            raise KeyboardInterrupt
        return super().take(indices)


def stream() -> Alone:
    return Alone(bytes(range(32)))


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every call of a sampler, whether another thread than the main one made it."""
    seen: list[bool] = []
    take = NoiseSampler.take

    def noted(self: NoiseSampler, count: int) -> NDArray[np.int64]:
        seen.append(threading.current_thread() is not threading.main_thread())
        return take(self, count)

    monkeypatch.setattr(NoiseSampler, "take", noted)
    return seen


@pytest.fixture
def in_a_thread(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    return lambda wanted: monkeypatch.setattr(module, "_pays", lambda _parameters: wanted)


def trained(
    engine: EngineName, promised: Mechanism, random: SecureRandom
) -> tuple[list[torch.Tensor], NDArray[np.uint64]]:
    """The gradients of every step, and what the stream gives next."""
    model, gradients = mlp(), list[torch.Tensor]()
    optimiser = sgd(model, 0.1)

    def keep(*_: object) -> None:
        given = [value.grad.reshape(-1) for value in model.parameters() if value.grad is not None]
        gradients.append(torch.cat(given).clone())

    optimiser.register_step_pre_hook(keep)
    PrivateTraining(promised, engine=engine, random=random).run(
        model, optimiser, CROSS_ENTROPY, table(), steps=STEPS
    )
    return gradients, random.words(5)


@pytest.mark.parametrize("adaptive", [None, AdaptiveClip()], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_and_the_rest_of_the_stream_are_the_same(
    engine: EngineName,
    adaptive: AdaptiveClip | None,
    drawing: list[bool],
    in_a_thread: Callable[[bool], None],
) -> None:
    plain = mechanism(clip=0.5, rate=0.4)
    promised = Mechanism(plain.unit, plain.clip_norm, plain.noise_multiplier, plain.sampling_rate, adaptive)
    in_a_thread(False)
    wanted, after = trained(engine, promised, stream())
    assert not any(drawing)
    in_a_thread(True)
    found, then = trained(engine, promised, stream())
    assert sum(drawing) == STEPS - 1  # all but the step that checks the engine
    assert len(found) == STEPS
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert np.array_equal(then, after)
    assert no_thread_is_left()


def test_what_is_interrupted_leaves_no_thread_and_the_stream_behind_its_noise(
    drawing: list[bool], in_a_thread: Callable[[bool], None]
) -> None:
    in_a_thread(True)
    model, random, records = mlp(), stream(), Interrupted(table())
    private = PrivateTraining(mechanism(), engine="ghost", random=random)
    with private.session(model, sgd(model), CROSS_ENTROPY, records=40, steps=3) as session:
        session.step(records)
        with pytest.raises(KeyboardInterrupt):
            session.step(records)
        assert drawing == [False] * 6 + [True]  # tensor by tensor, then all at once
        assert no_thread_is_left()
        session.step(records)

    in_a_thread(False)
    other, same = mlp(), stream()
    private = PrivateTraining(mechanism(), engine="ghost", random=same)
    with private.session(other, sgd(other), CROSS_ENTROPY, records=40, steps=2) as session:
        session.step(TensorRecords(table()))
        session.draw()
        session.noise._sampler.take(parameters(other).numel())  # type: ignore[union-attr]
        session.step(TensorRecords(table()))
    assert torch.equal(parameters(model), parameters(other))
    assert np.array_equal(random.words(5), same.words(5))


def test_an_engine_that_is_refused_has_drawn_no_noise(in_a_thread: Callable[[bool], None]) -> None:
    data = pairs()
    after = []
    for wanted in (False, True):
        in_a_thread(wanted)
        model, random = nn.Linear(6, 6), stream()
        with pytest.raises(ConfigError):
            PrivateTraining(mechanism(rate=1.0), engine="hooks", random=random).run(
                model, sgd(model), LYING_ONE_TOWER, data, steps=1
            )
        after.append(random.words(5))
    assert np.array_equal(*after)


def test_a_failure_of_the_thread_is_raised_and_nothing_is_released(
    monkeypatch: pytest.MonkeyPatch, in_a_thread: Callable[[bool], None]
) -> None:
    in_a_thread(True)
    model = mlp()
    private = PrivateTraining(mechanism(rate=1.0), engine="ghost", random=stream())
    with private.session(model, sgd(model), CROSS_ENTROPY, records=40, steps=2) as session:
        session.step(TensorRecords(table()))
        before = parameters(model).clone()

        def full(_self: NoiseSampler, _count: int) -> NDArray[np.int64]:
            raise MemoryError

        monkeypatch.setattr(NoiseSampler, "take", full)
        with pytest.raises(MemoryError):
            session.step(TensorRecords(table()))
        assert torch.equal(parameters(model), before)


def test_a_sum_without_noise_needs_no_thread(
    drawing: list[bool], in_a_thread: Callable[[bool], None]
) -> None:
    in_a_thread(True)
    model = mlp()
    private = PrivateTraining(mechanism(sigma=0.0), engine="loop")
    private.run(model, sgd(model), DeclaredLoss("sum", True, CROSS_ENTROPY.criterion), table(), steps=2)
    assert drawing == []


@pytest.mark.parametrize(
    ("device", "count", "wanted"), [("cpu", 1 << 19, False), ("meta", 1 << 19, True), ("meta", 1000, False)]
)
def test_a_thread_pays_for_many_parameters_on_a_device_of_its_own(
    device: str, count: int, wanted: bool
) -> None:
    values = {"weight": nn.Parameter(torch.empty(count, device=device))}
    assert module._pays(values) == wanted
    noise = GaussianNoise(1.0, 20, stream())
    with noise.drawn_ahead(values):
        assert (noise._ahead is not None) == wanted
    assert noise._ahead is None


def test_a_second_release_beside_the_same_block_has_noise_of_its_own(
    in_a_thread: Callable[[bool], None],
) -> None:
    in_a_thread(True)
    values, promised = dict(mlp().named_parameters()), mechanism()
    noise = GaussianNoise.of(promised, promised.clip_norm, values, stream())
    seen = []
    with noise.drawn_ahead(values):
        for _ in range(2):
            total = ClippedSum(values, clip_norm=promised.clip_norm, grid=noise.grid)
            noise.write_gradients(total, 1.0)
            seen.append(torch.cat([value.grad.reshape(-1) for value in values.values()]))  # type: ignore[union-attr]
    assert not torch.isclose(*seen).any()
