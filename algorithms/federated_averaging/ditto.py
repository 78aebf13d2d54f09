"""Ditto: beside the averaged model every site trains a personal one, held near the received model.

The averaged model is federated averaging's. The personal model v of a site takes local steps along
g(v) + mu * (v - received) from where it was, and never leaves. Sites evaluate their personal models.

Privacy: the personal model touches the same records a second time, and its metrics may leave. Under the
record or the group as unit its steps are a phase of their own, private and paid like the others; with the
site as unit it stays behind, and only the clipped update leaves.

Source: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML
2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydantic import Field
from torch import nn

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.fedprox import add_proximal_pull
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.federated_averaging.weighted_plan import NOISED
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.registry import register
from secfed.wire.layout import State, Summands

if TYPE_CHECKING:
    from secfed.dp.training.local_plan import Phase

_PERSONAL: Final = "personal"


class DittoOptions(FedAvgOptions):
    """Options of ``ditto``: those of ``fedavg``, and of the personal model."""

    mu: float = Field(default=0.1, ge=0, description="the pull to the received model, at least 0")
    personal_epochs: int = Field(default=1, ge=1, description="passes per round for the personal model")

    @property
    def keeps_state(self) -> bool:
        """Always: its personal model."""
        return True


@register("ditto", options=DittoOptions)
class Ditto(FedAvg):
    """Ditto, bound to one study."""

    private_units = ("record", "group", "site")
    noised_fields = NOISED
    personal = True
    warm_start = False  # what stays at the sites would not begin with that model
    options: DittoOptions

    def phases(self, data: SiteData) -> tuple[Phase, ...]:
        """Training of the averaged model, and of the personal one."""
        (averaged,) = super().phases(data)
        passes = self.setting.study.rounds * self.options.personal_epochs
        return averaged, replace(averaged, name=_PERSONAL, passes=passes)

    def site_memory(self) -> State:
        """The personal model; it begins with the study's."""
        return self.initial

    def personalise(self, model: nn.Module, memory: State) -> None:
        """The personal model takes the received one's place."""
        write_parameters(model, memory)

    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        """Federated averaging's; then the personal model is trained, too."""
        given = super().local_update(model, data, context)
        write_parameters(model, context.received)
        anchors = [p.detach().clone() for p in model.parameters() if p.requires_grad]
        self.personalise(model, context.memory)
        training = self.training(model, data, context.generator(_PERSONAL))
        add_proximal_pull(training.optimiser, self.options.mu, anchors)
        context.train(training, self.options.personal_epochs, _PERSONAL)
        context.memory.update(read_parameters(model))
        return given
