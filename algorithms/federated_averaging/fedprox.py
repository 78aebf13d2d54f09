"""FedProx: federated averaging whose local training is held near the received model.

The local objective is the loss plus (mu / 2) * ||w - w_received||^2. The second term does not depend on
any record; its gradient mu * (w - w_received) is therefore added where the optimiser steps. That is the
same training, and it leaves the loss a mean over records, which per-record clipping requires.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, equation (2) and Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import nn

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.registry import register
from secfed.dp.training.plain_loop import Training


class FedProxOptions(FedAvgOptions):
    """Options of ``fedprox``: those of ``fedavg`` and ``mu``."""

    mu: float = Field(default=0.01, ge=0, description="the pull to the received model, at least 0")


@register("fedprox", options=FedProxOptions)
class FedProx(FedAvg):
    """FedProx, bound to one study."""

    options: FedProxOptions

    def training(self, model: nn.Module, data: SiteData, generator: torch.Generator) -> Training:
        """Federated averaging's training, with the pull added to every step."""
        training = super().training(model, data, generator)
        add_proximal_pull(training.optimiser, self.options.mu)
        return training


def add_proximal_pull(
    optimiser: torch.optim.Optimizer, mu: float, towards: Sequence[torch.Tensor] | None = None
) -> None:
    """Let every step see mu * (w - anchor) beside the gradient; by default anchors are what w is now."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    anchors = [parameter.detach().clone() for parameter in parameters] if towards is None else towards

    def pull(_optimiser: torch.optim.Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        for parameter, anchor in zip(parameters, anchors, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - anchor, alpha=mu)

    if mu:
        optimiser.register_step_pre_hook(pull)
