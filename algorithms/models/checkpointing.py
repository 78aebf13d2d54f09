"""Layers in a row, their activations kept or computed again."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layers(
    layers: Iterable[nn.Module], tokens: torch.Tensor, *more: torch.Tensor, again: bool
) -> torch.Tensor:
    """Run layers one after the other; each maps tokens (and ``more``) to tokens.

    ``again`` keeps only the input of every layer and computes the rest again in the backward pass: the same
    gradients, with less memory for a third more work.
    """
    again = again and torch.is_grad_enabled()
    for layer in layers:
        if again:
            # Nothing in the layers is random, so there is no generator to put back.
            tokens = checkpoint(layer, tokens, *more, use_reentrant=False, preserve_rng_state=False)
        else:
            tokens = layer(tokens, *more)
    return tokens
