"""A number per record: squared loss, and MSE, MAE and R^2 from sums.

The model gives one number on the scale where the declared bounds of the outcome are 0 and 1; metrics are in
the outcome's own unit, the loss is not. In evaluation predictions are brought between the bounds, so no
record adds more than 1 to a sum; a prediction that is not finite is off by as much as the bounds are apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from secfed.algorithms.tasks.base import Metrics, SummedTask, Sums, mean_with_interval

_NAMES: Final = ("outcomes", "outcome_squares", "errors", "error_squares", "error_fourths")
_SAME: Final = 1e-9  # a variance below this is rounding
_OUTCOMES, _SQUARES, _ERRORS, _ERROR_SQUARES, _ERROR_FOURTHS = (f"eval/{name}" for name in _NAMES)


class Regression(SummedTask):
    """Regression of an outcome with declared bounds."""

    def _scaled(self, targets: torch.Tensor) -> torch.Tensor:
        low, high = self.targets.bounds
        return (targets - low) / (high - low)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The squared error on the common scale."""
        return (outputs[:, 0] - self._scaled(targets)) ** 2

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Powers of outcomes and errors."""
        return dict.fromkeys((_OUTCOMES, _SQUARES, _ERRORS, _ERROR_SQUARES, _ERROR_FOURTHS), ())

    def known(self, targets: torch.Tensor) -> Sums:
        """Sums of outcomes and of their squares."""
        outcomes = self._scaled(targets.double())
        return {_OUTCOMES: outcomes.sum(), _SQUARES: (outcomes**2).sum()}

    def add(self, sums: Sums, outputs: torch.Tensor, finite: torch.Tensor, targets: torch.Tensor) -> None:
        """Powers of the absolute error, which is at most 1."""
        errors = (outputs[:, 0].clamp(0.0, 1.0) - self._scaled(targets.double())).abs()
        errors = torch.where(finite, errors, 1.0)
        for name, power in ((_ERRORS, 1), (_ERROR_SQUARES, 2), (_ERROR_FOURTHS, 4)):
            sums[name] += (errors**power).sum()

    def measured(self, totals: Mapping[str, torch.Tensor], records: float) -> Metrics:
        """``mse`` and ``mae`` with their intervals; ``r2`` unless all outcomes are alike."""
        of = {name: float(totals[name]) for name in self.shapes()}
        low, high = self.targets.bounds
        spread = of[_SQUARES] - of[_OUTCOMES] ** 2 / records
        unit = high - low
        return {
            **mean_with_interval("mse", of[_ERROR_SQUARES], of[_ERROR_FOURTHS], records, unit**2),
            **mean_with_interval("mae", of[_ERRORS], of[_ERROR_SQUARES], records, unit),
            **({"r2": 1.0 - of[_ERROR_SQUARES] / spread} if spread > _SAME * records else {}),
        }

    def chance(self) -> dict[str, float]:
        """Of the mean outcome as the prediction for everybody."""
        return {"r2": 0.0}
