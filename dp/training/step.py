"""One step of training, the same for every algorithm: precision, the loss's scale, compilation, copies.

Nothing is read back from a device during training: a GPU's queue would be waited for at every step. (With
float16 torch itself looks, once a step, whether the gradients overflowed.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch.optim import Optimizer

from secfed.dp.training.losses import Batch

Precision = Literal["float32", "bfloat16", "float16"]

_DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_FIRST_SCALE: Final = 2.0**12  # of float16 losses; from torch's default a short training would skip steps


@dataclass(frozen=True)
class StepSettings:
    """How steps are carried out: ``precision`` is that of forward passes, parameters stay float32."""

    precision: Precision = "float32"
    compile: bool = False  # by torch.compile

    @classmethod
    def of(cls, options: object) -> StepSettings:
        """Those of an ``[algorithm]`` table; the defaults where it has no such keys."""
        return cls(getattr(options, "precision", cls.precision), getattr(options, "compile", cls.compile))


class Steps:
    """Takes the steps of one optimiser."""

    def __init__(
        self,
        optimiser: Optimizer,
        loss: Callable[..., torch.Tensor],
        device: torch.device,
        settings: StepSettings,
    ) -> None:
        self._optimiser, self._device, self._precision = optimiser, device, settings.precision
        self._loss: Callable[..., torch.Tensor] = torch.compile(loss) if settings.compile else loss
        self._scaler = torch.amp.GradScaler(
            device.type, init_scale=_FIRST_SCALE, enabled=settings.precision == "float16"
        )
        self._total, self._count = torch.zeros((), dtype=torch.float64, device=device), 0

    def take(self, batch: Batch, count: int = 1) -> None:
        """One step on the loss of a batch, which counts so often in the mean; 0 leaves it out."""
        self._optimiser.zero_grad(set_to_none=True)
        with reduced_precision(self._device, self._precision):
            value = self._loss(*onto(self._device, batch))
        self._scaler.scale(value).backward()  # type: ignore[no-untyped-call]
        self._scaler.unscale_(self._optimiser)  # before the step: its hooks see gradients of the true size
        self._scaler.step(self._optimiser)
        self._scaler.update()
        if count:  # the loss of no record at all is NaN
            self._total += value.detach().to(torch.float64) * count
            self._count += count

    def mean(self, empty: float = float("nan")) -> float:
        """The mean loss; ``empty`` where nothing counted."""
        return float(self._total) / self._count if self._count else empty


def onto(device: torch.device, batch: Batch) -> Batch:
    """A batch on the device; to a GPU from pinned memory, so that the copy runs beside the step before."""
    if device.type != "cuda":
        return tuple(part.to(device) for part in batch)
    return tuple(part.to(device, non_blocking=True) for part in _pinned(batch))


def ahead(batches: Iterable[Batch], device: torch.device) -> Generator[Batch, None, None]:
    """These batches, for a GPU each made and pinned in a thread while the step before is taken.

    They must not draw from torch's default generators, which steps use: their turns would change. Close it
    where not all are taken, so that no thread is left; one batch more may then have been made.
    """
    if device.type != "cuda":
        yield from batches
        return
    source = iter(batches)

    def following() -> Batch | None:
        batch = next(source, None)
        return None if batch is None else _pinned(batch)

    with ThreadPoolExecutor(1) as thread:  # waits for it at the end
        coming = thread.submit(following)
        while (batch := coming.result()) is not None:
            coming = thread.submit(following)
            yield batch


def _pinned(batch: Batch) -> Batch:
    return tuple(part if part.is_cuda else part.pin_memory() for part in batch)


def reduced_precision(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """A context in which forward passes run in this precision."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])
