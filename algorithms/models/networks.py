"""Small classifiers: ``logistic-regression``, ``mlp`` and ``small-cnn``.

None of them uses dropout or batch normalisation: the first makes training depend on one more random
stream, the second couples the records of a batch and keeps statistics that no exchange sums.

A user's own model is any function or class ``factory(input_shape, classes, **options) -> torch.nn.Module``
that maps ``[batch, *input_shape]`` float32 to ``[batch, classes]`` scores (logits); ``options`` are the
other keys of ``[model]``. It is called with torch's generator seeded from the study, so ordinary layers
need nothing special to be reproducible.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

from pydantic import Field
from torch import nn

from secfed.config.schema import ModelOptions
from secfed.errors import ConfigError


class MlpOptions(ModelOptions):
    """Options of ``mlp``."""

    hidden: tuple[int, ...] = Field(
        default=(32,), min_length=1, description="an array of hidden widths, at least one, each at least 1"
    )


class SmallCnnOptions(ModelOptions):
    """Options of ``small-cnn``."""

    channels: tuple[int, ...] = Field(
        default=(16, 32),
        min_length=1,
        max_length=2,
        description="one or two numbers of channels, at least 1: of one or two convolutions",
    )
    hidden: int = Field(default=64, ge=0, description="the width of the hidden layer, 0 for none")
    norm: Literal["group", "none"] = Field(default="group", description='"group" or "none"')


def logistic_regression(input_shape: tuple[int, ...], classes: int, _options: ModelOptions) -> nn.Module:
    """Multinomial logistic regression on the flattened record."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def mlp(input_shape: tuple[int, ...], classes: int, options: MlpOptions) -> nn.Module:
    """Fully connected layers with ReLU on the flattened record."""
    if any(width < 1 for width in options.hidden):
        raise ConfigError("model.hidden: a layer has no units", remedy="use widths of at least 1")
    return nn.Sequential(nn.Flatten(), *dense(math.prod(input_shape), *options.hidden, classes))


def dense(*widths: int) -> list[nn.Module]:
    """Linear layers between these widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]


def small_cnn(input_shape: tuple[int, ...], classes: int, options: SmallCnnOptions) -> nn.Module:
    """One or two convolutions with pooling, and a hidden layer or none."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ConfigError(
            f"model.name: small-cnn needs images (channels, height, width) of at least 4 x 4 pixels, "
            f"but the records have shape {input_shape}",
            remedy='use model.name = "mlp" or an image data set',
        )
    if min(options.channels) < 1:
        raise ConfigError("model.channels: a layer has no channels", remedy="use at least 1")
    layers: list[nn.Module] = []
    for before, after in pairwise((input_shape[0], *options.channels)):
        layers.append(nn.Conv2d(before, after, kernel_size=3, padding=1))
        if options.norm == "group":
            layers.append(nn.GroupNorm(math.gcd(after, 4), after))
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    pooled = 2 ** len(options.channels)
    features = options.channels[-1] * (input_shape[1] // pooled) * (input_shape[2] // pooled)
    widths = (features, options.hidden, classes) if options.hidden else (features, classes)
    return nn.Sequential(*layers, nn.Flatten(), *dense(*widths))
