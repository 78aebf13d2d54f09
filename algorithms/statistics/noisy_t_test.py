"""``t-test`` under noise in the sum: Welch's test from noisy counts, sums and squares.

One step. A record adds three numbers within 1 to its group. The mean of a group is off by the noise's
t sqrt(1 + m^2) / n to first order, beside sampling; degrees of freedom are Satterthwaite's, of a variance
whose own error has a part from the noise. A variance that noise leads below 0 counts as 0: what the noise
does to the mean is larger then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.statistics.analysis import NOISE, WEIGHTS, Shapes, State, Values, finish, hide
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.moments import centre_of, scale_of
from secfed.algorithms.statistics.results import Result, ResultTable
from secfed.algorithms.statistics.t_test import TTest, student_test

_ABOVE_NOISE: Final = 10.0  # deviations of the noise, by which a group's records are above it


class NoisyTTest(TTest):
    """One number in two groups."""

    noisy = True

    def unit_scales(self) -> Mapping[str, float]:
        """Three numbers within 1."""
        return {"moments": math.sqrt(3.0)}

    def shapes(self) -> Shapes:
        """The noisy moments, and the deviation of their noise over their scale."""
        return {"moments": (3, 2), NOISE: ()}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """Count, sum and squares [3, 2] of the records that have both values."""
        del step
        rows = table.complete((self.number.name, self.by.name))
        z = (table.values[self.number.name][rows] - centre_of(self.number)) / scale_of(self.number)
        z, weights = np.clip(z, -1.0, 1.0), given.get(WEIGHTS, np.ones(table.records))[rows]
        by = np.clip(table.values[self.by.name][rows], 0, 1).astype(np.int64)
        return {"moments": np.stack([np.bincount(by, weights * z**k, minlength=2) for k in range(3)])}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Keep the moments, unless noise could have made them."""
        del same
        t = self.noise_in(step, state) * self.unit_scales()["moments"]
        if min(totals["moments"][0].tolist()) < max(_ABOVE_NOISE * t, 2.0):
            return hide(state, Reason.TOO_NOISY)
        state["moments"] = totals["moments"].clone()
        return finish(state)

    def released(self, state: State) -> State:
        """The noisy moments."""
        return {name: state[name] for name in self.shapes()}

    def result(self, released: Mapping[str, Values]) -> Result:
        """The test and the interval of the difference, first minus second category."""
        t, scale = float(released[NOISE]) * self.unit_scales()["moments"], scale_of(self.number)
        n, total, squares = released["moments"]
        means, square = total / n, squares / n
        spread = np.maximum(square - means**2, 0.0) * n / (n - 1)
        sampling, noise = spread / n, t * t * (1 + means**2) / n**2
        variance = float((sampling + noise).sum())
        unsure = 2 * sampling**2 / (n - 1) + (t / n**2) ** 2 * (
            1 + 4 * means**2 + (2 * means**2 - square) ** 2
        )
        degrees = 2 * variance**2 / float(unsure.sum())
        error, difference = scale * math.sqrt(variance), scale * float(means[0] - means[1])
        test = student_test(difference, error, degrees, self.rules.level)
        means, deviations = centre_of(self.number) + scale * means, scale * np.sqrt(spread)
        groups = tuple(
            (name, float(n[g]), float(means[g]), float(deviations[g]))
            for g, name in enumerate(self.by.categories)
        )
        title = f"{self.number.name} by {self.by.name}"
        values = {
            **test,
            "n": n,
            "means": means,
            "groups": list(self.by.categories),
            "noise_error": scale * math.sqrt(noise.sum()),
            "noise_deviation": t,
        }
        tables = (
            ResultTable(title, (self.by.name, "n", "mean", "sd"), groups),
            ResultTable(f"Welch's t-test, {title}", tuple(test), (tuple(test.values()),)),
        )
        note = "with the noise of [privacy]; the interval and the test include it"
        return Result(values, tables, notes=(note,))
