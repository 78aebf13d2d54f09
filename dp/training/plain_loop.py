"""Local training: ordinary PyTorch, the same on CPU and GPU, the same for every algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from secfed.dp.training.optimisers import eager
from secfed.dp.training.step import Steps, StepSettings
from secfed.errors import ConfigError

_PLAIN: Final = StepSettings()

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Training:
    """Everything that one site's local training consists of."""

    model: nn.Module  # changed in place
    optimiser: Optimizer
    # (output, target) -> mean over the records of a batch. Terms that do not depend on records belong into a
    # step hook of the optimiser, where they need no clipping.
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    loader: Iterable[Batch]


def train_locally(
    training: Training, *, epochs: int, device: torch.device, settings: StepSettings = _PLAIN
) -> float:
    """Train in place: so many passes over the loader. Returns the mean loss per record over all of them."""
    training.model.train()

    def loss(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return training.loss(training.model(inputs), labels)

    steps = Steps(training.optimiser, loss, device, settings)
    for _ in range(epochs):
        for batch in training.loader:
            steps.take(batch, len(batch[1]))
    training.model.eval()
    return steps.mean(empty=0.0)


class Rows(Dataset[Batch]):
    """Records that a loader takes a batch at a time, by one indexing instead of one per record."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self._inputs, self._labels = inputs, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Batch:
        return self._inputs[index], self._labels[index]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self._inputs[rows], self._labels[rows]


def make_loader(
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    batch_size: int,
    generator: torch.Generator,
    single: bool = True,
) -> DataLoader[Batch]:
    """Shuffled batches of ([n, ...] float32, [n] int64); ``generator`` is the only source of the order.

    Without ``single``, a last batch of one record is left out.
    """
    return DataLoader(
        Rows(inputs, labels),
        batch_size=batch_size,
        shuffle=True,
        generator=generator,
        collate_fn=_unchanged,
        drop_last=not single and len(labels) % batch_size == 1 and len(labels) > 1,
    )


def _unchanged(batch: Any) -> Any:
    return batch  # Rows has collated it


def make_optimiser(
    model: nn.Module,
    name: Literal["sgd", "adam"],
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
) -> Optimizer:
    """A fresh optimiser over the trainable parameters; its state does not outlive the round."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name == "adam":
        return eager(torch.optim.Adam)(parameters, lr=learning_rate, weight_decay=weight_decay)
    return eager(torch.optim.SGD)(parameters, lr=learning_rate, momentum=momentum, weight_decay=weight_decay)


def choose_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device a site trains on: ``auto`` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            'algorithm.device: "cuda", but PyTorch finds no GPU here',
            remedy='set algorithm.device = "auto", or install the CUDA build of torch',
        )
    return torch.device(name)
