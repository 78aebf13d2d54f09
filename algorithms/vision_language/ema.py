"""FedEMA for vision-language pre-training: a site takes over only part of the received model.

A site begins a round not at the received model W_g but at

    m W_k + (1 - m) W_g,   m = min(k ||W_g - W_k||, 1)

where W_k is what its own training gave the last time: the further it is from the others, the more of itself
it keeps. The scale k is fixed once, when the site first has both models, so that m is ``autoscale`` then.
In a site's first round there is no W_k, and the round is federated averaging's. Every site sends
its trained model minus the received one; the server's model becomes the mean of the trained models.

Source: Zhuang, Wen, Zhang, "Divergence-aware Federated Self-Supervised Learning", ICLR 2022, equations (3)
to (5). Their self-supervised branches on images are left out: the training objective is the same for all
methods that are compared here.
"""

from __future__ import annotations

from typing import Final

import torch
from pydantic import Field

from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.registry import register
from secfed.algorithms.losses.vlp import ema_merge, ema_scale
from secfed.algorithms.vision_language.averaging import VlpFedAvg, VlpFedAvgOptions
from secfed.algorithms.vision_language.base import VlpAlgorithm
from secfed.algorithms.vision_language.plan import Stage
from secfed.algorithms.vision_language.site import VlpSite
from secfed.errors import MalformedMessage
from secfed.wire.layout import State

_SCALE: Final = "scale"


class VlpEmaOptions(VlpFedAvgOptions):
    """Options of ``vlp-fedema``: those of ``vlp-fedavg`` and ``autoscale``."""

    autoscale: float = Field(
        default=0.7,
        ge=0,
        le=1,
        description="the share of its own model that a site keeps the first time, from 0 to 1",
    )


class VlpEmaSite(VlpSite):
    """Runs inside one hospital; keeps its own model at the end of its last round, and its scale."""

    keeps = "own/"
    options: VlpEmaOptions

    def __init__(self, algorithm: VlpAlgorithm, site_id: SiteId) -> None:
        super().__init__(algorithm, site_id)
        self._scale: float | None = None

    def train(self, round_number: int, stage: Stage, received: State) -> tuple[State, float]:
        """Merge, train, and keep the result for the next round."""
        start = self._merged(received)
        write_parameters(self.network, start)
        loss = self.fit(round_number, stage, self.loss(round_number, stage, start))
        trained = read_parameters(self.network)
        self.keep()
        return {name: trained[name] - received[name] for name in stage.summed}, loss

    def _merged(self, received: State) -> State:
        if not self.own:
            return received
        if self._scale is None:
            self._scale = ema_scale(self.own, received, self.options.autoscale)
        return received if self._scale is None else ema_merge(self.own, received, self._scale)

    def save(self) -> State:
        """The own model and the scale."""
        scale = {} if self._scale is None else {_SCALE: torch.tensor(self._scale, dtype=torch.float64)}
        return {**super().save(), **scale}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        super().load(state)
        scale = float(state[_SCALE]) if _SCALE in state else None
        if scale is not None and not (self.own and 0.0 <= scale < float("inf")):
            raise MalformedMessage(
                "what this site kept holds a scale without meaning", remedy="start the study anew"
            )
        self._scale = scale


@register("vlp-fedema", options=VlpEmaOptions)
class VlpEma(VlpFedAvg):
    """FedEMA, bound to one study."""

    site_program = VlpEmaSite
