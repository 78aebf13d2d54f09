"""One phase of FMCSC's local training: one optimiser, fixed batches, a declared loss."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from secfed.dp.training.losses import Batch, DeclaredLoss


def train_only(network: nn.Module, parts: Collection[str]) -> None:
    """Freeze every parameter that a phase does not train: no gradient, no optimiser state.

    Args:
        network: changed in place.
        parts: name prefixes such as ``enc.0`` or ``fuse_head``.
    """
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(any(name.startswith(part + ".") for part in parts))


def fused_adam(network: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Adam over what :func:`train_only` left trainable; its moments live for one phase."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return torch.optim.Adam(trained, lr=learning_rate, fused=True)


def fit(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: DeclaredLoss,
    data: Batch,
    *,
    epochs: int,
    batch_size: int,
) -> float:
    """Train in place, over the records in their order; the last batch may be smaller.

    Args:
        network: the model.
        optimiser: over its trainable parameters.
        loss: one value per record, or one for the batch.
        data: tensors with the records along the first dimension.
        epochs: passes over the records.
        batch_size: records per step.

    Returns:
        Mean loss per record in the last pass.
    """
    batches = list(zip(*(torch.split(part, batch_size) for part in data), strict=True))
    total = 0.0
    for epoch in range(epochs):
        for batch in batches:
            optimiser.zero_grad()
            value = loss(network, batch).mean()
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if epoch == epochs - 1:
                total += float(value.detach()) * len(batch[0])
    optimiser.zero_grad()
    return total / len(data[0])
