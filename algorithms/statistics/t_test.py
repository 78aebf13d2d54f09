"""``t-test``: Welch's test of whether the means of a number in two groups are equal.

Source: Welch 1947; degrees of freedom of Satterthwaite 1946.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.statistics.analysis import Analysis, Part, Shapes, State, Values, finish, hide, tensor
from secfed.algorithms.statistics.checks import (
    Checks,
    Rows,
    grouped_of,
    indicator,
    number_of,
    pairs_of,
    squares_of,
)
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.moments import mean_and_variance, moment_parts, moment_sums
from secfed.algorithms.statistics.options import TTestOptions
from secfed.algorithms.statistics.results import Result, ResultTable


class TTest(Analysis):
    """One number in two groups."""

    kind = "t-test"

    def _read(self, options: TTestOptions) -> None:
        self.number = self.column("column", options.column, "number")
        self.by = self.two_categories("by", options.by)
        self.needs = options.column, options.by

    def parts(self, step: int) -> Sequence[Part]:
        """Moments of both groups."""
        del step
        return moment_parts("moments", 2)

    def checks(self) -> Checks:
        """Of both groups."""
        numbers = number_of(self.number), indicator(self.by, 1)
        squares = (
            span for at in range(2) for span in squares_of(numbers, partial(_in_group, self.by.name, at))
        )
        return Checks(((self.by,),), numbers, (*pairs_of(numbers), *squares), grouped_of(numbers))

    def shapes(self) -> Shapes:
        """n, mean and variance of both groups."""
        return {"groups": (3, 2)}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """Moments of the records that have both values."""
        del step, given
        by = np.nan_to_num(table.values[self.by.name], nan=-1.0).astype(np.int64)
        return {"moments": moment_sums(table.values[self.number.name], self.number, by, 2)}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Refuse small groups."""
        del step, same
        n, sums, squares = totals["moments"].tolist()
        if min(map(round, n)) < max(self.min_cell, 2):
            return hide(state, Reason.FEW_RECORDS)
        found = [mean_and_variance(float(round(n[g])), sums[g], squares[g], self.number) for g in range(2)]
        if not found[0][1] + found[1][1] > 0.0:
            return hide(state, Reason.NO_VARIATION)
        state["groups"] = tensor(
            [[float(round(one)) for one in n], [mean for mean, _ in found], [var for _, var in found]]
        )
        return finish(state)

    def released(self, state: State) -> State:
        """n, means and variances."""
        return {"groups": state["groups"]}

    def result(self, released: Mapping[str, Values]) -> Result:
        """The test and the interval of the difference, first minus second category."""
        n, means, variances = released["groups"]
        parts = variances / n
        error = math.sqrt(parts.sum())
        degrees = float(parts.sum() ** 2 / (parts**2 / (n - 1)).sum())
        difference = float(means[0] - means[1])
        test = student_test(difference, error, degrees, self.rules.level)
        groups = tuple(
            (name, round(n[g]), float(means[g]), math.sqrt(variances[g]))
            for g, name in enumerate(self.by.categories)
        )
        title = f"{self.number.name} by {self.by.name}"
        return Result(
            {**test, "n": [round(one) for one in n], "means": means, "groups": list(self.by.categories)},
            (
                ResultTable(title, (self.by.name, "n", "mean", "sd"), groups),
                ResultTable(f"Welch's t-test, {title}", tuple(test), (tuple(test.values()),)),
            ),
        )


def _in_group(by: str, at: int, table: Table) -> Rows:
    found: Rows = table.values[by] == at
    return found


def student_test(difference: float, error: float, degrees: float, level: float) -> dict[str, float]:
    """A difference and its error by Student's t: interval at ``level``, statistic, degrees of freedom, p."""
    from scipy.stats import t

    half = float(t.ppf((1 + level) / 2, degrees)) * error
    return {
        "difference": difference,
        "low": difference - half,
        "high": difference + half,
        "t": difference / error,
        "df": degrees,
        "p": float(2 * t.sf(abs(difference / error), degrees)),
    }
