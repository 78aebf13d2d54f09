"""Low-rank adapters: a pretrained model stays as it is, and small matrices beside its linear layers train.

    y = W x + b + B A x          A: [rank, d], B: [p, rank], B = 0 at first; W and b never move

A and B are linear layers, so private training clips records by their adapters as by any other layer, and no
gradient of W is made. An adapted layer keeps the names of its weight and bias: weights are loaded, and
attention reads them, as before.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, with alpha = rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from secfed.errors import ConfigError


class LowRankLinear(nn.Linear):
    """A linear layer whose weight and bias are frozen, with ``rank`` directions that train."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        # Without storage: weight and bias are the layer's own.
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.down = nn.Linear(layer.in_features, rank, bias=False).to(layer.weight)
        self.up = nn.Linear(rank, layer.out_features, bias=False).to(layer.weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., d] to [..., p]."""
        adapted: torch.Tensor = super().forward(inputs) + self.up(self.down(inputs))
        return adapted


def add_adapters(model: nn.Module, patterns: Sequence[str], *, rank: int) -> list[str]:
    """Freeze ``model`` and give its linear layers whose names match a pattern (``blocks.*``) adapters.

    Returns the names of the layers, in the model's order. The matrices A are drawn from torch's global
    generator. ConfigError for a pattern that no linear layer matches.
    """
    layers = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in layers):
            known = ", ".join(list(layers)[:5])
            message = f"adapters: no linear layer of the model is called {pattern!r}"
            raise ConfigError(message, remedy=f"its layers are {known} and others")
    model.requires_grad_(False)
    chosen = [name for name in layers if any(fnmatchcase(name, pattern) for pattern in patterns)]
    for name in chosen:
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, LowRankLinear(layers[name], rank))
    return chosen
