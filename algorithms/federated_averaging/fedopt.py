"""Federated averaging whose server takes a step of its own along the mean update: adaptive, or with momentum.

    m <- beta1 * m + (1 - beta1) * mean        x <- x + rate * m / (sqrt(v) + tau)
    v <- beta2 * v + (1 - beta2) * mean^2                                    (FedAdam)
    v <- v - (1 - beta2) * mean^2 * sign(v - mean^2)                         (FedYogi)
    v <- v + mean^2                                                          (FedAdagrad)

    m <- momentum * m + mean                     x <- x + rate * m           (FedAvgM)

Only the server differs, and it sees sums alone: every unit of privacy that federated averaging supports is
supported, for what the server makes of released sums spends nothing.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
ICLR 2021, Algorithm 2; v starts at tau^2. Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification", 2019 (FedAvgM).
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from pydantic import Field

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.federated_averaging.weighted_plan import Means
from secfed.algorithms.framework.registry import register
from secfed.wire.layout import State


class AdaptiveOptions(FedAvgOptions):
    """Options of ``fedadagrad``: those of ``fedavg``, and of the server's step."""

    server_learning_rate: float = Field(default=0.1, gt=0, description="the server's step size, above 0")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="what stays of the mean update, 0 to below 1")
    tau: float = Field(default=1e-3, gt=0, description="keeps the server's steps finite, above 0")


class FedOptOptions(AdaptiveOptions):
    """Options of ``fedadam`` and ``fedyogi``."""

    beta2: float = Field(default=0.99, ge=0, lt=1, description="the same of its square, from 0 to below 1")


class FedAvgMOptions(FedAvgOptions):
    """Options of ``fedavgm``: those of ``fedavg``, and of the server's step."""

    server_learning_rate: float = Field(default=1.0, gt=0, description="the server's step size, above 0")
    server_momentum: float = Field(
        default=0.9, ge=0, lt=1, description="what stays of earlier mean updates, from 0 to below 1"
    )


class Adaptive(FedAvg):
    """What the adaptive servers have in common."""

    options: AdaptiveOptions

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

    @abstractmethod
    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """V after one more mean update."""


@register("fedadam", options=FedOptOptions)
class FedAdam(Adaptive):
    """FedAdam, bound to one study."""

    options: FedOptOptions

    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """V after one more mean update."""
        return self.options.beta2 * v + (1 - self.options.beta2) * square


@register("fedyogi", options=FedOptOptions)
class FedYogi(Adaptive):
    """FedYogi, bound to one study."""

    options: FedOptOptions

    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """V after one more mean update; it changes by no more than the square, in either direction."""
        return v - (1 - self.options.beta2) * square * torch.sign(v - square)


@register("fedadagrad", options=AdaptiveOptions)
class FedAdagrad(Adaptive):
    """FedAdagrad, bound to one study: its steps only become shorter."""

    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """V after one more mean update."""
        return v + square


@register("fedavgm", options=FedAvgMOptions)
class FedAvgM(FedAvg):
    """Server momentum, bound to one study."""

    options: FedAvgMOptions

    def server_state(self) -> State:
        """What is left of earlier mean updates, for every summed parameter."""
        return {f"m/{name}": torch.zeros_like(self.initial[name].double()) for name in self.trained}

    def server_step(self, model: State, mean: Means, state: dict[str, torch.Tensor]) -> State:
        """One step along the mean update and those before it."""
        options, moved = self.options, {}
        for name in self.trained:
            m = options.server_momentum * state[f"m/{name}"] + mean[f"update/{name}"]
            moved[name] = model[name] + options.server_learning_rate * m
            state[f"m/{name}"] = m
        return moved
