"""Linear layers with a gate through which a classifier also learns from the other modality's model.

While it trains at a site, a layer of :class:`~secfed.algorithms.models.transfer_transformer.Classifier`
computes ``(W + g A) x + b`` with the weight A of the same layer of the other modality's model and a scalar g
that starts at 0. :func:`fuse` adds g A to W and leaves a plain model, so an upload says nothing of g and A.

Source: Sun et al., "Towards Multi-modal Transformers in Federated Learning" (FedCola), ECCV 2024.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.nn.functional import linear

from secfed.algorithms.models.transfer_options import Layers, gated_weights
from secfed.errors import MalformedMessage, WrongState
from secfed.wire.layout import State


class GatedLinear(nn.Module):
    """A linear layer with a gate: y = (W + g A) x + b, with g a scalar parameter that starts at 0."""

    def __init__(self, plain: nn.Linear, aux: torch.Tensor, *, trainable: bool) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, plain.bias
        copied = aux.detach().to(device=plain.weight.device, dtype=plain.weight.dtype, copy=True)
        self.aux = nn.Parameter(copied, requires_grad=trainable)
        self.gate = nn.Parameter(plain.weight.new_zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        return linear(inputs, self.weight + self.gate * self.aux, self.bias)

    @torch.no_grad()
    def fused(self) -> nn.Linear:
        """The plain layer with weight W + g A; its parameters are still those that were given."""
        rows, columns = self.weight.shape
        plain = nn.Linear(columns, rows, device="meta")  # no storage, no draw: both come from here
        plain.weight, plain.bias = self.weight, self.bias
        plain.weight.add_(self.gate * self.aux)
        return plain.train(self.training)


def gate(model: nn.Module, other: State, *, layers: Layers, trainable: bool) -> None:
    """Replace linear layers of the blocks of ``model.tower`` by gated ones, in place.

    ``other`` has the other modality's weights A, named as :func:`gated_weights` does; they are copied, and
    train with the model if ``trainable``. After an error the model is as it was.
    """
    tower = cast("nn.Module", model.tower)
    if gates(model):
        raise WrongState("the model is gated already", remedy="fuse it first")
    chosen: dict[str, nn.Linear] = {}
    for name in gated_weights(len(cast("nn.ModuleList", tower.blocks)), layers):
        path = name.removesuffix(".weight")
        plain = tower.get_submodule(path)
        if not isinstance(plain, nn.Linear) or name not in other or other[name].shape != plain.weight.shape:
            raise MalformedMessage(
                f"the other modality's model has no weight {name!r} of this study's shape",
                remedy="the aggregator must run the same study file and the same version of the model",
            )
        if not bool(torch.isfinite(other[name]).all()):
            message = f"received weight {name!r} of the other modality contains NaN or Inf"
            raise MalformedMessage(message, remedy="lower algorithm.learning_rate; training has diverged")
        chosen[path] = plain
    for path, plain in chosen.items():
        gated = GatedLinear(plain, other[f"{path}.weight"], trainable=trainable)
        tower.set_submodule(path, gated.train(plain.training))


def fuse(model: nn.Module) -> None:
    """Make every gated layer plain again, with weight W + g A, in place; g and A are gone afterwards."""
    for path, module in list(model.named_modules()):
        if isinstance(module, GatedLinear):
            model.set_submodule(path, module.fused())


def gates(model: nn.Module) -> list[torch.Tensor]:
    """The scalars g of a gated model, in the order of its layers; none for a plain one."""
    return [module.gate for module in model.modules() if isinstance(module, GatedLinear)]
