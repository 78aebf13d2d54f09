"""The ``[algorithm]`` tables of ``canonical`` and ``canonical-alignment``."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.framework.kinds import KindOptions
from secfed.algorithms.models.feature_maps import FeatureMap
from secfed.config.schema import OPERATIONAL, Options


class ProjectionOptions(Options):
    """What projections are computed from."""

    maps: str | tuple[str, ...] = Field(
        default="l2",
        description='"l2", "sqrt-l2", "hog", "standard" or "projection:K", several joined by "+"; one for '
        "all views, or an array with one for each",
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
    max_records: int = Field(default=100_000, ge=1, description="the most records of a site; bounds the sums")
    min_group: int = Field(default=3, ge=3, description="the fewest sites that hold a view, at least 3")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for text in (self.maps,) if isinstance(self.maps, str) else self.maps:
            FeatureMap.parse(text)
        return self


class CanonicalOptions(ProjectionOptions, KindOptions):
    """Options of ``canonical``."""

    dimensions: int | None = Field(
        default=None, ge=1, description="numbers per embedded record; twice the number of classes if left out"
    )
    starts: Literal["simplex", "divisive", "cubes"] = Field(
        default="simplex",
        description='"simplex" (random corners), "divisive" (splits by covariances; for many clusters) or '
        '"cubes" (from third moments; with one restart the least noise)',
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
        default=1.0,
        ge=0,
        description="under noise, the least that is added to every variance: so many times what the noise in "
        "moments and cross-covariances moves a covariance's eigenvalues by, at least 0",
    )
    largest_value: float = Field(
        default=1e3, gt=0, le=1e6, description='above 0: map "standard" cuts features to this magnitude first'
    )


class AlignmentOptions(ProjectionOptions):
    """Options of ``canonical-alignment``."""

    dimensions: int = Field(
        default=64,
        ge=1,
        description="numbers per embedded image or text, or as many as the views correlate in",
    )
    image_cells: int = Field(
        default=1,
        ge=1,
        le=64,
        description="at least 1: image features are averaged in so many cells per side, which join",
    )
    noise_ridge: float = Field(
        default=1.0,
        ge=0,
        description="under noise, the least that is added to every variance: so many times what the noise "
        "moves a covariance's eigenvalues by, at least 0",
    )
    evaluation_batch: int = Field(default=64, ge=2, description="pairs to retrieve an image from, at least 2")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", json_schema_extra=OPERATIONAL, description='"auto", "cpu" or "cuda": of the encoders'
    )
