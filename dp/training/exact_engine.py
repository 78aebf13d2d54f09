"""Clipped gradients of many records at once that are what each would give alone, to the last bit.

For classifiers of common layers in a row. What one record adds follows from it and the weights, by the
construction in :mod:`secfed.dp.training.exact`; the sum over records is one matrix product in float64, which
errs as :meth:`secfed.dp.training.unit_sums.UnitSums.gradients` says. Everything else takes the loop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Final, Self

import torch
from torch import nn

from secfed.dp.training.engine_check import CANNOT_BE_COMPUTED, checked_engine
from secfed.dp.training.engines import ClippedSum, Engine
from secfed.dp.training.exact import Alive
from secfed.dp.training.exact_layers import Part, Rule, cross_entropy_slope, rules
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.errors import ConfigError

_ROWS: Final = 256  # records at a time, at most
_ELEMENTS: Final = 1 << 26  # float64 numbers at a time: 512 MiB

_log = logging.getLogger(__name__)


class ExactEngine(Engine):
    """One forward and one backward pass for all records of a batch; made by :meth:`of`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._at_a_time = 1  # records; from the shapes of what the last ones kept

    @classmethod
    def of(cls, model: nn.Module, loss: DeclaredLoss, like: Batch) -> Self | None:
        """The engine for this model and loss; None where there is none. Reads no number of ``like``."""
        parameters = list(model.parameters())
        if (
            loss.criterion is not nn.functional.cross_entropy
            or len(like) != 2
            or (like[1].dim(), like[1].dtype) != (1, torch.int64)
            or not like[0].is_floating_point()
            or any(value.device.type != "cpu" for value in (*like, *parameters))
            or rules(model) is None
        ):
            return None
        engine = cls(model)
        try:
            found = checked_engine("exact", engine, model, loss, like)
        except (ConfigError, *CANNOT_BE_COMPUTED) as problem:
            _log.warning("records are clipped one by one: %s", problem)
            return None
        return engine if found is engine else None

    def add(self, units: Sequence[Batch], into: ClippedSum) -> None:
        """The rows of each batch at once; ``into`` without a grid."""
        for inputs, classes in units:
            start = 0
            while start < len(classes):
                rows = slice(start, start + self._at_a_time)
                start = rows.stop
                self._add(inputs[rows], classes[rows], into)

    def _add(self, inputs: torch.Tensor, classes: torch.Tensor, into: ClippedSum) -> None:
        layers, alive = rules(self._model), Alive(len(classes))
        if layers is None:
            raise ConfigError("the model has other layers than before")
        values = inputs.detach().to(torch.float64)
        for layer in layers:
            values = layer.forward(values, alive)
        gradient = cross_entropy_slope(values, classes, alive)
        parts: list[tuple[nn.Parameter, Part]] = []
        for layer in reversed(layers):
            gradient = layer.backward(gradient, alive)
            parts += layer.parts()
        squares = torch.zeros(len(classes), dtype=torch.float64)
        for _, part in parts:
            squares = squares + part.squares
        norms = torch.where(alive.rows, squares.sqrt(), math.inf)
        factors = into.factors(norms)
        names = {id(value): name for name, value in into.parameters.items()}
        for value, part in parts:
            into.sums[names[id(value)]] += part.clipped(factors)
        kept = sum(part.elements for _, part in parts) + sum(map(_kept, layers)) // len(classes)
        self._at_a_time = max(1, min(_ROWS, _ELEMENTS // max(1, kept)))


def _kept(rule: Rule) -> int:
    return sum(value.numel() for value in vars(rule).values() if isinstance(value, torch.Tensor))
