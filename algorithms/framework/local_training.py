"""Local training of one phase: one optimiser, passes over batches, a declared loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from secfed.dp.training.losses import Batch, DeclaredLoss


def fit(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: DeclaredLoss,
    batches: Callable[[], Iterable[Batch]],
    *,
    epochs: int,
) -> float:
    """Train in place on the ``batches`` of every pass; mean loss per record in the last pass."""
    total, records = 0.0, 0
    for epoch in range(epochs):
        for batch in batches():
            optimiser.zero_grad()
            value = loss(network, batch).mean()
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if epoch == epochs - 1:
                total += float(value.detach()) * len(batch[0])
                records += len(batch[0])
    optimiser.zero_grad()
    return total / records
