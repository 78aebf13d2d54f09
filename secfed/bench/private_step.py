"""A step of private training against a plain one, and against Opacus, in one run.

Steps are taken in turns, on the same records and one thread, in seconds of the processor; reported are ratios
of medians. Private steps draw as many records as plain ones (a sampling rate of 1). Opacus's noise is quick
and not secure; here it is exact and from a stream cipher. ``ratio_to_plain`` is of the engine "ghost",
``hooks_to_plain`` of "hooks"; ``opacus`` is None for a model that it cannot do.
"""

from __future__ import annotations

import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import torch
from torch import nn

from secfed.bench.private_models import CASES, Case, case
from secfed.dp.accounting.unit import PrivacyUnit, Unit
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.sampler import NoiseSampler, RoundedNormal
from secfed.dp.training.engines import EngineName
from secfed.dp.training.losses import supervised
from secfed.dp.training.mechanism import Mechanism
from secfed.dp.training.patient_records import TensorRecords
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError
from secfed.runs.machine import processor

_WARM_UP: Final = 2
_NOISE_BITS: Final = 22  # of the grid of half a million parameters
_LOSS: Final = nn.CrossEntropyLoss()
_CLIP_NORM: Final = 1.0

Step = Callable[[], object]


def measure(
    *,
    models: Iterable[str] = tuple(CASES),
    steps: int = 20,
    quick: bool = False,
    progress: Callable[[str], None] = lambda _text: None,
) -> dict[str, Any]:
    """Run the benchmark; JSON-ready. ``quick`` takes tiny models, whose ratios mean nothing."""
    try:
        import opacus
    except ImportError as problem:
        message = f"secfed bench private-step compares with Opacus, which cannot be imported: {problem}"
        raise ConfigError(message, remedy="pip install opacus") from None
    result: dict[str, Any] = {
        "machine": {"processor": processor(), "python": platform.python_version(), "threads": 1},
        "versions": {"torch": torch.__version__, "opacus": opacus.__version__},
        "steps": steps,
        "models": {},
    }
    with _one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says about hooks concerns nobody here
        progress("noise")
        result["normals_per_s"] = _normals_per_s(1 << (14 if quick else 20))
        for name in models:
            progress(name)
            found = case(name, quick=quick)
            if found is not None:
                result["models"][name] = _model(name, found, steps, quick)
    return result


def _model(name: str, found: Case, steps: int, quick: bool) -> dict[str, Any]:
    """One model: all its steps in turns."""
    model, data = found

    def fresh() -> nn.Module:
        again = case(name, quick=quick)
        return again[0] if again else model

    with ExitStack() as stack:
        runs: dict[str, Step] = {"plain": _plain(fresh(), data)}
        runs["all"] = _private(stack, "ghost", fresh(), data, 1.0)
        runs["without_noise"] = _private(stack, "ghost", fresh(), data, 0.0)
        runs["hooks"] = _private(stack, "hooks", fresh(), data, 1.0)
        for kind, make in (("hooks", _opacus_hooks), ("ghost", _opacus_ghost)):
            with suppress(NotImplementedError, RuntimeError):  # a layer that it does not know
                run = make(fresh(), data)
                run()
                runs[f"opacus {kind}"] = run
        took: dict[str, list[float]] = {kind: [] for kind in runs}
        for _ in range(_WARM_UP + steps):
            for kind, run in runs.items():
                began = time.process_time()
                run()
                took[kind].append(time.process_time() - began)
    seconds = {kind: statistics.median(values[_WARM_UP:]) for kind, values in took.items()}
    ratios = {kind: value / seconds["plain"] for kind, value in seconds.items()}
    return {
        "parameters": sum(value.numel() for value in model.parameters()),
        "records": len(data[1]),
        "plain_s": seconds["plain"],
        "ratio_to_plain": {what: ratios[what] for what in ("all", "without_noise")},
        "hooks_to_plain": ratios["hooks"],
        "opacus": {kind: ratios.get(f"opacus {kind}") for kind in ("hooks", "ghost")},
    }


def _plain(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> Step:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimiser.zero_grad()
        _LOSS(model(data[0]), data[1]).backward()
        optimiser.step()

    return step


def _private(
    stack: ExitStack,
    engine: EngineName,
    model: nn.Module,
    data: tuple[torch.Tensor, torch.Tensor],
    noise_multiplier: float,
) -> Step:
    mechanism = Mechanism(PrivacyUnit.default(Unit.RECORD), _CLIP_NORM, noise_multiplier, 1.0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    training = PrivateTraining(mechanism, engine=engine, max_records=len(data[1]))
    loss, forever = supervised(_LOSS), 10**9
    session = stack.enter_context(
        training.session(model, optimiser, loss, records=len(data[1]), steps=forever)
    )
    records = TensorRecords(data)
    return lambda: session.step(records)


def _opacus_hooks(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> Step:
    """Gradients per record of the whole batch (``GradSampleModule``)."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model.train(), loss_reduction="mean")
    optimiser = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=_CLIP_NORM,
        expected_batch_size=len(data[1]),
    )

    def step() -> None:
        optimiser.zero_grad()
        _LOSS(wrapped(data[0]), data[1]).backward()
        optimiser.step()

    return step


def _opacus_ghost(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> Step:
    """Fast gradient clipping: norms first, then a second backward pass of the weighted losses."""
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        model.train(), loss_reduction="mean", max_grad_norm=_CLIP_NORM, use_ghost_clipping=True
    )
    optimiser = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=_CLIP_NORM,
        expected_batch_size=len(data[1]),
    )
    criterion = DPLossFastGradientClipping(wrapped, optimiser, nn.CrossEntropyLoss(), "mean")

    def step() -> None:
        optimiser.zero_grad()
        criterion(wrapped(data[0]), data[1]).backward()
        optimiser.step()

    return step


def _normals_per_s(count: int) -> float:
    """Exact rounded normals from a stream cipher, per second of one core."""
    sampler = NoiseSampler(RoundedNormal(2.0**_NOISE_BITS), SecureRandom())
    sampler.take(count // 8)
    took = []
    for _ in range(3):
        began = time.process_time()
        sampler.take(count)
        took.append(time.process_time() - began)
    return count / statistics.median(took)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
