"""FedDRA, written against sums: alignment modules first, then everything, with robust local steps.

Stages: ``weights`` (with rho > 0) sums what robust weights are made from; in ``align`` the alignment modules
train, in ``joint`` everything does. A site minimises its objective plus mu times the squared distance of its
embeddings to those of the *anchor*, the server's model at the start of the stage. Its learning rate is
multiplied by N times its weight, so that the mean update follows the weighted objective. Weight and loss stay
at the site. With ``rho = 0``, ``mu = 0`` and ``align_steps = 0`` this is federated averaging.

Source: FedDRA. What is different from it: the paper's server sees every loss and weight; the weight
multiplies the learning rate here, because on the loss AdamW does not notice it; losses are the received
model's (``loss_source``), the paper's those of the trained one; and the 20 steps of the first stage are the
authors' code's, where the paper has one number for both stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from secfed.algorithms.framework.registry import register
from secfed.algorithms.losses.vlp import anchor_loss
from secfed.algorithms.vision_language.base import NOISED, VlpAlgorithm
from secfed.algorithms.vision_language.options import RobustOptions
from secfed.algorithms.vision_language.plan import ALIGN, JOINT, Measures, Stage
from secfed.algorithms.vision_language.site import VlpSite
from secfed.algorithms.vision_language.stage import Batch, StageLoss, frozen_copy
from secfed.errors import ConfigError
from secfed.wire.layout import State


class FedDraOptions(RobustOptions):
    """Options of ``feddra``."""

    align_steps: int = Field(default=20, ge=0, description="local steps that train the alignment modules")
    joint_steps: int = Field(default=50, ge=0, description="local steps that train everything")
    mu: float = Field(default=5.0, ge=0, description="the anchor's strength, at least 0; 0 leaves it out")
    anchor_reduction: Literal["sumdim", "mean"] = Field(
        default="sumdim",
        description='"sumdim" (the papers\' squared norms, mean over pairs) or "mean" (over dimensions, too)',
    )
    loss_source: Literal["global", "lagged", "local"] = Field(
        default="global",
        description='"global" (a small sum before each round), "lagged" (the same loss, beside the first '
        "stage's updates) or \"local\" (of the site's own model, beside the last stage's)",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.align_steps and not self.joint_steps:
            message = "algorithm.joint_steps: no stage has any steps"
            raise ConfigError(message, remedy="set it, or algorithm.align_steps")
        return self


class FedDraSite(VlpSite):
    """A site that is held near the server's model."""

    options: FedDraOptions

    def loss(self, round_number: int, stage: Stage, received: State) -> StageLoss:
        """The objective plus mu times the distance to the anchor."""
        network, mu, reduction = self.network, self.options.mu, self.options.anchor_reduction
        if not mu:
            return super().loss(round_number, stage, received)
        anchor = frozen_copy(network)
        # Encoders that do not move give model and anchor the same features: they are computed once.
        shared = not set(stage.trained) & set(network.encoder_names)

        def constrained(model: nn.Module, batch: Batch) -> torch.Tensor:
            images, tokens = batch
            if shared:
                with torch.no_grad():
                    features = network.encode(images, tokens)
                    fixed = anchor.align(features, tokens)
                aligned = network.align(features, tokens)
            else:
                with torch.no_grad():
                    fixed = anchor(images, tokens)
                aligned = model(images, tokens)
            distance = anchor_loss(aligned, fixed, reduction)
            total: torch.Tensor = network.objective(aligned).total + mu * distance
            return total

        return constrained


@register("feddra", options=FedDraOptions)
class FedDra(VlpAlgorithm):
    """FedDRA, bound to one study."""

    site_program = FedDraSite
    noised_fields = NOISED
    options: FedDraOptions

    def round_stages(self, round_number: int) -> Sequence[Stage]:
        """Weights, alignment modules, everything; see the module."""
        options = self.options
        source = options.loss_source if self.rule is not None else None
        stages = [self.weights_stage()] if source == "global" else []
        last = JOINT if options.joint_steps else ALIGN
        for name, steps, names in (
            (ALIGN, options.align_steps, self.align_names),
            (JOINT, options.joint_steps, self.names),
        ):
            if not steps:
                continue
            measures: Measures | None = None
            if source == "lagged" and not stages:
                measures = "received"
            elif source == "local" and name == last:
                measures = "trained"
            stages.append(
                self.training_stage(
                    round_number,
                    name,
                    summed=names,
                    steps=steps,
                    weighted=True,
                    measures=measures,
                    reports_loss=name == last,
                )
            )
        return stages
