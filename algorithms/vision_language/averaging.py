"""Federated averaging and FedProx for vision-language pre-training: the baselines of FedDRA and FedRGB.

Every round, each site trains the whole received model and adds its update; the server moves the model by the
mean over the survivors. FedProx also pulls every step back to the received model (see
:mod:`secfed.algorithms.federated_averaging.fedprox`); under AdamW the pull enters as part of the gradient.

Source: McMahan et al., AISTATS 2017, Algorithm 1; Li et al., MLSys 2020, Algorithm 2. With equal weights, as
the papers on vision-language pre-training average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from pydantic import Field

from secfed.algorithms.federated_averaging.fedprox import add_proximal_pull
from secfed.algorithms.framework.registry import register
from secfed.algorithms.vision_language.base import VlpAlgorithm
from secfed.algorithms.vision_language.options import VlpOptions
from secfed.algorithms.vision_language.plan import JOINT, Stage
from secfed.algorithms.vision_language.site import VlpSite

UPDATE: Final = "update"


class VlpFedAvgOptions(VlpOptions):
    """Options of ``vlp-fedavg``."""

    local_steps: int = Field(default=50, ge=1, description="local steps per round, at least 1")


class VlpFedProxOptions(VlpFedAvgOptions):
    """Options of ``vlp-fedprox``: those of ``vlp-fedavg`` and ``mu``."""

    mu: float = Field(
        default=0.01, ge=0, description="the strength of the pull to the received model, at least 0"
    )


@register("vlp-fedavg", options=VlpFedAvgOptions)
class VlpFedAvg(VlpAlgorithm):
    """Federated averaging, bound to one study."""

    site_program = VlpSite
    options: VlpFedAvgOptions

    def round_stages(self, round_number: int) -> Sequence[Stage]:
        """One stage, which trains and sums everything."""
        del round_number
        steps = self.options.local_steps
        return (
            self.training_stage(JOINT, summed=self.names, steps=steps, exchange=UPDATE, reports_loss=True),
        )


class VlpFedProxSite(VlpSite):
    """A site whose every step is pulled to the received model."""

    options: VlpFedProxOptions

    def prepare_optimiser(self, optimiser: torch.optim.Optimizer) -> None:
        """The pull depends on no record, so under privacy it needs no clipping."""
        add_proximal_pull(optimiser, self.options.mu)


@register("vlp-fedprox", options=VlpFedProxOptions)
class VlpFedProx(VlpFedAvg):
    """FedProx, bound to one study."""

    site_program = VlpFedProxSite
