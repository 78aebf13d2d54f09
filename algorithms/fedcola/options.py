"""The ``[algorithm]`` table of ``fedcola``. Defaults are those of the method, except who takes part.

As in the authors' code, the learning rate falls by round (the paper: by epoch) and weights do not decay.

Under ``[privacy]`` only updates leave (scores where the study says so), and sites count the same. Private
training takes the first caption of an image only: one record must not lie in several groups.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.framework.coupled_privacy import check_coupled
from secfed.algorithms.framework.step_options import StepOptions, check_steps
from secfed.algorithms.models.transfer_options import SharedLayers
from secfed.config.schema import LATER
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError


class FedColaOptions(StepOptions):
    """Options of ``fedcola``."""

    aggregation: Literal["fedavg", "fediot", "collaborative", "compensated"] = Field(
        default="compensated",
        description='"fedavg" (each group by itself), "fediot" (blocks are averaged over both groups with '
        'the modality, sites with pairs counting a hundredfold), "collaborative" (attention layers are '
        'averaged over all sites that hold the modality) or "compensated" (the same, and every group counts '
        "all sites that reach its model)",
    )
    shared_layers: SharedLayers = Field(
        default="attention",
        json_schema_extra=LATER,
        description='which layers of blocks are averaged over all sites with the modality: "attention" (as '
        'published), "mlp" or "blocks"',
    )
    shared_over: Literal["modality", "all"] = Field(
        default="modality",
        json_schema_extra=LATER,
        description='over which towers these layers are averaged: "modality" (as published) or "all", images '
        "and texts together",
    )
    co_layers: Literal["none", "all", "attention", "mlp"] = Field(
        default="all",
        description="which layers of image and text sites also learn from the other modality's model: "
        '"none", "all", "attention" or "mlp"',
    )
    train_co_layers: bool = Field(default=True, description="true, or false to keep what was received")
    train_tokens: bool = Field(
        default=True,
        description="true, or false to keep the table of words as it is: a sum over it says which words "
        "no site of the sum uses",
    )
    server_step: float = Field(default=1.0, gt=0, description="what multiplies every mean update, above 0")
    local_epochs: int = Field(default=5, ge=1, description="passes over the records per round, at least 1")
    batch_size: int = Field(default=112, ge=2, description="records per step, at least 2")
    learning_rate: float = Field(default=1e-4, gt=0, description="AdamW's step size in round 1, above 0")
    learning_rate_decay: float = Field(default=0.99, gt=0, le=1, description="factor per round, above 0 to 1")
    mu: float = Field(
        default=0.0,
        ge=0,
        json_schema_extra=LATER,
        description="FedProx's pull to the received model, at least 0",
    )
    temperature: float = Field(default=0.07, gt=0, description="the temperature of the contrast, above 0")
    participation: float = Field(default=1.0, gt=0, le=1, description="each group's share, above 0 to 1")
    image_participation: float | None = Field(
        default=None, gt=0, le=1, json_schema_extra=LATER, description="that of image sites, above 0 to 1"
    )
    text_participation: float | None = Field(
        default=None, gt=0, le=1, json_schema_extra=LATER, description="that of text sites, above 0 to 1"
    )
    pairs_participation: float | None = Field(
        default=None, gt=0, le=1, json_schema_extra=LATER, description="that of pairs sites, above 0 to 1"
    )
    min_group: int = Field(default=3, ge=3, description="the fewest sites of a group in a sum, at least 3")
    weighting: Literal["equal", "records"] = Field(
        default="equal",
        description='"equal", or "records" (up to weight_cap) as published: sums over changing samples of '
        "sites then tell how many records each has",
    )
    weight_cap: int = Field(default=1000, ge=1, description="the number of records that counts as weight 1")
    gallery: int = Field(default=64, ge=2, description="images per gallery of retrieval, at least 2")
    evaluate: Literal["last", "every"] = Field(
        default="last", description='"last" measures the final models, "every" also after each round'
    )

    def share_of(self, kind: str) -> float:
        """Which share of a group trains in a round."""
        own: float | None = getattr(self, f"{kind}_participation")
        return self.participation if own is None else own

    @property
    def shares_attention(self) -> bool:
        """Whether attention layers, or others, are summed over all sites that hold the modality."""
        return self.aggregation in ("collaborative", "compensated")

    @property
    def shares_all(self) -> bool:
        """Whether that is one sum, over towers of both modalities."""
        return self.shares_attention and self.shared_over == "all"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weighting == "equal" and "weight_cap" in self.model_fields_set:
            message = 'algorithm.weight_cap: has no effect with weighting = "equal"'
            raise ConfigError(message, remedy='remove it, or set algorithm.weighting = "records"')
        for key in ("shared_layers", "shared_over"):
            if key in self.model_fields_set and not self.shares_attention:
                message = f'algorithm.{key}: has no effect with aggregation = "{self.aggregation}"'
                raise ConfigError(message, remedy="remove it")
        if self.co_layers == "none" and "train_co_layers" in self.model_fields_set:
            message = 'algorithm.train_co_layers: has no effect with co_layers = "none"'
            raise ConfigError(message, remedy="remove it")
        return self


def check_privacy(options: FedColaOptions, privacy: PrivacySection | None) -> None:
    """Refuse a study whose epsilon would be wrong, or that would let numbers out beside it."""
    if privacy is None:
        return
    check_steps(options, privacy)
    check_coupled(privacy, options.name, "sites with pairs compare the pairs of a batch with each other")
    if options.weighting == "records":
        message = 'algorithm.weighting: "records" lets numbers of records leave without noise'
        raise ConfigError(message, remedy='set algorithm.weighting = "equal"')
