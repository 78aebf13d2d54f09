"""``roc``: how well a logistic regression of the same study separates its outcomes, with DeLong's interval.

Predicted probabilities are counted in ``bins`` cells, by outcome, in one step after the regression's last.
Area and variance are those of probabilities rounded to their cell, or to several joined ones where few cells
have records; points of the curve are told only where
at least ``min_cell`` records of both outcomes lie between one and the next, and to a multiple of it, since a
threshold of a model's only number can lie beside an edge of a histogram.

Source: DeLong, DeLong, Clarke-Pearson 1988; ties count one half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.statistics.analysis import (
    STATUS,
    Analysis,
    Part,
    Shapes,
    State,
    Values,
    finish,
    hide,
    tally,
    tensor,
)
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.glm import Glm
from secfed.algorithms.statistics.noisy_glm import NoisyGlm
from secfed.algorithms.statistics.options import RocOptions
from secfed.algorithms.statistics.results import Figure, Result, ResultTable
from secfed.errors import ConfigError

_DIGITS: Final = 3  # of area and error, where a study has the curve of another model
_BITS: Final = 106  # of area and error: so many ways to divide the outcomes give the same two


class Roc(Analysis):
    """Of one regression."""

    kind = "roc"

    def _read(self, options: RocOptions) -> None:
        model = self.rules.earlier.get(options.of)
        if not isinstance(model, Glm | NoisyGlm) or model.family_name != "binomial":
            raise ConfigError(
                f"algorithm.analyses.{self.name}.of: the study has no binomial glm {options.of!r}",
                remedy='name an analysis with kind = "glm" and family = "binomial"',
            )
        self.model, self.bins = model, options.bins
        # Scores of another model divide the same records otherwise: points of both would bound a few.
        others = (one for one in self.rules.earlier.values() if isinstance(one, Roc))
        self.first_model = all(one.model is model for one in others)
        self.first = model.first + model.steps
        self.reads = (f"{model.name}/beta", f"{model.name}/{STATUS}")

    @property
    def checked_as(self) -> str:
        """The regression."""
        return self.model.name

    def parts(self, step: int) -> Sequence[Part]:
        """Records by outcome and cell."""
        del step
        return (Part("records", (2, self.bins)),)

    def shapes(self) -> Shapes:
        """Area, its variance, records without and with the outcome; and the curve."""
        return {"area": (4,), "curve": (self.bins + 1, 2)}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """One tally; nothing where there is no regression."""
        del step
        if float(given[self.reads[1]]):
            return {"records": np.zeros((2, self.bins))}
        y = self.model.design.outcome(table)
        x = self.model.coordinates(table)
        scores = 1 / (1 + np.exp(-np.clip(x @ given[self.reads[0]], -40.0, 40.0)))
        where = np.clip(np.floor(scores * self.bins), 0, self.bins - 1).astype(np.int64)
        return {"records": tally((y > 0.5).astype(np.int64), where, (2, self.bins))}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Area, variance and what of the curve may be told."""
        del step, same
        if float(state[self.reads[1]]):
            return hide(state, Reason.OTHER_WITHHELD)
        negatives, positives = ([float(round(c)) for c in row] for row in totals["records"].tolist())
        n, m = sum(positives), sum(negatives)
        if min(n, m) < max(self.min_cell, 2):
            return hide(state, Reason.FEW_RECORDS)
        enough = _joined(positives, negatives, self.min_cell)
        if enough is None:
            return hide(state, Reason.FEW_RECORDS)
        self._estimate(*enough, state, self._curve(positives, negatives))
        finish(state)
        return None

    def _estimate(
        self, positives: list[float], negatives: list[float], state: State, curve: list[list[float]]
    ) -> None:
        """Area and variance of these cells, beside the curve."""
        n, m = sum(positives), sum(negatives)
        below, above = 0.0, n
        wins_of_positive, wins_of_negative = [], []
        for p, q in zip(positives, negatives, strict=True):
            above -= p
            wins_of_positive.append((below + q / 2) / m)
            wins_of_negative.append((above + p / 2) / n)
            below += q
        area = sum(p * w for p, w in zip(positives, wins_of_positive, strict=True)) / n
        spread = [
            sum(c * (w - area) * (w - area) for c, w in zip(counts, wins, strict=True)) / (size - 1.0) / size
            for counts, wins, size in ((positives, wins_of_positive, n), (negatives, wins_of_negative, m))
        ]
        variance = spread[0] + spread[1]
        if not self.first_model:
            area, error = round(area, _DIGITS), round(math.sqrt(variance), _DIGITS)
            variance, curve = error * error, [[math.nan, math.nan] for _ in curve]
        state["area"], state["curve"] = tensor([area, variance, m, n]), tensor(curve)

    def _curve(self, positives: list[float], negatives: list[float]) -> list[list[float]]:
        """(false, true) positive rates from the highest threshold; NaN for points that are not told."""
        n, m = sum(positives), sum(negatives)
        curve, p, q, new_p, new_q = [[0.0, 0.0]], 0.0, 0.0, 0.0, 0.0
        for i in reversed(range(self.bins)):
            p, q = p + positives[i], q + negatives[i]
            new_p, new_q = new_p + positives[i], new_q + negatives[i]
            enough = min(new_p, new_q, n - p, m - q) >= self.min_cell
            if enough:
                new_p = new_q = 0.0
            curve.append([self._rounded(q) / m, self._rounded(p) / n] if enough else [math.nan, math.nan])
        curve[-1] = [1.0, 1.0]
        return curve

    def _rounded(self, records: float) -> float:
        """To a multiple of ``min_cell``: with an edge of a histogram, a threshold tells no few records."""
        return self.min_cell * math.floor(records / self.min_cell + 0.5)

    def released(self, state: State) -> State:
        """Area, variance, counts and curve."""
        return {name: state[name] for name in ("area", "curve")}

    def withheld(self, reason: Reason, released: Mapping[str, Values]) -> str:
        """Which regression it is of."""
        del reason, released
        return f"of {self.model.name}"

    def result(self, released: Mapping[str, Values]) -> Result:
        """Area with its interval, and the curve."""
        from scipy.stats import norm

        area, variance, m, n = (float(one) for one in released["area"])
        error = math.sqrt(variance)
        reach = float(norm.ppf((1 + self.rules.level) / 2)) * error
        test = {"auc": area, "se": error, "low": max(area - reach, 0.0), "high": min(area + reach, 1.0)}
        curve = [(float(x), float(y)) for x, y in released["curve"] if not math.isnan(x)]
        title = f"ROC of {self.model.name}"
        more = () if self.first_model else ("no curve: the study has one, of another model",)
        return Result(
            {
                **test,
                "n_without": round(m),
                "n_with": round(n),
                "bins": self.bins,
                "false_positive_rate": [x for x, _ in curve],
                "true_positive_rate": [y for _, y in curve],
            },
            (
                ResultTable(
                    title,
                    (*test, "n without", "n with"),
                    ((*test.values(), round(m), round(n)),),
                ),
            ),
            (
                Figure(
                    "line",
                    title,
                    "false positive rate",
                    "true positive rate",
                    {f"AUC {area:.3f}": curve, "chance": [(0.0, 0.0), (1.0, 1.0)]},
                ),
            )
            if curve
            else (),
            (
                f"probabilities were counted in {self.bins} cells; the area is that of the rounded ones",
                f"points of the curve are of multiples of {self.min_cell} records",
                *more,
            ),
        )


def _joined(
    positives: list[float], negatives: list[float], min_cell: int
) -> tuple[list[float], list[float]] | None:
    """The cells, or where area and error would give back their counts, joined; None if that leaves one.

    Each joined cell has ``min_cell`` records of both outcomes.
    """
    ways = math.prod(int(p + q) + 1 for p, q in zip(positives, negatives, strict=True))
    if ways >= 2**_BITS:
        return positives, negatives
    cells, p, q = list[tuple[float, float]](), 0.0, 0.0
    for more in zip(positives, negatives, strict=True):
        p, q = p + more[0], q + more[1]
        if min(p, q) >= min_cell:
            cells.append((p, q))
            p = q = 0.0
    if len(cells) < 2:
        return None
    cells[-1] = cells[-1][0] + p, cells[-1][1] + q
    return [one for one, _ in cells], [one for _, one in cells]
