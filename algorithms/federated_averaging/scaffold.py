"""SCAFFOLD: local steps corrected by control variates, so that sites of different data do not drift apart.

A site steps along g + c - c_i, where c_i is its own estimate of its gradient and c the mean over sites. After
K steps of size r from x to y, c_i <- c_i - c + (x - y) / (K * r) (option II), and the sums carry y - x and
the change of c_i. c_i stays at the site. A site's change enters c_i only when the server says that it was in
a sum, so c stays the mean of all c_i whatever drops out.

Privacy: the change of c_i is computed from private steps and earlier releases alone, so it spends nothing
more under the record or the group as unit. With the site as unit, clipping the sum would part c from the mean
of c_i: refused.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, Algorithm 1.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.federated_averaging.weighted_plan import NOISED, Means
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.registry import register
from secfed.wire.layout import Field as Block
from secfed.wire.layout import State, Summands


class ScaffoldOptions(FedAvgOptions):
    """Options of ``scaffold``: those of ``fedavg``, with plain sgd and equal weights."""

    optimizer: Literal["sgd"] = Field(default="sgd", description='"sgd"')
    momentum: float = Field(default=0.0, ge=0, le=0, description="0")
    weight_decay: float = Field(default=0.0, ge=0, le=0, description="0")
    weighting: Literal["equal"] = Field(default="equal", description='"equal"')
    server_learning_rate: float = Field(default=1.0, gt=0, description="the server's step size, above 0")

    @property
    def keeps_state(self) -> bool:
        """Always: its control variate."""
        return True


@register("scaffold", options=ScaffoldOptions)
class Scaffold(FedAvg):
    """SCAFFOLD, bound to one study."""

    private_units = ("record", "group")
    noised_fields = (*NOISED, "control")
    shares_state = True
    options: ScaffoldOptions

    @property
    def tells_steps(self) -> bool:
        """Always: the correction moves weights that no record moves, too, in every step."""
        return True

    def _controls(self, prefix: str) -> dict[str, torch.Tensor]:
        return {f"{prefix}/{name}": torch.zeros_like(self.initial[name]) for name in self.trained}

    def _nothing_pending(self) -> dict[str, torch.Tensor]:
        return {**self._controls("pending"), "step": torch.tensor(-1.0)}

    def fields(self) -> tuple[Block, ...]:
        """Updates, and changes of the sites' control variates."""
        return (*super().fields(), *self.fields_like_model("control"))

    def server_state(self) -> State:
        """c, the number of steps taken, and after which of them each site was last in a sum."""
        counted = torch.zeros(len(self.setting.sites), dtype=torch.float64)
        return {**self._controls("control"), "steps": torch.zeros(()), "counted": counted}

    def site_memory(self) -> State:
        """c_i, its change that is not yet known to be in a sum, and the server's step that would have it."""
        return {**self._controls("control"), **self._nothing_pending()}

    def receive(self, context: LocalContext) -> None:
        """Take in the pending change if it was summed; forget it if not."""
        memory, site = context.memory, self.setting.sites.index(context.site)
        # Beyond that step this site has added zeros, by a process that died with what came after.
        if float(context.shared["counted"][site]) >= float(memory["step"]):
            for name in self.trained:
                memory[f"control/{name}"] = memory[f"control/{name}"] + memory[f"pending/{name}"]
        memory |= self._nothing_pending()

    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        """Corrected steps; what they did to the model and to c_i."""
        shared, memory = context.shared, context.memory
        training = self.training(model, data, context.generator())
        corrections = [shared[f"control/{name}"] - memory[f"control/{name}"] for name in self.trained]
        steps = add_to_gradients(training.optimiser, [one.to(context.device) for one in corrections])
        loss = context.train(training, self.options.local_epochs)
        update = self.difference(model, context.received)
        rate = self.options.learning_rate * context.rate
        distance, bound = len(steps) * rate, self.setting.study.protection.bound
        changes = {
            name: (-shared[f"control/{name}"] - update[f"update/{name}"] / distance).clamp(-bound, bound)
            for name in self.trained
        }
        memory |= {f"pending/{name}": change for name, change in changes.items()}
        memory["step"] = shared["steps"] + 1
        return {**update, **{f"control/{n}": change for n, change in changes.items()}, "train_loss": loss}

    def server_step(self, model: State, mean: Means, state: dict[str, torch.Tensor]) -> State:
        """The model moves by the mean update, c by the survivors' share of the mean change."""
        sites, rate = self.setting.sites, self.options.server_learning_rate
        for name in self.trained:
            change = mean[f"control/{name}"] * (len(mean.survivors) / len(sites))
            state[f"control/{name}"] = (state[f"control/{name}"] + change).to(torch.float32)
        state["steps"] = state["steps"] + 1
        survived = torch.tensor([site in mean.survivors for site in sites])
        state["counted"] = torch.where(survived, state["steps"].to(torch.float64), state["counted"])
        return {name: model[name] + rate * mean[f"update/{name}"] for name in self.trained}


def add_to_gradients(optimiser: torch.optim.Optimizer, terms: list[torch.Tensor]) -> list[None]:
    """Let every step see these in addition to the gradients; what is returned grows by one a step."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    steps: list[None] = []

    def correct(_optimiser: torch.optim.Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        steps.append(None)
        for parameter, term in zip(parameters, terms, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(term)

    optimiser.register_step_pre_hook(correct)
    return steps
