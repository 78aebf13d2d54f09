"""Federated averaging for vision-language pre-training, and its variants: the baselines of FedDRA and FedRGB.

All train the whole received model with one objective (the variants' self-supervised branches are left out).

* ``vlp-fedprox`` pulls every step back to the received model, as part of AdamW's gradient.
* ``vlp-fedema`` begins a round at m W_k + (1 - m) W_g, m = min(k ||W_g - W_k||, 1), W_k being what its own
  training gave last; k is fixed when the site first has both models, so that m is ``autoscale`` then.
* ``vlp-fedldawa``, after warm-up rounds, sends c W_k - W_g per tensor, c = cos(W_k, W_g).
* ``vlp-fedmoon`` draws an image's embedding to the received model's, away from this site's last one.

Source: McMahan et al., AISTATS 2017, Algorithm 1; Li et al., MLSys 2020, Algorithm 2; FedEMA: Zhuang, Wen,
Zhang, ICLR 2022, equations (3) to (5); L-DAWA: Rehman et al., ICCV 2023, a layer being a parameter tensor
here; MOON: Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from pydantic import Field

from secfed.algorithms.federated_averaging.fedprox import add_proximal_pull
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.registry import register
from secfed.algorithms.losses.contrastive import model_contrast
from secfed.algorithms.losses.vlp import ema_merge, ema_scale, ldawa_cosines
from secfed.algorithms.vision_language.base import NOISED, VlpAlgorithm
from secfed.algorithms.vision_language.options import VlpOptions
from secfed.algorithms.vision_language.plan import ALIGN, JOINT, Stage
from secfed.algorithms.vision_language.site import VlpSite
from secfed.algorithms.vision_language.stage import Batch, StageLoss, frozen_copy
from secfed.config.schema import LATER
from secfed.errors import MalformedMessage
from secfed.wire.layout import State

UPDATE: Final = "update"
_SCALE: Final = "scale"


class VlpFedAvgOptions(VlpOptions):
    """Options of ``vlp-fedavg``."""

    local_steps: int = Field(default=50, ge=1, description="local steps per round, at least 1")
    head_rounds: int = Field(
        default=0,
        ge=0,
        json_schema_extra=LATER,
        description="first rounds, of study.rounds, that train and sum the alignment modules only",
    )


class VlpFedProxOptions(VlpFedAvgOptions):
    """Options of ``vlp-fedprox``: those of ``vlp-fedavg`` and ``mu``."""

    mu: float = Field(default=0.01, ge=0, description="the pull to the received model, at least 0")


@register("vlp-fedavg", options=VlpFedAvgOptions)
class VlpFedAvg(VlpAlgorithm):
    """Federated averaging, bound to one study."""

    site_program = VlpSite
    noised_fields = NOISED
    options: VlpFedAvgOptions

    def round_stages(self, round_number: int) -> Sequence[Stage]:
        """One stage, of everything; in first rounds of the alignment modules, if the study says so."""
        head, steps = round_number <= self.options.head_rounds, self.options.local_steps
        name, summed = (ALIGN, self.align_names) if head else (JOINT, self.names)
        return (
            self.training_stage(
                round_number, name, summed=summed, steps=steps, exchange=UPDATE, reports_loss=True
            ),
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
    noised_fields = NOISED


class VlpEmaOptions(VlpFedAvgOptions):
    """Options of ``vlp-fedema``: those of ``vlp-fedavg`` and ``autoscale``."""

    autoscale: float = Field(default=0.7, ge=0, le=1, description="a site's own share the first time, 0 to 1")

    @property
    def keeps_state(self) -> bool:
        """Always: its own model and scale."""
        return True


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
            message = "what this site kept holds a scale without meaning"
            raise MalformedMessage(message, remedy="start the study anew")
        self._scale = scale


@register("vlp-fedema", options=VlpEmaOptions)
class VlpEma(VlpFedAvg):
    """FedEMA, bound to one study."""

    site_program = VlpEmaSite
    noised_fields = NOISED


class VlpLdawaOptions(VlpFedAvgOptions):
    """Options of ``vlp-fedldawa``: those of ``vlp-fedavg`` and ``warmup_rounds``."""

    warmup_rounds: int = Field(default=2, ge=0, description="first rounds, of study.rounds, averaged plainly")


class VlpLdawaSite(VlpSite):
    """A site that sends of each of its layers as much as agrees with the received one."""

    options: VlpLdawaOptions

    def train(self, round_number: int, stage: Stage, received: State) -> tuple[State, float]:
        """As for federated averaging, then scaled layer by layer."""
        update, loss = super().train(round_number, stage, received)
        if round_number <= self.options.warmup_rounds:
            return update, loss
        local = read_parameters(self.network)
        cosines = ldawa_cosines(local, received)
        return {name: cosines[name] * local[name] - received[name] for name in stage.summed}, loss


@register("vlp-fedldawa", options=VlpLdawaOptions)
class VlpLdawa(VlpFedAvg):
    """FedLDAWA, bound to one study."""

    site_program = VlpLdawaSite
    noised_fields = NOISED


class VlpMoonOptions(VlpFedAvgOptions):
    """Options of ``vlp-fedmoon``: those of ``vlp-fedavg``, and of the contrast of models."""

    contrast: float = Field(default=1.0, ge=0, description="strength of the contrast of models, at least 0")
    contrast_temperature: float = Field(default=0.5, gt=0, description="its similarities' divisor, above 0")

    @property
    def keeps_state(self) -> bool:
        """Always: its own model."""
        return True


class VlpMoonSite(VlpSite):
    """Runs inside one hospital; keeps its own model at the end of its last round."""

    keeps = "previous/"
    options: VlpMoonOptions

    def loss(self, round_number: int, stage: Stage, received: State) -> StageLoss:
        """The objective plus the contrast of models."""
        options = self.options
        if not self.own or not options.contrast:
            return super().loss(round_number, stage, received)
        near, far = (frozen_copy(self.network) for _ in range(2))
        write_parameters(near, received)
        write_parameters(far, self.own)

        def contrasted(model: Any, batch: Batch) -> torch.Tensor:
            aligned = model(*batch)
            with torch.no_grad():
                z_global, z_previous = near(*batch).image, far(*batch).image
            models = model_contrast(
                aligned.image, z_global, z_previous, temperature=options.contrast_temperature
            )
            total: torch.Tensor = model.objective(aligned).total
            return total + options.contrast * models.mean()

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
    noised_fields = NOISED
