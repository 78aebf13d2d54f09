"""What a record's target is: a class, labels, a class for every voxel, a number, or a time with an event.

Public: it follows from the study and the description of the data set, from no record.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import torch

from secfed.algorithms.framework.unfit import first_class_if_unknown, unfit
from secfed.errors import DataError

TaskName = Literal["classification", "regression", "multi-label", "survival", "segmentation"]
TASKS: Final[tuple[TaskName, ...]] = get_args(TaskName)


@dataclass(frozen=True)
class Targets:
    """The targets of a data set; made by one of the class methods.

    Attributes:
        task: what they are for.
        shape: of one record's target.
        values: how many whole numbers a target, or an element of it, is one of: 0 to ``values`` - 1. For
            regression 0: any number between the bounds.
        bounds: of an outcome, in its own unit.
        times: survival: where the intervals of time end, in ascending order.
    """

    task: TaskName
    shape: tuple[int, ...]
    values: int
    bounds: tuple[float, float] = (0.0, 1.0)
    times: tuple[float, ...] = ()

    @classmethod
    def of_classes(cls, classes: int) -> Targets:
        """One class per record."""
        return cls("classification", (), classes)

    @classmethod
    def of_labels(cls, labels: int) -> Targets:
        """So many labels per record, each 0 or 1."""
        return cls("multi-label", (labels,), 2)

    @classmethod
    def of_voxels(cls, classes: int, shape: tuple[int, ...]) -> Targets:
        """A class for every pixel or voxel of a record; class 0 is what is around."""
        return cls("segmentation", shape, classes)

    @classmethod
    def of_outcomes(cls, low: float, high: float) -> Targets:
        """A number between declared bounds."""
        if not -math.inf < low < high < math.inf:
            raise DataError("the bounds of the outcome are none", remedy="give two numbers, the lower first")
        return cls("regression", (), 0, (float(low), float(high)))

    @classmethod
    def of_times(cls, ends: Sequence[float]) -> Targets:
        """When something happened, or until when it had not, on a grid: :func:`survival_target`."""
        times = tuple(map(float, ends))
        rising = all(a < b for a, b in zip((0.0, *times), times, strict=False))
        if not times or not rising or not math.isfinite(times[-1]):
            raise DataError(
                "the grid of times is not an ascending list of numbers above 0",
                remedy="give the ends of the intervals, for example [6, 12, 24]",
            )
        return cls("survival", (), 2 * len(times) + 1, times=times)

    @property
    def outputs(self) -> int:
        """What a data set's ``classes`` is: scores per record, or per voxel, that a model gives."""
        return {"multi-label": math.prod(self.shape), "regression": 1, "survival": len(self.times)}.get(
            self.task, self.values
        )

    @property
    def kind(self) -> torch.dtype:
        """Of a tensor of targets."""
        return torch.int64 if self.values else torch.float32

    def blank(self) -> torch.Tensor:
        """The target of one record that says nothing."""
        return torch.full((1, *self.shape), 0.0 if self.values else self.bounds[0]).to(self.kind)

    def fitting(self, who: str, targets: torch.Tensor) -> torch.Tensor:
        """The targets, where every value is allowed; at a hospital others count as a public default.

        DataError in a simulation; ``who`` begins its message.
        """
        if not targets.numel():
            return targets
        if self.values:
            if not 0 <= int(targets.min()) <= int(targets.max()) < self.values:
                message = f"{who} have a label outside the study's {self.values} classes"
                unfit(DataError(message, remedy="check data.label_column and the classes"))
                return first_class_if_unknown(targets, self.values)
            return targets
        low, high = self.bounds
        if not bool(((targets >= low) & (targets <= high)).all()):  # false for NaN, too
            message = f"{who} have an outcome outside {low:g} to {high:g}, the bounds that the study declares"
            unfit(DataError(message, remedy="repair the records, or declare wider bounds"))
            return torch.nan_to_num(targets, nan=low).clamp(low, high)
        return targets


def targets_of(data: Any) -> Targets:
    """What a data set says of its targets; classes where it says nothing."""
    found: Targets | None = getattr(data, "targets", None)
    return Targets.of_classes(data.classes) if found is None else found


def survival_target(time: float, event: bool, ends: Sequence[float]) -> int:
    """A time as a class: twice its interval, and 1 more if the event happened in it.

    Interval k ends at ``ends[k]``, which belongs to it. Beyond the last, nothing more is known: what happens
    there counts as not having happened by the end of the grid.
    """
    interval = bisect_left(ends, time)
    return 2 * interval + (1 if event and interval < len(ends) else 0)
