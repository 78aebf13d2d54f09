"""The ``[algorithm]`` table of ``canonical``."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.models.feature_maps import FeatureMap
from secfed.config.schema import Options


class CanonicalOptions(Options):
    """Options of ``canonical``."""

    maps: str | tuple[str, ...] = Field(
        default="l2",
        description='"l2", "sqrt-l2", "hog", "standard" or "projection:K", several joined by "+"; one for '
        "all views, or an array with one for each",
    )
    dimensions: int | None = Field(
        default=None, ge=1, description="numbers per embedded record; twice the number of classes if left out"
    )
    ridge: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description="above 0 to 1: added to every variance, as a share of the view's largest",
    )
    cross_radius: float = Field(
        default=0.9, gt=0, le=2, description="above 0 to 2: longer centred records are shortened to it"
    )
    starts: Literal["simplex", "divisive"] = Field(
        default="simplex",
        description='"simplex" (random corners), or "divisive" (splits by covariances; for many clusters)',
    )
    restarts: int = Field(default=20, ge=1, description="starts of k-means side by side, at least 1")
    kmeans_iterations: int = Field(default=10, ge=1, description="sums of k-means, at least 1")
    refinements: int = Field(
        default=0, ge=0, le=100, description="passes of discriminant refinement, 0 for none"
    )
    refinement_ridge: float = Field(
        default=0.03, gt=0, le=1, description="as ridge, for the variance inside clusters"
    )
    noise_ridge: float = Field(
        default=0.3,
        ge=0,
        description="under noise, the least that is added to every variance: so many times what the noise "
        "moves a covariance's eigenvalues by, at least 0",
    )
    largest_value: float = Field(
        default=1e3, gt=0, le=1e6, description='above 0: map "standard" cuts features to this magnitude first'
    )
    max_records: int = Field(default=100_000, ge=1, description="the most records of a site; bounds the sums")
    min_group: int = Field(default=3, ge=3, description="the fewest sites that hold a view, at least 3")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for text in (self.maps,) if isinstance(self.maps, str) else self.maps:
            FeatureMap.parse(text)
        return self
