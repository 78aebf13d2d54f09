"""The ``[algorithm]`` table of ``fedavg``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.framework.step_options import DeviceOptions, StepOptions
from secfed.algorithms.framework.targets import TASKS, TaskName
from secfed.config.schema import LATER
from secfed.errors import ConfigError

BestBy = (  # of all tasks
    Literal["loss", "accuracy", "balanced_accuracy", "roc_auc"]
    | Literal["r2", "f1_micro", "f1_macro", "concordance", "dice", "iou"]
)
_MEASURED: Final[Mapping[TaskName, tuple[str, ...]]] = {
    "classification": ("accuracy", "balanced_accuracy", "roc_auc"),
    "regression": ("r2",),
    "multi-label": ("f1_micro", "f1_macro", "roc_auc"),
    "survival": ("concordance",),
    "segmentation": ("dice", "iou"),
}


class MeanOptions(DeviceOptions):
    """Options of every algorithm of weighted means."""

    weighting: Literal["records", "equal"] = Field(
        default="records", description='"records" (up to weight_cap) or "equal"'
    )
    task: TaskName = Field(
        default="classification",
        json_schema_extra=LATER,
        description="what is learnt: " + ", ".join(f'"{name}"' for name in TASKS),
    )
    weight_cap: int = Field(default=1000, ge=1, description="the number of records that counts as weight 1")

    keep: Literal["last", "best"] = Field(
        default="last",
        json_schema_extra=LATER,
        description='"last", or "best": the model of the round with the best summed metric',
    )
    best_by: BestBy = Field(
        default="accuracy",
        json_schema_extra=LATER,
        description='the metric of keep and patience: "accuracy", "balanced_accuracy", "roc_auc" or "loss"; '
        'of other tasks "loss", "r2", "f1_micro", "f1_macro", "roc_auc", "concordance", "dice" or "iou"',
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra=LATER,
        description="so many measured rounds in a row without a better metric end training, at least 1",
    )

    @model_validator(mode="after")
    def _check_best(self) -> Self:
        if "best_by" in self.model_fields_set and self.keep == "last" and self.patience is None:
            raise ConfigError(
                "algorithm.best_by: nothing is decided by it",
                remedy='remove it, or set algorithm.keep = "best" or algorithm.patience',
            )
        known = ("loss", *_MEASURED[self.task])
        if self.best_by not in known and (self.keep == "best" or self.patience is not None):
            raise ConfigError(
                f'algorithm.best_by: "{self.best_by}" is no metric of algorithm.task = "{self.task}"',
                remedy="set it to one of: " + ", ".join(known),
            )
        return self

    @model_validator(mode="after")
    def _check_weighting(self) -> Self:
        if self.weighting == "equal" and "weight_cap" in self.model_fields_set:
            raise ConfigError(
                'algorithm.weight_cap: has no effect with weighting = "equal"',
                remedy='remove it, or set algorithm.weighting = "records"',
            )
        return self


class FedAvgOptions(MeanOptions, StepOptions):
    """Options of ``fedavg``."""

    local_epochs: int = Field(default=1, ge=1, description="passes over the records per round, at least 1")
    batch_size: int = Field(default=32, ge=1, description="records per local step, at least 1")
    learning_rate: float = Field(default=0.1, gt=0, description="the local step size, above 0")
    schedule: Literal["constant", "cosine", "exponential"] = Field(
        default="constant",
        json_schema_extra=LATER,
        description='how the local step size falls over the rounds: "constant", "cosine" or "exponential"',
    )
    final_rate: float = Field(
        default=0.01,
        gt=0,
        le=1,
        json_schema_extra=LATER,
        description="above 0 to 1: of the local step size in the last round, as a share of learning_rate",
    )
    warmup_rounds: int = Field(
        default=0,
        ge=0,
        json_schema_extra=LATER,
        description="rounds over which the local step size rises to learning_rate first, 0 for none",
    )
    optimizer: Literal["sgd", "adam"] = Field(default="sgd", description='"sgd" or "adam"')
    momentum: float = Field(default=0.0, ge=0, lt=1, description="the momentum of sgd, from 0 to below 1")
    weight_decay: float = Field(default=0.0, ge=0, description="the local weight decay, at least 0")
    travels: tuple[str, ...] = Field(
        default=(),
        json_schema_extra=LATER,
        description='patterns of the names of parameters, for example "head.*": these alone train and leave',
    )
    frozen: tuple[str, ...] = Field(
        default=(),
        json_schema_extra=LATER,
        description="patterns of the names of parameters that stay as they are, and never leave",
    )
    adapters: tuple[str, ...] = Field(
        default=(),
        json_schema_extra=LATER,
        description='patterns of the names of linear layers, for example "blocks.*": low-rank adapters '
        "beside them train and leave, with what travels names, and nothing else",
    )
    adapter_rank: int = Field(
        default=4, ge=1, json_schema_extra=LATER, description="the rank of adapters, at least 1"
    )
    batch_norm: Literal["pooled", "local", "frozen"] | None = Field(
        default=None,
        json_schema_extra=LATER,
        description='whose statistics: "pooled" (of all records, by sums), "frozen" (those of the start) or, '
        'with fedbn, "local" (the layers never leave)',
    )
    statistics_every: int = Field(
        default=1,
        ge=0,
        json_schema_extra=LATER,
        description="rounds from one computation of pooled statistics to the next; 0: at the end only",
    )
    activation_bound: float = Field(
        default=256.0,
        gt=0,
        le=2.0**15,
        json_schema_extra=LATER,
        description="above 0: the largest mean of what reaches a pooled layer, and of its square's root",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_momentum(self.optimizer, self.momentum)
        for key in ("statistics_every", "activation_bound"):
            if key in self.model_fields_set and self.batch_norm != "pooled":
                raise ConfigError(
                    f'algorithm.{key}: has an effect with batch_norm = "pooled" only', remedy="remove it"
                )
        if "adapter_rank" in self.model_fields_set and not self.adapters:
            raise ConfigError(
                "algorithm.adapter_rank: has no effect without algorithm.adapters", remedy="remove it"
            )
        if "final_rate" in self.model_fields_set and self.schedule == "constant":
            raise ConfigError(
                "algorithm.final_rate: a constant step size does not fall",
                remedy='remove it, or set algorithm.schedule = "cosine" or "exponential"',
            )
        return self

    @property
    def selects(self) -> bool:
        """Whether the study names what trains."""
        return bool(self.travels or self.frozen or self.adapters)

    def rate(self, round_number: int, rounds: int) -> float:
        """What the local step size of a round is multiplied by, above 0 to 1."""
        if round_number <= self.warmup_rounds:
            return round_number / (self.warmup_rounds + 1)
        done = (round_number - self.warmup_rounds - 1) / max(rounds - self.warmup_rounds - 1, 1)
        if self.schedule == "cosine":
            return self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * done)) / 2
        return self.final_rate**done if self.schedule == "exponential" else 1.0


def check_momentum(optimizer: str, momentum: float) -> None:
    """Refuse, with a ConfigError, a momentum beside adam's own."""
    if optimizer == "adam" and momentum:
        raise ConfigError(
            "algorithm.momentum: adam has no momentum of its own",
            remedy='remove it, or set algorithm.optimizer = "sgd"',
        )
