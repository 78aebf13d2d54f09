"""FedBN-style local layers: named layers are trained at every site and never leave it; the rest is averaged.

With the layers of normalisation named, this is FedBN; with the last layers named, a personal head. A layer's
running statistics stay with it. Sites evaluate the received model with their own local layers; those of the
model that the server has are the initial ones.

Privacy: what stays comes from the same private steps as what leaves, so every unit of federated averaging is
supported. Batch normalisation is refused by private steps, as for any algorithm.

Source: Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, Algorithm 1.
"""

from __future__ import annotations

from typing import Final

import torch
from pydantic import Field
from torch import nn

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.federated_averaging.weighted_plan import NOISED
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.parameters import trainable
from secfed.algorithms.framework.registry import register
from secfed.errors import ConfigError
from secfed.wire.layout import State, Summands

_KEY: Final = "algorithm.local_layers"


class FedBnOptions(FedAvgOptions):
    """Options of ``fedbn``: those of ``fedavg``, and the layers that never leave."""

    local_layers: tuple[str, ...] = Field(
        min_length=1, description="names of the layers that never leave, as PyTorch names the model's modules"
    )


@register("fedbn", options=FedBnOptions)
class FedBn(FedAvg):
    """Federated averaging with local layers, bound to one study."""

    private_units = ("record", "group", "site")
    noised_fields = NOISED
    personal = True
    warm_start = False  # what stays at the sites would not begin with that model
    options: FedBnOptions

    def summed_parameters(self, model: nn.Module) -> tuple[str, ...]:
        """All trainable parameters but those of local layers."""
        layers = dict(model.named_modules())
        for name in self.options.local_layers:
            if not name or name not in layers:  # "" is the whole model
                known = ", ".join(filter(None, layers))
                raise ConfigError(f"{_KEY}: the model has no layer {name!r}", remedy=f"its layers: {known}")
        return trainable(model, local=self.options.local_layers)

    def _local(self, model: nn.Module) -> dict[str, torch.Tensor]:
        return {
            name: value
            for name, value in model.state_dict().items()
            if any(name.startswith(f"{layer}.") for layer in self.options.local_layers)
        }

    def site_memory(self) -> State:
        """The local layers, as the study begins with them."""
        return self._local(self.setting.model())

    def personalise(self, model: nn.Module, memory: State) -> None:
        """Put this site's local layers into the model."""
        for name, value in self._local(model).items():
            value.copy_(memory[name])

    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        """Federated averaging's, from this site's local layers; they are kept as training leaves them."""
        self.personalise(model, context.memory)
        given = super().local_update(model, data, context)
        context.memory.update({name: value.cpu().clone() for name, value in self._local(model).items()})
        return given
