"""Study keys of DRO weights (:mod:`secfed.algorithms.dro.rule`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from secfed.config.schema import Strict


class DroOptions(Strict):
    """Study keys of DRO weights, to be mixed into an ``[algorithm]`` table."""

    rho: float = Field(default=0.1, ge=0, description="radius of the divergence ball; 0 for equal weights")
    gamma: float = Field(default=1.0, ge=0, description="how fast weights follow losses, 0 to 10 / loss_cap")
    divergence: Literal["chi2", "kl"] = Field(
        default="chi2", description='"chi2" (two sums, exact) or "kl" (kl_nodes sums, approximate)'
    )
    divergence_factor: float = Field(
        default=0.5, description="0.5 (Cressie-Read, as published code has it) or 1.0, in front of chi2"
    )
    loss_cap: float | None = Field(
        default=None, gt=0, description="above 0: larger losses count as this; default 1.5 * log(batch)"
    )
    kl_nodes: int = Field(default=8, ge=2, le=16, description="power sums for kl, 2 to 16; more reveals more")
    weight_convention: Literal["mean_one", "simplex"] = Field(
        default="mean_one",
        description='"mean_one" (step scale n * weight) or "simplex" (step scale weight, as printed)',
    )
    least_step_scale: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="0 to 1, from 0.05 where sums are protected: no site's steps are scaled by less, and no "
        "weight is below 1/n times that, so that a lying server cannot make all updates or losses but one "
        'vanish; 1/n times that with "simplex"',
    )
    allow_two_site_weight_disclosure: bool = Field(
        default=False,
        description="true only if both of two sites accept that each can work out the other's loss",
    )

    @field_validator("divergence_factor")
    @classmethod
    def _known_factor(cls, value: float) -> float:
        if value not in (0.5, 1.0):
            raise ValueError("must be 0.5 or 1.0")
        return value
