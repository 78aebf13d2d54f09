"""FedAdam and FedYogi: federated averaging whose server takes an adaptive step along the mean update.

    m <- beta1 * m + (1 - beta1) * mean        x <- x + rate * m / (sqrt(v) + tau)
    v <- beta2 * v + (1 - beta2) * mean^2                                    (FedAdam)
    v <- v - (1 - beta2) * mean^2 * sign(v - mean^2)                         (FedYogi)

Only the server differs, and it sees sums alone: every unit of privacy that federated averaging supports is
supported, for what the server makes of released sums spends nothing.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
ICLR 2021, Algorithm 2; v starts at tau^2.
"""

from __future__ import annotations

import torch
from pydantic import Field

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.federated_averaging.weighted_plan import Means
from secfed.algorithms.framework.registry import register
from secfed.wire.layout import State


class FedOptOptions(FedAvgOptions):
    """Options of ``fedadam`` and ``fedyogi``: those of ``fedavg``, and of the server's step."""

    server_learning_rate: float = Field(default=0.1, gt=0, description="the server's step size, above 0")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="what stays of the mean update, 0 to below 1")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="the same of its square, from 0 to below 1")
    tau: float = Field(default=1e-3, gt=0, description="keeps the server's steps finite, above 0")


@register("fedadam", options=FedOptOptions)
class FedAdam(FedAvg):
    """FedAdam, bound to one study."""

    options: FedOptOptions

    def server_state(self) -> State:
        """M and v of every summed parameter."""
        like = {name: self.initial[name].to(torch.float64) for name in self.trained}
        return {
            **{f"m/{name}": torch.zeros_like(value) for name, value in like.items()},
            **{f"v/{name}": torch.full_like(value, self.options.tau**2) for name, value in like.items()},
        }

    def server_step(self, model: State, mean: Means, state: dict[str, torch.Tensor]) -> State:
        """One adaptive step."""
        options, moved = self.options, {}
        for name in self.trained:
            update = mean[f"update/{name}"]
            m = options.beta1 * state[f"m/{name}"] + (1 - options.beta1) * update
            v = self.second_moment(state[f"v/{name}"], update**2)
            moved[name] = model[name] + options.server_learning_rate * m / (v.sqrt() + options.tau)
            state |= {f"m/{name}": m, f"v/{name}": v}
        return moved

    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """V after one more mean update."""
        return self.options.beta2 * v + (1 - self.options.beta2) * square


@register("fedyogi", options=FedOptOptions)
class FedYogi(FedAdam):
    """FedYogi, bound to one study."""

    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """V after one more mean update; it changes by no more than the square, in either direction."""
        return v - (1 - self.options.beta2) * square * torch.sign(v - square)
