"""What the ``[algorithm]`` tables of vision-language pre-training share. Defaults are the papers'."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from secfed.algorithms.dro.options import DroOptions
from secfed.algorithms.dro.rule import CAP_FACTOR, DroRule
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.vision_language.augment import Augmentation
from secfed.config.schema import OPERATIONAL, Options


class VlpOptions(Options):
    """Keys of every algorithm of vision-language pre-training."""

    learning_rate: float = Field(default=2e-5, gt=0, description="the local step size, above 0")
    learning_rate_warmup: int = Field(
        default=0,
        ge=0,
        description="local steps over which the step size rises to its value in every stage; 0 for none",
    )
    batch_size: int = Field(
        default=288, ge=2, description="pairs per local step, at least 2; the loss compares them"
    )
    optimizer: Literal["adamw", "sgd"] = Field(default="adamw", description='"adamw" or "sgd"')
    weight_decay: float = Field(default=0.05, ge=0, description="the local weight decay, at least 0")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description='"float32", "bfloat16" or "float16": of the forward pass'
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", json_schema_extra=OPERATIONAL, description='"auto", "cpu" or "cuda"'
    )
    evaluate: Literal["every", "last"] = Field(
        default="every", description='"every" evaluates each round\'s model, "last" the final one only'
    )
    evaluation_batch: int = Field(
        default=64, ge=2, description="pairs that a report is retrieved from, at least 2"
    )
    augment_images: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="how much training images are turned, moved and jittered at random, 0 to 1",
    )
    drop_words: float = Field(
        default=0.0, ge=0, lt=1, description="the share of words left out of training reports, 0 to below 1"
    )

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
    loss_share: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="under [privacy], the share of epsilon that the losses alone would take, between 0 and 1",
    )

    def rule(self, setting: Setting, *, cap_factor: float = CAP_FACTOR) -> DroRule | None:
        """How robust weights come about; None with ``rho = 0``, when all weights stay equal.

        ``cap_factor`` is the default cap of a loss in units of log(loss_batch_size).

        Raises:
            ConfigError: gamma times the cap is too large.
        """
        if not self.rho:
            return None
        sites = setting.sites
        return DroRule.make(
            self,
            sites=sites,
            colluders=setting.study.protection.colluders_for(len(sites)),
            batch=self.loss_batch_size,
            cap_factor=cap_factor,
            noised=setting.study.privacy is not None,
        )
