"""The ``[algorithm]`` table of ``fedrgb``. Defaults are the paper's."""

from __future__ import annotations

import math
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.dro.rule import MAX_EXPONENT, DroRule
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.vision_language.options import RobustOptions
from secfed.errors import ConfigError

_CAP_FACTOR: Final = 3.0  # two contrastive losses are added, each about log B at chance
_ROBUST_ONLY: Final = (
    "teacher_steps",
    "beta",
    "dro_task_term",
    "rho",
    "gamma",
    "divergence",
    "divergence_factor",
    "loss_cap",
    "kl_nodes",
    "weight_convention",
    "allow_two_site_weight_disclosure",
    "loss_batches",
    "loss_batch_size",
    "loss_share",
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
    anchor_reduction: Literal["mean", "sumdim"] = Field(
        default="mean",
        description='"mean" (over pairs and dimensions) or "sumdim" (over pairs): of squared distances',
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
    dro_task_term: bool = Field(default=True, description="true, or false without the local aligner's loss")

    @model_validator(mode="after")
    def _check(self) -> Self:
        unused = [name for name in _ROBUST_ONLY if name in self.model_fields_set]
        if self.teacher == "averaged" and unused:
            raise ConfigError(
                f'algorithm.{unused[0]}: has no effect with teacher = "averaged", which has no second stage',
                remedy='remove it, or set algorithm.teacher = "robust"',
            )
        if not self.guidance:
            for name in ("guidance_loss", "guide_grad_through_features"):
                if name in self.model_fields_set:
                    raise ConfigError(
                        f"algorithm.{name}: has no effect without guidance",
                        remedy="remove it, or set algorithm.guidance above 0",
                    )
        return self

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
