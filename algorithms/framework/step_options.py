"""Keys of ``[algorithm]`` that say how local steps are carried out, and where they make no sense."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from secfed.config.schema import LATER, OPERATIONAL, Options
from secfed.dp.settings import PrivacySection
from secfed.dp.training.step import Precision, StepSettings
from secfed.errors import ConfigError


class DeviceOptions(Options):
    """Where a site trains."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", json_schema_extra=OPERATIONAL, description='"auto", "cpu" or "cuda"'
    )


class StepOptions(DeviceOptions):
    """And how its steps are carried out."""

    precision: Precision = Field(
        default="float32",
        json_schema_extra=LATER,
        description='"float32", "bfloat16" or "float16": of the forward pass',
    )
    compile: bool = Field(
        default=False,
        json_schema_extra=OPERATIONAL | LATER,
        description="true lets torch compile the steps: minutes at the start, faster steps afterwards",
    )


def check_steps(options: object, privacy: PrivacySection | None, *also: Precision) -> None:
    """Refuse, with a ConfigError, what private local steps are not sound with, or not made for.

    Where a batch is clipped record by record, the others of it move a record's last digits, which the slack
    of the noise pays for: in float32.

    Args:
        also: precisions beside float32 in which an algorithm runs every unit by itself.
    """
    if privacy is None or not privacy.in_local_steps:
        return
    asked = StepSettings.of(options)
    if asked.precision == "float16":
        raise ConfigError(
            'algorithm.precision: "float16" needs losses to be scaled up, and clipped gradients are not',
            remedy='set algorithm.precision = "bfloat16" or "float32"',
        )
    if asked.precision not in ("float32", *also):
        raise ConfigError(
            f'algorithm.precision: "{asked.precision}" is too coarse here: the noise of private local steps '
            "covers the last digits of float32",
            remedy='set algorithm.precision = "float32", or privacy.unit = "site"',
        )
    if asked.compile:
        raise ConfigError(
            "algorithm.compile: private local steps clip layer by layer or unit by unit, and that is "
            "not compiled",
            remedy="remove it",
        )
