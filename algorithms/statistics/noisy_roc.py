"""``roc`` under noise in the sum: the area from noisy counts of scores by outcome.

One step. A record adds 1 to one of the 2 ``bins`` cells. With p_i and q_i records with and without the
outcome, N and M of them in all, the area is the mean over the former of w_i = (q below i, and q_i / 2) / M.
Noise of deviation t in every cell moves it by

    sum dp_i (w_i - A) / N + sum dq_i (v_i - A) / M + (products of both noises) / (N M)

where v_i is for the others what w_i is. The first two are of first order; their squares from noisy cells
already have twice the variance of the third, which is therefore taken out once. The squares of DeLong's
variance are too large by the noise of w_i and v_i, which is taken out too.

Source: DeLong, DeLong, Clarke-Pearson 1988; ties count one half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.statistics.analysis import (
    NOISE,
    WEIGHTS,
    Shapes,
    State,
    Values,
    finish,
    hide,
    tally,
)
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.noisy_glm import NoisyGlm
from secfed.algorithms.statistics.options import RocOptions
from secfed.algorithms.statistics.results import Figure, Result, ResultTable
from secfed.algorithms.statistics.roc import Roc

_ABOVE_NOISE: Final = 5.0  # deviations of the noise, by which the records of an outcome are above it
_ANOTHER_CELL: Final = math.sqrt(0.5)  # of a record that is in another cell, two change by 1: half of 2 C


class NoisyRoc(Roc):
    """Of one regression."""

    noisy = True

    def _read(self, options: RocOptions) -> None:
        super()._read(options)
        # Scores are compared with the edges on their linear scale: comparing is exact, so no record's
        # cell depends on where it stands among others.
        shares = [cell / self.bins for cell in range(1, self.bins)]
        self.edges = np.array([math.log(share / (1 - share)) for share in shares])

    def unit_scales(self) -> Mapping[str, float]:
        """A record is in one cell."""
        return {"records": self._cell}

    @property
    def _cell(self) -> float:
        return _ANOTHER_CELL if self.rules.replaced else 1.0

    def shapes(self) -> Shapes:
        """The noisy counts, and the deviation of their noise over their scale."""
        return {"records": (2, self.bins), NOISE: ()}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """One tally; nothing where there is no regression."""
        del step
        model, shape = self.model, (2, self.bins)
        if float(given[self.reads[1]]) or not isinstance(model, NoisyGlm):
            return {"records": np.zeros(shape)}
        where = np.searchsorted(
            self.edges, model.predicted(model.bounded.columns(table), given[self.reads[0]]), side="right"
        )
        positive = (model.design.outcome(table) > 0.5).astype(np.int64)
        weights = given.get(WEIGHTS, np.ones(table.records))[model.design.complete(table)]
        return {"records": tally(positive, where.astype(np.int64), shape, weights)}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Keep the counts, unless noise could have made them."""
        del same
        if float(state[self.reads[1]]):
            return hide(state, Reason.OTHER_WITHHELD)
        deviation = self.noise_in(step, state) * self._cell * math.sqrt(self.bins)
        if min(sum(row) for row in totals["records"].tolist()) < max(_ABOVE_NOISE * deviation, 2.0):
            return hide(state, Reason.TOO_NOISY)
        state["records"] = totals["records"].clone()
        return finish(state)

    def released(self, state: State) -> State:
        """The noisy counts."""
        return {name: state[name] for name in self.shapes()}

    def result(self, released: Mapping[str, Values]) -> Result:
        """Area with its interval, and the curve."""
        from scipy.stats import norm

        t = float(released[NOISE]) * self._cell
        without, with_it = released["records"]
        m, n = float(without.sum()), float(with_it.sum())
        area, sampling, noise = noisy_area(without, with_it, t)
        error = math.sqrt(sampling + noise)
        reach = float(norm.ppf((1 + self.rules.level) / 2)) * error
        test = {"auc": area, "se": error, "low": max(area - reach, 0.0), "high": min(area + reach, 1.0)}
        rates = [np.concatenate([[0.0], np.cumsum(one[::-1]) / one.sum()]) for one in (without, with_it)]
        curve = [np.clip(np.maximum.accumulate(one), 0.0, 1.0) for one in rates]
        title = f"ROC of {self.model.name}"
        points = [(float(x), float(y)) for x, y in zip(*curve, strict=True)]
        values = {
            **test,
            "n_without": m,
            "n_with": n,
            "bins": self.bins,
            "false_positive_rate": curve[0],
            "true_positive_rate": curve[1],
            "noise_error": math.sqrt(noise),
            "noise_deviation": t,
        }
        table = ResultTable(title, (*test, "n without", "n with"), ((*test.values(), m, n),))
        series = {f"AUC {area:.3f}": points, "chance": [(0.0, 0.0), (1.0, 1.0)]}
        figure = Figure("line", title, "false positive rate", "true positive rate", series)
        note = "with the noise of [privacy], which the interval includes; fewer bins carry less of it"
        return Result(values, (table,), (figure,), (note,))


def noisy_area(without: Values, with_it: Values, t: float) -> tuple[float, float, float]:
    """The area, and its variances of sampling and of noise."""
    m, n, bins = float(without.sum()), float(with_it.sum()), len(without)
    above = n - np.cumsum(with_it)
    wins = (np.cumsum(without) - without / 2) / m, (above + with_it / 2) / n
    area = float(with_it @ wins[0] / n)
    at = np.arange(bins)
    sampling, noise = 0.0, 0.0
    for counts, size, other, win, cells in (
        (with_it, n, m, wins[0], at),
        (without, m, n, wins[1], bins - 1 - at),
    ):
        off = (win - area) ** 2
        shaken = (t / other) ** 2 * np.maximum(cells + 0.25 - 2 * win * (cells + 0.5) + win**2 * bins, 0.0)
        sampling += float(counts @ (off - shaken)) / (size * (size - 1))
        noise += t * t * float(off.sum()) / size**2
    both = t**4 * (bins * (bins - 1) / 2 + bins / 4) / (n * m) ** 2
    return area, max(sampling, 0.0), max(noise - both, both)
