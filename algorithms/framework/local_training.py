"""Local training of one phase: one optimiser, passes over batches, a declared loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch import nn

from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.dp.training.step import Steps, StepSettings

_PLAIN: Final = StepSettings()


def fit(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: DeclaredLoss,
    batches: Callable[[], Iterable[Batch]],
    *,
    epochs: int,
    device: torch.device,
    settings: StepSettings = _PLAIN,
) -> float:
    """Train in place on the ``batches`` of every pass; mean loss per record in the last pass."""
    steps = Steps(optimiser, lambda *batch: loss(network, batch).mean(), device, settings)
    for epoch in range(epochs):
        for batch in batches():
            steps.take(batch, len(batch[0]) if epoch == epochs - 1 else 0)
    optimiser.zero_grad()
    return steps.mean()
