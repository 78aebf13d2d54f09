"""Parameters that a site keeps between rounds, as part of its saved state."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from secfed.errors import MalformedMessage
from secfed.wire.layout import State


def save_kept(start: str, kept: State) -> dict[str, torch.Tensor]:
    """Copies of these parameters, under names with this start.

    Args:
        start: for example ``previous/``.
        kept: by name; empty for nothing yet.
    """
    return {start + name: value.clone() for name, value in kept.items()}


def load_kept(
    start: str, state: State, network: nn.Module, names: Collection[str] | None = None
) -> dict[str, torch.Tensor]:
    """What :func:`save_kept` saved.

    Args:
        start: as there.
        state: may hold other things.
        network: whose parameters they are; only shapes are read.
        names: which of them; None for all.

    Returns:
        Copies, by name; empty if nothing was kept.

    Raises:
        MalformedMessage: parameters of another model, or some of them only.
    """
    kept = {
        name.removeprefix(start): value.clone() for name, value in state.items() if name.startswith(start)
    }
    shapes = {
        name: value.shape for name, value in network.named_parameters() if names is None or name in names
    }
    if kept and {name: value.shape for name, value in kept.items()} != shapes:
        raise MalformedMessage(
            "what this site kept belongs to another model",
            remedy="resume with the study file that wrote it, or start the study anew",
        )
    return kept
