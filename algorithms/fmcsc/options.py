"""The ``[algorithm]`` table of ``fmcsc``. Defaults are those of the method with nothing but sums."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.framework.kinds import KindOptions
from secfed.algorithms.framework.step_options import DeviceOptions
from secfed.config.schema import LATER
from secfed.errors import ConfigError


class FmcscOptions(DeviceOptions, KindOptions):
    """Options of ``fmcsc``."""

    pretrain_rounds: int = Field(default=40, ge=0, description="rounds of pre-training, part of study.rounds")
    pretrain_epochs: int = Field(default=20, ge=1, description="passes per pre-training round, at least 1")
    pretrain_learning_rate: float = Field(default=1e-3, gt=0, description="pre-training's step size, above 0")
    pretrain_share: float = Field(
        default=1 / 3, gt=0, le=1, description="share of sites per pre-training round; all with hidden views"
    )
    pretrain_start: Literal["common", "independent"] = Field(
        default="common",
        description='"common", or "independent" to see what averaging models of unrelated starts gives',
    )
    local_epochs: int = Field(default=25, ge=1, description="passes over the records per round, at least 1")
    distillation_epochs: int = Field(default=50, ge=1, description="passes for each view's model, at least 1")
    learning_rate: float = Field(default=3e-4, gt=0, description="Adam's step size in main round 1, above 0")
    learning_rate_decay: float = Field(default=1.0, gt=0, le=1, description="factor per round, above 0 to 1")
    batch_size: int = Field(default=256, ge=2, description="records per step, at least 2")
    temperature: float = Field(default=0.5, gt=0, description="temperature of feature contrast, above 0")
    model_temperature: float = Field(default=0.5, gt=0, description="temperature of model contrast, above 0")
    contrast: Literal["eq5", "ntxent"] = Field(default="eq5", description='"eq5" (as published) or "ntxent"')
    weights: Literal["mi", "public", "equal"] = Field(
        default="mi",
        description='"mi" (mutual information, stays at the site), "public" (1 for sites with all views, '
        '0 for the others) or "equal"',
    )
    distillation: bool = Field(default=True, description="true, or false for no teaching of view models")
    model_contrast: bool = Field(default=True, description="true, or false to start from the global model")
    participation: float = Field(default=1.0, gt=0, le=1, description="the share that trains, above 0 to 1")
    view_types: Literal["public", "hidden"] = Field(
        default="public",
        description='"public" (a sum per group of sites) or "hidden" (every site sends to every group)',
    )
    paper_laplace_epsilon: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=True,
        description="above 0, inf for no noise: the paper's noise on uploads, NOT a guarantee",
    )
    max_records: int = Field(default=100_000, ge=1, description="the most records of a site; bounds k-means")
    min_group: int = Field(default=3, ge=3, description="the fewest sites in a group's sum, at least 3")
    evaluate: Literal["last", "every"] = Field(
        default="last", description='"last" scores the final clustering, "every" also after each round'
    )
    clustering: Literal["euclidean", "spherical"] = Field(
        default="euclidean",
        description='"euclidean" (as published) or "spherical" (centres of norm 1, as the features have)',
    )
    starts: Literal["random", "divisive"] = Field(
        default="random",
        json_schema_extra=LATER,
        description='"random" or "divisive" (the first restart begins with splits by covariances; for many '
        "clusters)",
    )
    restarts: int = Field(default=20, ge=1, description="starts of k-means side by side, at least 1")
    kmeans_iterations: int = Field(default=30, ge=1, description="sums of k-means over multi-view sites")
    group_iterations: int = Field(default=30, ge=0, description="the same per other group; 0 only assigns")

    @property
    def keeps_state(self) -> bool:
        """With ``model_contrast``: its own model."""
        return self.model_contrast

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pretrain_start == "independent" and self.pretrain_rounds > 1:
            raise ConfigError(
                "algorithm.pretrain_rounds: independent starts are averaged once, so there is one round",
                remedy="set algorithm.pretrain_rounds = 1 and raise algorithm.pretrain_epochs",
            )
        if self.participation < 1 and self.view_types == "hidden":
            message = "algorithm.participation: who trains is chosen by view type, which is hidden"
            raise ConfigError(message, remedy='remove it, or set algorithm.view_types = "public"')
        return self
