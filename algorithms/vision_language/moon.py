"""FedMOON for vision-language pre-training: local embeddings are drawn to the global model's.

Every site minimises its pre-training objective plus a contrast of models on the image side: an image's
embedding should resemble that of the received model rather than that of this site's own model of the round
before. In a site's first round there is no such model, and the round is federated averaging's. The server
averages as always.

Source: Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1, beside an image-report
contrast as the papers on vision-language pre-training compare it.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from pydantic import Field

from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.losses.vlp import moon_loss
from secfed.algorithms.vision_language.averaging import VlpFedAvg, VlpFedAvgOptions
from secfed.algorithms.vision_language.base import Stage
from secfed.algorithms.vision_language.local_state import load_kept, save_kept
from secfed.algorithms.vision_language.site import VlpSite
from secfed.algorithms.vision_language.stage import Batch, StageLoss
from secfed.wire.layout import State
from secfed.wire.parts import is_finite

_PREVIOUS: Final = "previous/"


class VlpMoonOptions(VlpFedAvgOptions):
    """Options of ``vlp-fedmoon``: those of ``vlp-fedavg``, and of the contrast of models."""

    contrast: float = Field(
        default=1.0, ge=0, description="the strength of the contrast of models, at least 0; 0 leaves it out"
    )
    contrast_temperature: float = Field(
        default=0.5, gt=0, description="what its similarities are divided by, above 0"
    )


class VlpMoonSite(VlpSite):
    """Runs inside one hospital.

    Keeps its own model at the end of its last round; a single-site value, which never leaves.
    """

    def __init__(self, algorithm: VlpMoon, site_id: str) -> None:
        super().__init__(algorithm, site_id)
        self._options = algorithm.options
        self._previous: dict[str, torch.Tensor] = {}

    def loss(self, round_number: int, stage: Stage, received: State) -> StageLoss:
        """The objective plus the contrast of models."""
        if not self._previous or not self._options.contrast:
            return super().loss(round_number, stage, received)
        options = self._options
        near, far = (self.algorithm.network(model) for model in (received, self._previous))

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
        trained = read_parameters(self.network)
        if is_finite(trained):  # a failed update leaves the site's own model as it was
            self._previous = trained
        return update, loss

    def save(self) -> State:
        """The previous local model."""
        return {**super().save(), **save_kept(_PREVIOUS, self._previous)}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`.

        Raises:
            MalformedMessage: kept by another study.
        """
        super().load(state)
        self._previous = load_kept(_PREVIOUS, state, self.algorithm.shapes)


@register("vlp-fedmoon", options=VlpMoonOptions)
class VlpMoon(VlpFedAvg):
    """FedMOON, bound to one study."""

    site_program = VlpMoonSite
    options: VlpMoonOptions

    def __init__(self, setting: Setting, options: VlpMoonOptions) -> None:
        super().__init__(setting, options)
