"""``kaplan-meier`` under noise in the sum: curves and log-rank test from a noisy risk table.

One step. A complete record adds 1 to one number: the events, or the records that leave without one, of its
group at its time. All else follows from these noisy numbers; those at risk at a time are the sums of what
leaves from it on. Errors are Greenwood's, and beside them those of the noise to first order:

    log S(k) = sum over j <= k of log(1 - d_j / n_j)
    by d_l:  sum over j <= min(k, l) of d_j / (n_j (n_j - d_j)), less 1 / (n_l - d_l) if l <= k
    by c_l:  the same sum alone

Curves end where the records at risk are not far above the noise of their number. Intervals are those of
log S: near the start noise may lead above 1, where log(-log S) is no scale.

Source: Kaplan and Meier 1958; Greenwood 1926; Gondara and Wang 2020, Differentially Private Survival Function
Estimation (noise in the risk table).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from secfed.algorithms.statistics.analysis import NOISE, Shapes, State, Values, finish, hide
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.kaplan_meier import KaplanMeier, summary_of
from secfed.algorithms.statistics.results import Figure, Result, ResultTable

_ABOVE_NOISE: Final = 10.0  # deviations of the noise, by which the records at risk are above it
_Points = list[tuple[float, ...]]
_ANOTHER_CELL: Final = math.sqrt(0.5)  # of a record that is in another cell, two change by 1: half of 2 C


class NoisyKaplanMeier(KaplanMeier):
    """One time and event, by group."""

    noisy = True

    def unit_scales(self) -> Mapping[str, float]:
        """A record is in one cell."""
        return {"events": self._cell, "censored": self._cell}

    @property
    def _cell(self) -> float:
        return _ANOTHER_CELL if self.rules.replaced else 1.0

    def shapes(self) -> Shapes:
        """The noisy risk table, and the deviation of its noise over its scale."""
        return {**{part.name: part.shape for part in self.parts(0)}, NOISE: ()}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Keep the table, unless noise could have made it."""
        del same
        state["events"], state["censored"] = totals["events"].clone(), totals["censored"].clone()
        deviation = self.noise_in(step, state) * self._cell
        least = _ABOVE_NOISE * deviation * math.sqrt(2.0 * self.times.count)
        if all(sum(d) + sum(c) < least for d, c in zip(*self._rows(totals), strict=True)):
            return hide(state, Reason.TOO_NOISY)
        return finish(state)

    @staticmethod
    def _rows(totals: Mapping[str, torch.Tensor]) -> tuple[list[list[float]], list[list[float]]]:
        return totals["events"].tolist(), totals["censored"].tolist()

    def released(self, state: State) -> State:
        """The noisy table."""
        return {name: state[name] for name in self.shapes()}

    def result(self, released: Mapping[str, Values]) -> Result:
        """A table of each curve, and the test; every number with the noise in it."""
        from scipy.stats import norm

        t = float(released[NOISE]) * self._cell
        events, risk = released["events"], at_risk_of(released["events"] + released["censored"])
        ends = [told_times(one, t) for one in risk]
        reach = float(norm.ppf((1 + self.rules.level) / 2))
        tables, curves = [], dict[str, dict[str, Any]]()
        series, bands, below = dict[str, _Points](), dict[str, _Points](), dict[str, _Points]()
        header = ("time", "at risk", "survival", "se", "low", "high")
        for g, name in enumerate(self.groups):
            survival, error = noisy_curve(events[g], risk[g], ends[g], t)
            bounds = np.clip([survival * np.exp(side * reach * error) for side in (-1, 1)], 0.0, 1.0)
            times = self.times.interval * np.arange(ends[g])
            numbers = (times, risk[g][: ends[g]], np.clip(survival, 0, 1), survival * error, *bounds)
            rows = tuple(tuple(map(float, row)) for row in zip(*numbers, strict=True))
            tables.append(ResultTable(f"Survival: {name}", header, rows))
            series[name] = [(row[0], row[2]) for row in rows]
            bands[name] = [(row[0], row[4], row[5]) for row in rows]
            below[name] = [(row[0], row[1]) for row in rows]
            curves[name] = {
                key.replace(" ", "_"): list(one) for key, one in zip(header, numbers, strict=True)
            }
            curves[name]["n"], curves[name]["events"] = float(risk[g][0]), float(events[g].sum())
            curves[name]["median"] = next((row[0] for row in rows if row[2] <= 0.5), None)
        values: dict[str, object] = {"curves": curves, "interval": self.times.interval, "noise_deviation": t}
        test = noisy_log_rank(events, risk, min(ends), t)
        if test is not None:
            values["log_rank"] = test
            tables.append(ResultTable("Log-rank test", tuple(test), (tuple(test.values()),)))
        tables.append(summary_of(curves))
        title = "Survival" + ("" if self.by is None else f" by {self.by.name}")
        label = f"survival and {self.rules.level * 100:g} % interval"
        figure = Figure("step", title, self.times.label, label, series, bands, below)
        notes = ["with the noise of [privacy]; errors, intervals and the test include it"]
        if min(ends) < self.times.count:
            notes.append("curves end where the records at risk are not far above the noise")
        return Result(values, tuple(tables), (figure,), tuple(notes))


def at_risk_of(leaving: Values) -> Values:
    """How many [groups, times] are left just before each time."""
    return np.cumsum(leaving[:, ::-1], axis=1)[:, ::-1]


def told_times(risk: Values, t: float) -> int:
    """Up to which time the records at risk are above the noise of their number."""
    left = np.arange(len(risk), 0, -1)
    few = risk < np.maximum(_ABOVE_NOISE * t * np.sqrt(2.0 * left), 1.0)
    return int(np.argmax(few)) if few.any() else len(risk)


def noisy_curve(events: Values, risk: Values, end: int, t: float) -> tuple[Values, Values]:
    """Survival, and the standard error of its logarithm, at the times before ``end``."""
    d, n = events[:end], risk[:end]
    left = np.maximum(n - d, 1.0)
    added = d / (n * left)
    sums = np.cumsum(added)
    variance = np.maximum(sums, 0.0)
    for k in range(end):
        by_events = sums[: k + 1] - 1 / left[: k + 1]
        later = len(events) - k - 1  # times whose numbers count among those at risk only
        squares = by_events @ by_events + sums[: k + 1] @ sums[: k + 1] + 2 * later * sums[k] ** 2
        variance[k] += t * t * squares
    return np.cumprod(left / n, dtype=np.float64), np.sqrt(variance)


def noisy_log_rank(events: Values, risk: Values, end: int, t: float) -> dict[str, float] | None:
    """The test over the times before ``end`` at which all groups are above the noise; None without one."""
    from scipy.stats import chi2

    groups, count = events.shape
    if groups < 2 or end < 1:
        return None
    d, n = events[:, :end].sum(axis=0), risk[:, :end].sum(axis=0)
    shares, hazard = risk[:, :end] / n, d / n
    excess = (events[:, :end] - d * shares).sum(axis=1)[:-1]
    each = np.eye(groups)[:, :, None] - shares[:, None, :]  # [of, by, time]
    factor = d * (n - d) / np.maximum(n - 1.0, 1.0)
    covariance = np.einsum("j,aj,abj->ab", factor, shares, each.transpose(1, 0, 2))
    # Derivatives by what leaves a group at a time: of those at risk until then, and of the events themselves.
    by_risk = -np.cumsum(hazard * each, axis=2)
    later = by_risk[:, :, -1:].repeat(count - end, axis=2)
    for one in (by_risk + each, by_risk, later, later):
        covariance += t * t * np.einsum("abj,cbj->ac", one, one)
    try:
        statistic = float(excess @ np.linalg.solve(covariance[:-1, :-1], excess))
    except np.linalg.LinAlgError:
        return None
    if not statistic >= 0:
        return None
    degrees = groups - 1
    return {"statistic": statistic, "df": float(degrees), "p": float(chi2.sf(statistic, degrees))}
