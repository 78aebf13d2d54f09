"""FedNova: updates are divided by the local steps behind them, so that sites with more steps pull no harder.

Every site adds its update divided by a, and a itself, the sum of its gradients' coefficients: with t steps
and momentum r, a = (t - r * (1 - r^t) / (1 - r)) / (1 - r), which is t without momentum. The server moves the
model by the mean of a times the mean of the divided updates.

Under ``[privacy]`` it is refused, whatever the unit: the mean number of steps leaves without noise, and steps
follow from numbers of records.

Source: Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, equations (4) and (9).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.federated_averaging.weighted_plan import Means
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.registry import register
from secfed.wire.layout import Field as Block
from secfed.wire.layout import State, Summands


class FedNovaOptions(FedAvgOptions):
    """Options of ``fednova``: those of ``fedavg`` with sgd."""

    optimizer: Literal["sgd"] = Field(default="sgd", description='"sgd"')
    weight_decay: float = Field(default=0.0, ge=0, le=0, description="0")


@register("fednova", options=FedNovaOptions)
class FedNova(FedAvg):
    """FedNova, bound to one study."""

    private_units = ()

    def fields(self) -> tuple[Block, ...]:
        """Divided updates, and what they were divided by."""
        return (*super().fields(), Block("steps", (), 2.0**32, 64))

    def _divisor(self, data: SiteData) -> float:
        passes, momentum = self.options.local_epochs, self.options.momentum
        records, batch = len(data.train_y), self.options.batch_size
        # A last batch of one record is left out where normalisation needs two.
        left_out = self.options.batch_norm == "pooled" and records > 1 and records % batch == 1
        steps = passes * (math.ceil(records / batch) - left_out)
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)

    def counts(self, data: SiteData) -> Summands:
        """What updates are divided by."""
        return {"steps": self._divisor(data)}

    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        """The update divided by the steps behind it."""
        given, divisor = super().local_update(model, data, context), self._divisor(data)
        divided = {name: value / divisor for name, value in given.items() if name != "train_loss"}
        return {**divided, **self.counts(data), "train_loss": given["train_loss"]}

    def server_step(self, model: State, mean: Means, state: dict[str, torch.Tensor]) -> State:
        """The mean direction, for the mean number of steps."""
        del state
        return {name: model[name] + mean["steps"] * mean[f"update/{name}"] for name in self.trained}
