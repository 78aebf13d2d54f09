"""One class per record: cross entropy, accuracy, and the area under the ROC curve of two classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from secfed.algorithms.framework.targets import Targets
from secfed.algorithms.metrics import classification
from secfed.algorithms.tasks.base import Metrics, Sums, Task
from secfed.wire.layout import Field


class Classification(Task):
    """Classification; the metrics are those of :mod:`secfed.algorithms.metrics.classification`."""

    noisy_l2 = classification.NOISY_L2

    def __init__(self, targets: Targets) -> None:
        super().__init__(targets)
        self.criterion = nn.functional.cross_entropy  # which private steps know

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy."""
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def summed_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """As PyTorch sums it."""
        return nn.functional.cross_entropy(outputs, targets, reduction="sum")

    def fields(self, *, noisy: bool = False) -> tuple[Field, ...]:
        """Of classification; ``noisy``: those that are released with noise."""
        return classification.fields(self.targets.values, noisy=noisy)

    def counts(self, targets: torch.Tensor) -> Sums:
        """Records, in all and of each class."""
        return classification.counts(targets, self.targets.values)

    def evaluate(
        self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, *, device: torch.device
    ) -> Sums:
        """Of classification."""
        classes = self.targets.values
        return classification.evaluate(model, inputs, targets, classes=classes, device=device)

    def finish(self, totals: Mapping[str, torch.Tensor], *, deviation: float = 0.0) -> Metrics:
        """Of classification."""
        return classification.finish(totals, self.targets.values, deviation=deviation)

    def chance(self) -> dict[str, float]:
        """Of classification."""
        return classification.chance(self.targets.values)
