"""An engine against the plain loop, on the first records of a run.

Hooks and ghost clipping are fast because they never compute one record's gradient alone. Whatever goes
wrong there (a layer that mixes records, a loss whose declaration is false, a hook that pairs the wrong
tensors) shows as a difference from the loop, on real records, before the first release. Nothing of the
comparison leaves the site.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn

from secfed.dp.engines import ClippedSum, Engine, EngineName, LoopEngine
from secfed.dp.losses import Batch, UnitLoss
from secfed.errors import ConfigError

_RECORDS: Final = 3
_TOLERANCE: Final = 0.01  # mixed precision is within it, a wrong gradient is not


def check_engine(name: EngineName, engine: Engine, model: nn.Module, loss: UnitLoss, batch: Batch) -> None:
    """Compare sums of gradients of the first records, unclipped and clipped.

    Args:
        name: nothing is done for ``loop``.
        engine: attached to the model.
        model: in training mode; its dropout is switched off meanwhile.
        loss: one value per record.
        batch: rows are records.

    Raises:
        ConfigError: they differ.
    """
    if name == "loop":
        return
    rows = tuple(part[:_RECORDS] for part in batch)
    singles = [tuple(part[at : at + 1] for part in rows) for at in range(len(rows[0]))]
    parameters = {key: value for key, value in model.named_parameters() if value.requires_grad}
    clip_norm = math.inf
    with _without_dropout(model):
        for _ in range(2):
            with engine.paused():
                wanted, size = _sum(LoopEngine(model, loss), singles, parameters, clip_norm)
            try:
                found, _ = _sum(engine, [rows], parameters, clip_norm)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as problem:  # Opacus and vmap report unsupported layers like this
                raise ConfigError(
                    f"engine {name!r} cannot run this model: {problem}",
                    remedy="pass every input with a record dimension and contiguous (BERT: explicit "
                    'position and token type ids), or use engine = "loop"',
                ) from problem
            # NaN is no agreement.
            if not float(torch.linalg.vector_norm(found - wanted)) <= _TOLERANCE * size + 1e-6:
                raise ConfigError(
                    f"engine {name!r} and the plain loop disagree on per-record gradients with loss "
                    f"{loss.name!r}: a layer mixes records, or the loss does not decompose",
                    remedy='use engine = "loop", and check the loss with secfed.dp.losses.check_decomposes',
                )
            # Then clipped at half of the mean norm, so that the factors of the records differ.
            clip_norm = max(size / (2 * len(singles)), 1e-6)


def _sum(
    engine: Engine, units: list[Batch], parameters: dict[str, nn.Parameter], clip_norm: float
) -> tuple[torch.Tensor, float]:
    total = ClippedSum(parameters, clip_norm=clip_norm, grid=0.0)
    engine.add(units, total)
    flat = torch.cat([part.reshape(-1).cpu() for part in total.sums.values()])
    return flat, float(torch.linalg.vector_norm(flat))


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    layers = [part for part in model.modules() if isinstance(part, nn.modules.dropout._DropoutNd)]
    rates = [layer.p for layer in layers]
    for layer in layers:
        layer.p = 0.0
    try:
        yield
    finally:
        for layer, rate in zip(layers, rates, strict=True):
            layer.p = rate
