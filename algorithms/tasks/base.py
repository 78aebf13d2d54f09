"""What a task is to federated averaging: a loss, the shape of outputs, and metrics from sums.

Every metric is computed from totals alone. How much one record adds to each field is bounded by the field's
declaration and by what :meth:`SummedTask.add` makes of an output. A record whose output is not finite, or
makes the model fail, is counted like any other, as wrong as an answer can be: no number of records depends
on the model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

import torch
from torch import nn

from secfed.algorithms.framework.targets import Targets
from secfed.algorithms.metrics.model_outputs import outputs_of
from secfed.algorithms.metrics.noise_error import NORMAL_95
from secfed.algorithms.metrics.score_grid import capped
from secfed.dp.training.losses import Criterion
from secfed.wire.layout import Field
from secfed.wire.parts import all_finite

Sums = dict[str, torch.Tensor]
Metrics = dict[str, float]

INTERVAL_95: Final = "_interval_95"  # ends the name of half an interval's width: records are a sample
RECORDS: Final = "eval/records"
LOSS: Final = "eval/loss"
_BOUND: Final = 2.0**40  # of a count, or a sum of what is at most 1024 for each record
_BITS: Final = 64
_ONE_RECORD: Final = 0.5  # a count is whole; fixed point leaves it off by far less


class RecordLoss:
    """The mean over a batch of a loss per record; declared to decompose, so that private steps take it."""

    decomposes = True

    def __init__(self, task: Task) -> None:
        self._task, self.name = task, f"of {task.targets.task}"

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of these records."""
        return self._task.losses(outputs, targets).mean()


class Task(ABC):
    """One task of one data set."""

    noisy_l2: ClassVar[float | None] = None  # what a record adds at most to noisy fields; None: has none

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.criterion: Criterion = RecordLoss(self)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Shape of what the model gives for one record."""
        return (self.targets.outputs,)

    @abstractmethod
    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of every record, [n]; one never depends on another."""

    def summed_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sum over the records."""
        return self.losses(outputs, targets).sum()

    @abstractmethod
    def fields(self, *, noisy: bool = False) -> tuple[Field, ...]:
        """What evaluation adds to a layout; ``noisy``: those that are released with noise."""

    @abstractmethod
    def counts(self, targets: torch.Tensor) -> Sums:
        """What a site adds whatever the model does: it follows from the held-out records alone."""

    @abstractmethod
    def evaluate(
        self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, *, device: torch.device
    ) -> Sums:
        """One site's float64 sums over its held-out records, by field name; all 0 without records."""

    @abstractmethod
    def finish(self, totals: Mapping[str, torch.Tensor], *, deviation: float = 0.0) -> Metrics:
        """Metrics from totals, of which every element has noise of that deviation; none without records."""

    def chance(self) -> dict[str, float]:
        """What guessing reaches, for metrics of which that is known."""
        return {}


class SummedTask(Task):
    """A task whose evaluation is written batch by batch, and has no noise."""

    rows: ClassVar[int] = 1024  # of one forward pass in evaluation

    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Fields of evaluation and their shapes, without those of records and losses."""

    @abstractmethod
    def known(self, targets: torch.Tensor) -> Sums:
        """The sums of :meth:`shapes` that no model changes."""

    @abstractmethod
    def add(self, sums: Sums, outputs: torch.Tensor, finite: torch.Tensor, targets: torch.Tensor) -> None:
        """Add a batch to the sums of :meth:`shapes` that depend on the model.

        Outputs are float64; those of records that are not ``finite`` are all 0.
        """

    @abstractmethod
    def measured(self, totals: Mapping[str, torch.Tensor], records: float) -> Metrics:
        """The metrics, from totals over at least one record; undefined ones are left out."""

    def fields(self, *, noisy: bool = False) -> tuple[Field, ...]:
        """Records, losses, and :meth:`shapes`; none of them with noise."""
        shapes = {} if noisy else {RECORDS: (), LOSS: (), **self.shapes()}
        return tuple(Field(name, shape, _BOUND, _BITS) for name, shape in shapes.items())

    def counts(self, targets: torch.Tensor) -> Sums:
        """How many records there are, and what else is :meth:`known`."""
        return {RECORDS: torch.tensor(float(len(targets)), dtype=torch.float64), **self.known(targets)}

    def evaluate(
        self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, *, device: torch.device
    ) -> Sums:
        """The sums, batch by batch."""
        sums = {field.name: torch.zeros(field.shape, dtype=torch.float64) for field in self.fields()}
        sums |= self.counts(targets)
        model.eval()
        with torch.no_grad():
            for start in range(0, len(targets), self.rows):
                target = targets[start : start + self.rows]
                outputs = outputs_of(model, inputs[start : start + self.rows].to(device), self.outputs)
                finite = torch.isfinite(outputs).flatten(1).all(dim=1)
                if not all_finite(finite, "outputs for held-out records"):
                    outputs[~finite] = 0.0
                losses = self.losses(outputs, target)
                sums[LOSS] += capped(torch.where(finite, losses, torch.nan)).sum()
                self.add(sums, outputs, finite, target)
        return sums

    def finish(self, totals: Mapping[str, torch.Tensor], *, deviation: float = 0.0) -> Metrics:
        """The mean loss, and what is :meth:`measured`."""
        del deviation
        records = float(totals[RECORDS]) if RECORDS in totals else 0.0
        if records < _ONE_RECORD:
            return {}
        return {"loss": float(totals[LOSS]) / records, **self.measured(totals, records)}


def mean_with_interval(name: str, total: float, squares: float, records: float, unit: float = 1.0) -> Metrics:
    """A mean over records and half the width of its 95 % interval, by the normal approximation."""
    mean = total / records
    found = {name: mean * unit}
    if records > 1 + _ONE_RECORD:
        variance = max(0.0, squares / records - mean**2) * records / (records - 1)
        found[name + INTERVAL_95] = NORMAL_95 * math.sqrt(variance / records) * unit
    return found
