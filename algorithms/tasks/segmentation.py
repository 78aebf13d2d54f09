"""A class for every pixel or voxel: cross entropy and soft Dice, and Dice and IoU from summed counts.

Class 0 is what is around; the means are over the others. All voxels of all hospitals count alike, so a
metric is one of all records together and no mean over records. A record whose scores are not finite has
none of its voxels found.

Source: Milletari, Navab, Ahmadi, "V-Net", 3DV 2016, section 3 (the Dice loss; here of each record by itself).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import nn

from secfed.algorithms.tasks.base import Metrics, SummedTask, Sums

_VOXELS: Final = "eval/voxels"  # of each class
_FOUND: Final = "eval/voxels_found"  # of them those that the model finds
_PREDICTED: Final = "eval/voxels_predicted"


class Segmentation(SummedTask):
    """Segmentation of pictures or volumes."""

    rows = 4

    @property
    def outputs(self) -> tuple[int, ...]:
        """A score for every class and voxel."""
        return (self.targets.values, *self.targets.shape)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy over the voxels, plus 1 - soft Dice, over all but class 0, of each record."""
        entropy = nn.functional.cross_entropy(outputs, targets, reduction="none").flatten(1).mean(dim=1)
        shares = outputs.softmax(dim=1).flatten(2)[:, 1:]
        actual = nn.functional.one_hot(targets.flatten(1), self.targets.values)[..., 1:]
        actual = actual.transpose(1, 2).to(shares.dtype)
        both = (shares * actual).sum(dim=2)
        dice = (2 * both + 1) / (shares.sum(dim=2) + actual.sum(dim=2) + 1)  # 1 voxel: defined without any
        return entropy + 1 - dice.mean(dim=1)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Counts of voxels by class."""
        return dict.fromkeys((_VOXELS, _FOUND, _PREDICTED), (self.targets.values,))

    def _counted(self, classes: torch.Tensor) -> torch.Tensor:
        return torch.bincount(classes.reshape(-1), minlength=self.targets.values).to(torch.float64)

    def known(self, targets: torch.Tensor) -> Sums:
        """Voxels of each class."""
        return {_VOXELS: self._counted(targets)}

    def add(self, sums: Sums, outputs: torch.Tensor, finite: torch.Tensor, targets: torch.Tensor) -> None:
        """Voxels that each class is predicted for, and those of them that are of it."""
        predicted, actual = outputs.argmax(dim=1)[finite], targets[finite]
        sums[_PREDICTED] += self._counted(predicted)
        sums[_FOUND] += self._counted(actual[predicted == actual])

    def measured(self, totals: Mapping[str, torch.Tensor], records: float) -> Metrics:
        """``dice`` and ``iou``, means over the classes that occur, and ``dice_1`` and so on."""
        del records
        actual, found, predicted = (totals[name].tolist() for name in (_VOXELS, _FOUND, _PREDICTED))
        metrics: Metrics = {}
        for name, of in (("dice", _dice), ("iou", _iou)):
            single = {
                f"{name}_{one}": of(found[one], actual[one], predicted[one])
                for one in range(1, self.targets.values)
                if actual[one] + predicted[one] > 0.5
            }
            if single:
                metrics |= {name: sum(single.values()) / len(single), **single}
        return metrics


def _dice(found: float, actual: float, predicted: float) -> float:
    return 2 * found / (actual + predicted)


def _iou(found: float, actual: float, predicted: float) -> float:
    return found / (actual + predicted - found)
