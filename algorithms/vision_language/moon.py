"""FedMOON for vision-language pre-training: local embeddings are drawn to the global model's.

Every site minimises its pre-training objective plus a contrast of models on the image side: an image's
embedding should resemble that of the received model rather than that of this site's own model of the round
before. In a site's first round there is no such model, and the round is federated averaging's. The server
averages as always.

Source: Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1, beside an image-report
contrast as the papers on vision-language pre-training compare it.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from secfed.algorithms.framework.registry import register
from secfed.algorithms.losses.vlp import moon_loss
from secfed.algorithms.vision_language.averaging import VlpFedAvg, VlpFedAvgOptions
from secfed.algorithms.vision_language.plan import Stage
from secfed.algorithms.vision_language.site import VlpSite
from secfed.algorithms.vision_language.stage import Batch, StageLoss
from secfed.wire.layout import State


class VlpMoonOptions(VlpFedAvgOptions):
    """Options of ``vlp-fedmoon``: those of ``vlp-fedavg``, and of the contrast of models."""

    contrast: float = Field(
        default=1.0, ge=0, description="the strength of the contrast of models, at least 0; 0 leaves it out"
    )
    contrast_temperature: float = Field(
        default=0.5, gt=0, description="what its similarities are divided by, above 0"
    )


class VlpMoonSite(VlpSite):
    """Runs inside one hospital; keeps its own model at the end of its last round."""

    keeps = "previous/"
    options: VlpMoonOptions

    def loss(self, round_number: int, stage: Stage, received: State) -> StageLoss:
        """The objective plus the contrast of models."""
        options = self.options
        if not self.own or not options.contrast:
            return super().loss(round_number, stage, received)
        near, far = (self.algorithm.network(model) for model in (received, self.own))

        def contrasted(model: Any, batch: Batch) -> torch.Tensor:
            aligned = model(*batch)
            with torch.no_grad():
                z_global, z_previous = near(*batch).image, far(*batch).image
            models = moon_loss(aligned.image, z_global, z_previous, options.contrast_temperature)
            total: torch.Tensor = model.objective(aligned).total
            return total + options.contrast * models

        return contrasted

    def train(self, round_number: int, stage: Stage, received: State) -> tuple[State, float]:
        """As for federated averaging; the result is kept for the next round."""
        update, loss = super().train(round_number, stage, received)
        self.keep()
        return update, loss


@register("vlp-fedmoon", options=VlpMoonOptions)
class VlpMoon(VlpFedAvg):
    """FedMOON, bound to one study."""

    site_program = VlpMoonSite
