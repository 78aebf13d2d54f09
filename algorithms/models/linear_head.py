"""``linear-head``: one linear layer on features that nobody trains.

    record -> fixed map, the same everywhere, rows of norm 1 -> scores of the classes

Few numbers, nothing of which must be learnt before the rest, and records of one length: what noise harms
least. The maps are those of :mod:`secfed.algorithms.models.feature_maps`; they look at one record only,
so they cost no privacy.

The layer has no bias: beside rows of norm 1 it would take up to half of every clipped gradient, squared, and
add noise of its own.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import nn

from secfed.algorithms.models.feature_maps import KEY, FeatureMap
from secfed.config.schema import ModelOptions
from secfed.errors import ConfigError

_PROJECTION_SEED = 0  # public: a projection is part of the model's structure


class LinearHeadOptions(ModelOptions):
    """Options of ``linear-head``."""

    features: str = Field(
        default="l2",
        description='what becomes of a record first: "l2", "sqrt-l2", "hog" (square images in grey) or '
        '"projection:K", or several joined by "+"',
    )


class FixedFeatures(nn.Module):
    """A map without parameters: [n, ...] to [n, d] float32."""

    def __init__(self, features: FeatureMap) -> None:
        super().__init__()
        self._features = features

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """Map every record by itself."""
        return self._features(records.flatten(1), _PROJECTION_SEED).to(torch.float32)


def linear_head(input_shape: tuple[int, ...], classes: int, options: LinearHeadOptions) -> nn.Module:
    """The map and the layer."""
    try:
        features = FeatureMap.parse(options.features)
    except ConfigError as error:
        raise ConfigError("model.features" + error.message.removeprefix(KEY), remedy=error.remedy) from None
    if features.standardises:
        raise ConfigError(
            'model.features: "standard" needs sums over all hospitals, which this model does not ask for',
            remedy='use data.standardize or data.scale, and "l2" here',
        )
    numbers = math.prod(input_shape)
    if ("hog", 0) in features.steps and numbers != input_shape[-1] ** 2:
        raise ConfigError(
            f'model.features: "hog" needs square images in grey, but the records have shape {input_shape}',
            remedy='use "l2" or "projection:K"',
        )
    return nn.Sequential(FixedFeatures(features), nn.Linear(features.size(numbers, 1), classes, bias=False))
