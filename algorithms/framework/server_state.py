"""What servers keep in a checkpoint, models and metrics as named tensors, and a base for their programs.

model/<parameter>             the current model
metrics/<version>             an empty mark, so that a version without any metric is kept, too
metrics/<version>/<metric>    float64
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from secfed.algorithms.framework.base import ServerProgram
from secfed.errors import MalformedMessage
from secfed.wire.layout import State

MODEL: Final = "model/"
METRICS: Final = "metrics/"


def part_of(state: State, start: str) -> dict[str, torch.Tensor]:
    """The tensors whose names start like this, without that start; not copied."""
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def moved(value: torch.Tensor, total: torch.Tensor, divisor: float) -> torch.Tensor:
    """A parameter plus a total divided by a weight or a count, computed in float64: float32."""
    step: torch.Tensor = value.to(torch.float64) + total / divisor
    return step.to(torch.float32)


def copies(state: State) -> dict[str, torch.Tensor]:
    """A copy of every tensor, by name."""
    return {name: value.clone() for name, value in state.items()}


def model_of(state: State, own: State, start: str = MODEL) -> dict[str, torch.Tensor]:
    """Copies of what a checkpoint keeps under names with this start: the model, or something else."""
    model = part_of(state, start)
    if {name: value.shape for name, value in model.items()} != {n: t.shape for n, t in own.items()}:
        message = "the checkpoint belongs to another model"
        raise MalformedMessage(message, remedy="resume with the study file that wrote it")
    return copies(model)


class VersionMetrics:
    """Metrics by model version; version 0 is the model before the first round."""

    def __init__(self) -> None:
        self._found: dict[int, dict[str, float]] = {}

    def of(self, version: int) -> dict[str, float]:
        """The metrics of one version, to read and to write; it counts as measured from now on."""
        return self._found.setdefault(version, {})

    def all(self) -> Mapping[int, Mapping[str, float]]:
        """Copies of all."""
        return {version: dict(found) for version, found in self._found.items()}

    def save(self) -> dict[str, torch.Tensor]:
        """As part of a checkpoint."""
        state = {}
        for version, found in self._found.items():
            state[f"{METRICS}{version}"] = torch.zeros(())
            for name, value in found.items():
                state[f"{METRICS}{version}/{name}"] = torch.tensor(value, dtype=torch.float64)
        return state

    def load(self, state: State) -> None:
        """Replace all by those of a checkpoint."""
        self._found = {}
        for name, value in part_of(state, METRICS).items():
            version, _, metric = name.partition("/")
            found = self.of(int(version))
            if metric:
                found[metric] = float(value)


class ModelServer(ServerProgram):
    """A server program with a model: how it begins, what it gives and how it is saved.

    Where every group has a model, ``group/parameter`` are the names of one.
    """

    def __init__(self, initial: State) -> None:
        self._model = copies(initial)
        self._metrics = VersionMetrics()

    def begin(self, model: State) -> None:
        """Begin with this model instead of the seed's."""
        self._model = copies(model)

    def model(self) -> State:
        """The current parameters, by name: float32 copies."""
        return copies(self._model)

    def metrics(self) -> Mapping[int, Mapping[str, float]]:
        """Metrics by model version."""
        return self._metrics.all()

    def save(self) -> State:
        """Model and metrics."""
        return {MODEL + name: value for name, value in self.model().items()} | self._metrics.save()

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        self._model = model_of(state, self._model)
        self._metrics.load(state)
