"""The ``[algorithm]`` table of ``fedavg``."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.framework.step_options import DeviceOptions, StepOptions
from secfed.algorithms.framework.targets import TASKS, TaskName
from secfed.config.schema import LATER
from secfed.errors import ConfigError


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
    optimizer: Literal["sgd", "adam"] = Field(default="sgd", description='"sgd" or "adam"')
    momentum: float = Field(default=0.0, ge=0, lt=1, description="the momentum of sgd, from 0 to below 1")
    weight_decay: float = Field(default=0.0, ge=0, description="the local weight decay, at least 0")
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
        return self


def check_momentum(optimizer: str, momentum: float) -> None:
    """Refuse, with a ConfigError, a momentum beside adam's own."""
    if optimizer == "adam" and momentum:
        raise ConfigError(
            "algorithm.momentum: adam has no momentum of its own",
            remedy='remove it, or set algorithm.optimizer = "sgd"',
        )
