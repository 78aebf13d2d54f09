"""What the ``[algorithm]`` tables of vision-language pre-training share.

Defaults are the papers', or their authors' code's. Under ``[privacy]`` only updates leave (evaluation where
the study says so). A robust weight is made from a loss that got noise first, and paid for; everything after
that is post-processing.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.dro.options import DroOptions
from secfed.algorithms.dro.rule import CAP_FACTOR, LEAST_STEP_SCALE, DroRule
from secfed.algorithms.framework.coupled_privacy import check_coupled
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.step_options import StepOptions, check_steps
from secfed.algorithms.vision_language.stage import Augmentation
from secfed.config.schema import LATER
from secfed.dp.settings import PrivacySection
from secfed.dp.training.step import Precision
from secfed.errors import ConfigError


class VlpOptions(StepOptions):
    """Keys of every algorithm of vision-language pre-training."""

    learning_rate: float = Field(default=2e-5, gt=0, description="the local step size, above 0")
    learning_rate_warmup: int = Field(
        default=0, ge=0, description="steps of a stage until the full step size"
    )
    learning_rate_warmup_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        json_schema_extra=LATER,
        description="the same as a share of the stage's steps, 0 to 1, so that stages of different lengths "
        "begin alike",
    )
    batch_size: int = Field(default=288, ge=2, description="pairs per local step; the loss compares them")
    optimizer: Literal["adamw", "sgd"] = Field(default="adamw", description='"adamw" or "sgd"')
    weight_decay: float = Field(default=0.05, ge=0, description="the local weight decay, at least 0")
    precision: Precision = Field(  # in the digest of every study
        default="float32", description='"float32", "bfloat16" or "float16": of the forward pass'
    )
    evaluate: Literal["every", "last"] = Field(
        default="every", description='"every" evaluates each round\'s model, "last" the final one only'
    )
    evaluation_batch: int = Field(default=64, ge=2, description="pairs to retrieve a report from, at least 2")
    evaluation_pairs: Literal["all", "distinct"] = Field(
        default="all",
        json_schema_extra=LATER,
        description='"all", or "distinct" for one held-out pair of every report: then each report of a batch '
        "belongs to one image",
    )
    evaluation_ceiling: bool = Field(
        default=False,
        json_schema_extra=LATER,
        description="true also sums each site's recall at 1 as a share of what its repeated reports leave "
        "possible, and that ceiling",
    )
    augment_images: float = Field(default=0.0, ge=0, le=1, description="change of training images, 0 to 1")
    drop_words: float = Field(default=0.0, ge=0, lt=1, description="share of words left out, 0 to below 1")

    @model_validator(mode="after")
    def _check_warmup(self) -> Self:
        if self.learning_rate_warmup and self.learning_rate_warmup_share:
            message = "algorithm.learning_rate_warmup_share: has no effect beside learning_rate_warmup"
            raise ConfigError(message, remedy="remove one of them")
        return self

    def warmup(self, steps: int) -> int:
        """Steps of a stage of so many until the full step size."""
        return self.learning_rate_warmup or round(self.learning_rate_warmup_share * steps)

    @property
    def augmentation(self) -> Augmentation:
        """What changes training pairs at random."""
        return Augmentation(self.augment_images, self.drop_words)


class RobustOptions(VlpOptions, DroOptions):
    """Keys of algorithms with robust weights, beside those of :class:`VlpOptions`."""

    loss_batches: int = Field(
        default=16,
        ge=1,
        description="fixed training batches that a site's loss is the mean of, at least 1; under [privacy] "
        "all that its pairs fill, if it is left out",
    )
    loss_batch_size: int = Field(default=64, ge=2, description="pairs in each of them, at least 2")
    reference_steps: int = Field(
        default=0,
        ge=0,
        json_schema_extra=LATER,
        description="local steps by which a site trains a model of its own, once: its robust weight is then "
        "made from how far its loss exceeds that model's, at least 0; 0 for the loss itself",
    )
    loss_share: float = Field(
        default=0.2, gt=0, lt=1, description="under [privacy], the share of epsilon that the losses may take"
    )

    @property
    def keeps_state(self) -> bool:
        """With robust weights: its weight, which follows from its losses."""
        return self.rho > 0

    def rule(self, setting: Setting, *, cap_factor: float = CAP_FACTOR) -> DroRule | None:
        """How robust weights come about, or None with ``rho = 0``; arguments as for ``DroRule.make``."""
        if not self.rho:
            return None
        sites, protection = setting.sites, setting.study.protection
        if self.least_step_scale < LEAST_STEP_SCALE and protection.name != "plain":
            raise ConfigError(
                f"algorithm.least_step_scale: {self.least_step_scale:g} is less than {LEAST_STEP_SCALE:g}: a "
                "lying server could leave one hospital's loss almost alone in a sum",
                remedy=f"set it to {LEAST_STEP_SCALE:g} or more, or leave it out",
            )
        return DroRule.make(
            self,
            sites=sites,
            colluders=protection.colluders_for(len(sites)),
            batch=self.loss_batch_size,
            cap_factor=cap_factor,
            noised=setting.study.privacy is not None,
        )


def check_privacy(options: VlpOptions, privacy: PrivacySection | None) -> None:
    """Refuse a study whose epsilon would be wrong, or that would let numbers out beside it."""
    weighted = isinstance(options, RobustOptions) and options.rho > 0
    if "loss_share" in options.model_fields_set and (privacy is None or not weighted):
        message = "algorithm.loss_share: has no effect without [privacy] and algorithm.rho above 0"
        raise ConfigError(message, remedy="remove it")
    if (
        isinstance(options, RobustOptions)
        and options.reference_steps
        and (privacy is not None or not weighted)
    ):
        message = "algorithm.reference_steps: belongs to robust weights without [privacy]"
        raise ConfigError(message, remedy="remove it: a reference would be trained, and nothing pays for it")
    if privacy is None:
        return
    name = options.name
    check_coupled(privacy, name, "a contrastive loss compares the pairs of a batch with each other")
    check_steps(options, privacy, "bfloat16")
    if weighted and not privacy.in_local_steps:
        raise ConfigError(
            "algorithm.rho: robust weights follow from each site's loss, and noise in the sum of updates "
            "does not cover them",
            remedy='set algorithm.rho = 0, or privacy.unit = "group", where losses get noise of their own',
        )
