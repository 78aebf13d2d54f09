"""FedRGB's options and the site's half. See :mod:`secfed.algorithms.vision_language.fedrgb`.

    guided    L_task(g(F)) + guidance * |g(F) - g*(F)|^2                trained: g, and f, which gives F
    teacher   beta * |g*(F) - g*(F~)|^2 + L_CL(g*(F)) + L_task(g(F))    trained: g*, and f

In the second line F~ is of the encoders as received, and g this site's aligner of the first stage; both are
frozen. The encoders f, pulled to where this site alone would take them, are thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, Final, Literal, Self

import torch
from pydantic import Field, model_validator

from secfed.algorithms.dro.rule import MAX_EXPONENT, DroRule
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.losses.features import Aligned
from secfed.algorithms.losses.objective import infonce
from secfed.algorithms.losses.vlp import anchor_loss, guidance_contrast
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.vision_language.base import VlpAlgorithm
from secfed.algorithms.vision_language.options import RobustOptions
from secfed.algorithms.vision_language.plan import Stage
from secfed.algorithms.vision_language.site import VlpSite
from secfed.algorithms.vision_language.stage import Batch, StageLoss, frozen_copy
from secfed.errors import ConfigError, MalformedMessage, WrongState
from secfed.wire.layout import State
from secfed.wire.parts import is_finite, otherwise

ENCODER: Final = "encoder"
TEACHER: Final = "teacher"
_ROUND: Final = "aligner_round"
_CAP_FACTOR: Final = 3.0  # two contrastive losses are added, each about log B at chance
_ROBUST_ONLY: Final = (
    *("teacher_steps", "beta", "dro_task_term", "rho", "gamma", "divergence", "divergence_factor"),
    *("loss_cap", "kl_nodes", "weight_convention", "allow_two_site_weight_disclosure"),
    *("loss_batches", "loss_batch_size", "loss_share", "reference_steps"),
)


class FedRgbOptions(RobustOptions):
    """Options of ``fedrgb``."""

    batch_size: int = Field(default=388, ge=2, description="pairs per local step; the loss compares them")
    rho: float = Field(default=1.0, ge=0, description="radius of the divergence ball; 0 for equal weights")
    loss_cap: float | None = Field(
        default=None,
        gt=0,
        description="above 0: larger losses count as this; default 3 * log(loss_batch_size) or 10 / gamma",
    )
    warmup_rounds: int = Field(default=1, ge=0, description="first rounds, of study.rounds, averaged plainly")
    warmup_steps: int = Field(default=50, ge=1, description="local steps of a warm-up round, at least 1")
    guided_steps: int = Field(default=50, ge=1, description="local steps of guided training, at least 1")
    teacher_steps: int = Field(default=50, ge=1, description="local steps that train the teacher, at least 1")
    guidance: float = Field(default=1.0, ge=0, description="strength of the guidance (the paper's alpha)")
    beta: float = Field(default=2.0, ge=0, description="the strength of the teacher's anchor, at least 0")
    anchor_reduction: Literal["sumdim", "mean"] = Field(
        default="sumdim",
        description='"sumdim" (the papers\' squared norms, mean over pairs) or "mean" (over dimensions, too)',
    )
    teacher: Literal["robust", "averaged"] = Field(
        default="robust",
        description='"robust" (a second stage trains it) or "averaged" (the mean of the local aligners)',
    )
    guidance_loss: Literal["l2", "contrastive"] = Field(
        default="l2", description='"l2" or "contrastive": what draws embeddings to the teacher\'s'
    )
    guide_grad_through_features: bool = Field(
        default=False,
        description="true lets the guidance's gradient reach the encoders through the frozen teacher, too",
    )
    average_parts: bool = Field(
        default=True,
        description="true averages, with the encoders, what the teacher's losses do not reach: prototypes, "
        "heads for patches and words; false leaves them where the warm-up did",
    )
    dro_task_term: bool = Field(default=True, description="true, or false without the local aligner's loss")

    @model_validator(mode="after")
    def _check(self) -> Self:
        unused = [name for name in _ROBUST_ONLY if name in self.model_fields_set]
        if self.teacher == "averaged" and unused:
            raise ConfigError(
                f'algorithm.{unused[0]}: has no effect with teacher = "averaged", which has no second stage',
                remedy='remove it, or set algorithm.teacher = "robust"',
            )
        if self.teacher == "averaged" and "average_parts" in self.model_fields_set:
            message = 'algorithm.average_parts: has no effect with teacher = "averaged", which averages all'
            raise ConfigError(message, remedy="remove it")
        if not self.guidance:
            for name in ("guidance_loss", "guide_grad_through_features"):
                if name in self.model_fields_set:
                    message = f"algorithm.{name}: has no effect without guidance"
                    raise ConfigError(message, remedy="remove it, or set algorithm.guidance above 0")
        return self

    @property
    def keeps_state(self) -> bool:
        """With robust weights; an averaged teacher has none."""
        return self.teacher == "robust" and super().keeps_state

    def rule(self, setting: Setting, *, cap_factor: float = _CAP_FACTOR) -> DroRule | None:
        """How robust weights come about; None where all weights stay equal.

        Without a cap of the study's own, losses are capped at 3 log B, or lower where gamma times that would
        drown small losses in rounding: with gamma = 1 at 10, still above two losses at chance for B <= 148.
        """
        if self.teacher == "averaged":
            return None
        if self.loss_cap is not None or not self.gamma:
            return super().rule(setting, cap_factor=cap_factor)
        largest = MAX_EXPONENT / self.gamma / math.log(self.loss_batch_size)
        return super().rule(setting, cap_factor=min(cap_factor, largest * (1.0 - 1e-12)))


class FedRgbSite(VlpSite):
    """Runs inside one hospital; keeps its aligner until the next round's first stage makes a new one.

    Security: the aligner is the part that adapts most to a single site; it is never sent.
    """

    keeps = "aligner/"
    contrasts = 2  # the teacher's and the local aligner's
    options: FedRgbOptions

    def __init__(self, algorithm: VlpAlgorithm, site_id: SiteId) -> None:
        super().__init__(algorithm, site_id)
        self._aligner_round = 0
        objective: Any = algorithm.shapes.objective
        self._temperature = float(objective.temperature)

    def train(self, round_number: int, stage: Stage, received: State) -> tuple[State, float]:
        """One stage; the first keeps the local aligner, the second needs it.

        Where the first fails, the local aligner is the one it started from, so that the second, and its
        payment, do not depend on it.
        """
        if stage.name == TEACHER:
            self._of_this_round(round_number)  # before any step is paid for
        update, loss = otherwise(({}, math.nan), super().train, round_number, stage, received)
        if stage.name == ENCODER:
            trained = read_parameters(self.network)
            local = trained if update and is_finite(trained) else received
            self.own = {name: local[name] for name in self.kept_names}
            self._aligner_round = round_number
        return update, loss

    def loss(self, round_number: int, stage: Stage, received: State) -> StageLoss:
        """The two lines of the module; without guidance, and in the warm-up, the objective alone."""
        if stage.name == TEACHER:
            return self._teacher_loss(round_number, received)
        if stage.exchange.name == ENCODER and self.options.guidance:
            return self._guided_loss()
        return super().loss(round_number, stage, received)

    def _guided_loss(self) -> StageLoss:
        options, temperature = self.options, self._temperature
        teacher = frozen_copy(self.network, self.algorithm.align_names)
        through = options.guide_grad_through_features

        def guide(aligned: Aligned, target: Aligned) -> torch.Tensor:
            if options.guidance_loss == "contrastive":
                return guidance_contrast(aligned, target, temperature, detach=not through)
            return anchor_loss(aligned, target, options.anchor_reduction, detach=not through)

        def guided(model: Any, batch: Batch) -> torch.Tensor:
            images, tokens = batch
            features = model.encode(images, tokens)
            aligned = model.align(features, tokens)
            with torch.set_grad_enabled(through):
                target = teacher.align(features, tokens)
            total: torch.Tensor = model.objective(aligned).total
            return total + options.guidance * guide(aligned, target)

        return guided

    def _teacher_loss(self, round_number: int, received: State) -> StageLoss:
        options, temperature = self.options, self._temperature
        local = self._local_network(round_number, received, self.algorithm.names)

        def robust(model: Any, batch: Batch) -> torch.Tensor:
            images, tokens = batch
            features = model.encode(images, tokens)
            aligned = model.align(features, tokens)
            total = infonce(aligned.image, aligned.text, temperature)
            if options.beta:
                with torch.no_grad():
                    anchor = model.align(local.encode(images, tokens), tokens)
                total = total + options.beta * anchor_loss(aligned, anchor, options.anchor_reduction)
            if options.dro_task_term:
                total = total + local.objective(local.align(features, tokens)).total
            return total

        return robust

    def dro_loss(self, round_number: int, received: State) -> Callable[[Batch], torch.Tensor]:
        """L_CL of the teacher plus L_task of the local aligner, both on the averaged encoders' features.

        That is the second stage's loss before its first step, where the anchor term is 0; of the task only
        the contrast counts, as everywhere in robust weights. Needs this round's aligner.
        """
        names, network = self.algorithm.align_names, self.network
        local = self._local_network(round_number, received, names)  # the encoders do not move here
        temperature = self._temperature

        def value(batch: Batch) -> torch.Tensor:
            features = network.encode(*batch)
            teacher, own = (model.align(features, batch[1]) for model in (network, local))
            return infonce(*teacher.pair, temperature) + infonce(*own.pair, temperature)

        return value

    def _local_network(self, round_number: int, received: State, names: Collection[str]) -> DualEncoder:
        """The received encoders with this site's own aligner; frozen. Not in ``names``: shared."""
        local = frozen_copy(self.network, names)
        write_parameters(local, {**received, **self._of_this_round(round_number)})
        return local

    def _of_this_round(self, round_number: int) -> State:
        if self._aligner_round != round_number:
            raise WrongState(
                f"site {self.site_id!r} has no aligner of its own in round {round_number}",
                remedy="it missed the first stage, and takes part again in the next round",
            )
        return self.own

    @property
    def kept_names(self) -> tuple[str, ...]:
        """The aligner's."""
        return self.algorithm.align_names

    def save(self) -> State:
        """The robust weight, the local aligner and its round."""
        return {**super().save(), _ROUND: torch.tensor(self._aligner_round)}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        super().load(state)
        if _ROUND not in state:
            message = "what this site kept names no round of its aligner"
            raise MalformedMessage(message, remedy="start the study anew")
        self._aligner_round = int(state[_ROUND]) if self.own else 0
