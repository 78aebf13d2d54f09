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

from typing import Final, Self

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.options import FedAvgOptions, MeanOptions
from secfed.algorithms.federated_averaging.selection import matching
from secfed.algorithms.federated_averaging.weighted_plan import NOISED
from secfed.algorithms.framework.batch_norm import BatchNorm
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.parameters import trainable
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.setting import Setting
from secfed.errors import ConfigError
from secfed.wire.layout import State, Summands

_KEY: Final = "algorithm.local_layers"
_GLOB: Final = frozenset("*?[")


class FedBnOptions(FedAvgOptions):
    """Options of ``fedbn``: those of ``fedavg``, and the layers that never leave."""

    local_layers: tuple[str, ...] = Field(
        default=(),
        description="names of the layers that never leave, as PyTorch names the model's modules, or patterns",
    )

    @property
    def keeps_state(self) -> bool:
        """Always: its layers."""
        return True

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if not self.local_layers and self.batch_norm != "local":
            raise ConfigError(
                f"{_KEY}: is missing",
                remedy='name the layers that never leave, or set algorithm.batch_norm = "local" for all of '
                "batch normalisation",
            )
        return self


@register("fedbn", options=FedBnOptions)
class FedBn(FedAvg):
    """Federated averaging with local layers, bound to one study."""

    private_units = ("record", "group", "site")
    noised_fields = NOISED
    personal = True
    warm_start = False  # what stays at the sites would not begin with that model
    options: FedBnOptions

    def _batch_norm(self, setting: Setting, options: MeanOptions) -> BatchNorm | None:
        local = getattr(options, "batch_norm", None) == "local"
        return None if local else super()._batch_norm(setting, options)

    def _layers(self, model: nn.Module) -> tuple[str, ...]:
        """Names of the layers that never leave."""
        every = _names(model)
        globs = [name for name in self.options.local_layers if _GLOB.intersection(name)]
        exact = (name for name in self.options.local_layers if name not in globs)
        named = (*exact, *sorted(matching(every, globs, _KEY)))
        if self.options.batch_norm != "local":
            return named
        norms = [name for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]
        if not norms:
            message = 'algorithm.batch_norm: "local" has no effect on a model without batch normalisation'
            raise ConfigError(message, remedy="remove it, and name algorithm.local_layers")
        return (*named, *norms)

    def summed_parameters(self, model: nn.Module) -> tuple[str, ...]:
        """All trainable parameters but those of local layers."""
        local = self._layers(model)
        for name in local:
            if name not in _names(model):
                known = ", ".join(name for name, _ in model.named_modules() if name)
                raise ConfigError(f"{_KEY}: the model has no layer {name!r}", remedy=f"its layers: {known}")
        return trainable(model, local=local)

    def _local(self, model: nn.Module) -> dict[str, torch.Tensor]:
        starts = tuple(f"{layer}." for layer in self._layers(model))
        return {name: value for name, value in model.state_dict().items() if f"{name}.".startswith(starts)}

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


def _names(model: nn.Module) -> list[str]:
    """Every name of every layer, then of every parameter: one may belong to no layer but the whole model."""
    layers = [name for name, _ in model.named_modules(remove_duplicate=False) if name]  # "" is the whole
    return [*layers, *(name for name, _ in model.named_parameters(remove_duplicate=False))]
