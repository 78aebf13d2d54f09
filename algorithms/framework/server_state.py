"""What the servers of all algorithms keep in a checkpoint: models and metrics, as named tensors.

model/<parameter>             the current model
metrics/<version>             an empty mark, so that a version without any metric is kept, too
metrics/<version>/<metric>    float64
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from secfed.errors import MalformedMessage
from secfed.wire.layout import State

MODEL: Final = "model/"
METRICS: Final = "metrics/"


def part_of(state: State, start: str) -> dict[str, torch.Tensor]:
    """The tensors whose names start like this, without that start; not copied."""
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def model_of(state: State, own: State) -> dict[str, torch.Tensor]:
    """Copies of a checkpoint's model.

    Args:
        state: a checkpoint.
        own: the parameters that it must have, by name; only their names and shapes count.

    Raises:
        MalformedMessage: other names or shapes.
    """
    model = part_of(state, MODEL)
    if {name: value.shape for name, value in model.items()} != {n: t.shape for n, t in own.items()}:
        raise MalformedMessage(
            "the checkpoint belongs to another model", remedy="resume with the study file that wrote it"
        )
    return {name: value.clone() for name, value in model.items()}


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
