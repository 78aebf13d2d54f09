"""``kaplan-meier``: survival by group, with Greenwood's errors and the log-rank test.

Estimates are those of every time of the grid; told are the times between which ``min_cell`` events or more
lie, and the number at risk is rounded down to a multiple of ``min_cell``. Survival and Greenwood's sum in
full digits would give back every number at risk, and so each censoring: they are rounded to what ``min_cell``
more records at risk at every time would change, and the error includes the rounding. A median is told as the
two times that it lies between.

Source: Kaplan and Meier 1958; Greenwood 1926; Kalbfleisch and Prentice 2002, section 1.4 (intervals,
log-rank).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import (
    WEIGHTS,
    Analysis,
    Part,
    Shapes,
    State,
    Values,
    finish,
    hide,
    positions,
    tally,
    tensor,
)
from secfed.algorithms.statistics.arithmetic import cholesky, dot, four_digits, solve
from secfed.algorithms.statistics.checks import Checks, indicator
from secfed.algorithms.statistics.disclosure import Reason, is_small
from secfed.algorithms.statistics.options import KaplanMeierOptions
from secfed.algorithms.statistics.results import Cell, Figure, Result, ResultTable
from secfed.algorithms.statistics.survival import Times, at_risk

_Points = list[tuple[float, ...]]
_STEPS: Final = (2.0, 1.0, *(float(f"{digit}e-{k}") for k in range(1, 13) for digit in (5, 2, 1)))
_NEXT: Final = 1e-9  # of a step: a number by so little above a multiple is that multiple


class KaplanMeier(Analysis):
    """One time and event, by group."""

    kind = "kaplan-meier"

    def _read(self, options: KaplanMeierOptions) -> None:
        self.times = Times(self, options)
        self.by: Column | None = None if options.by is None else self.column("by", options.by, "category")
        self.groups = ("all",) if self.by is None else self.by.categories
        self.needs = (*self.times.needs, *([self.by.name] if self.by else []))

    def parts(self, step: int) -> Sequence[Part]:
        """Events, and records that leave without one, of each group at each time."""
        del step
        shape = (len(self.groups), self.times.count)
        return Part("events", shape), Part("censored", shape)

    def checks(self) -> Checks:
        """Of groups and events, and of groups together with terms of formulas."""
        crossed = (*([self.by] if self.by else []), self.times.event)
        groups = tuple(indicator(self.by, at) for at in range(1, len(self.groups))) if self.by else ()
        return Checks(tables=(crossed,), joint=groups, crossed=(crossed,))

    def shapes(self) -> Shapes:
        """At risk, survival and Greenwood's sum; the test; records and events of each group; medians.

        Of a median the positions of the told times before it, and not before it; -1 for none.
        """
        groups = len(self.groups)
        curves = (groups, self.times.count, 3)
        return {"curves": curves, "test": (2,), "sizes": (groups, 2), "medians": (groups, 2)}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """Two tallies of complete records."""
        del step
        rows = table.complete(self.needs)
        where, events = self.times.of(table, rows)
        group = np.zeros(len(where), np.int64)
        if self.by is not None:
            group = positions(table.values[self.by.name][rows], len(self.groups))
        shape = (len(self.groups), self.times.count)
        weights = given.get(WEIGHTS, np.ones(table.records))[rows]
        return {
            "events": tally(group[events], where[events], shape, weights[events]),
            "censored": tally(group[~events], where[~events], shape, weights[~events]),
        }

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Curves and test; nothing at all if a group or its events are few."""
        del step, same
        events = [[float(round(d)) for d in row] for row in totals["events"].tolist()]
        censored = [[float(round(c)) for c in row] for row in totals["censored"].tolist()]
        sizes = [[sum(d) + sum(c), sum(d)] for d, c in zip(events, censored, strict=True)]
        if any(is_small(n, self.min_cell) for size in sizes for n in (*size, size[0] - size[1])):
            return hide(state, Reason.FEW_RECORDS)
        if not sum(size[1] for size in sizes):
            return hide(state, Reason.NO_VARIATION)
        risks = [
            at_risk([a + b for a, b in zip(d, c, strict=True)]) for d, c in zip(events, censored, strict=True)
        ]
        curves = [self._curve(d, n) for d, n in zip(events, risks, strict=True)]
        state["curves"] = tensor([rows for rows, _ in curves])
        state["medians"] = tensor([median for _, median in curves])
        state["test"] = tensor([four_digits(one) for one in _log_rank(events, risks)])
        state["sizes"] = tensor(sizes)
        finish(state)
        return None

    def _curve(
        self, events: Sequence[float], risk: Sequence[float]
    ) -> tuple[list[list[float]], tuple[float, float]]:
        """What is told of every time, and between which of them the median lies."""
        more = self.min_cell
        (survival, spread), (upper, lower), new = (1.0, 0.0), (1.0, 0.0), 0.0
        rows, last, before, by = list[list[float]](), 1.0, -1, -1
        for j, (d, n) in enumerate(zip(events, risk, strict=True)):
            if d:
                survival *= 1.0 - d / n
                spread += d / (n * (n - d)) if n > d else math.inf
                upper *= 1.0 - d / (n + more)
                lower += d / ((n + more) * (n + more - d))
                new += d
            told = (j == 0 and not d) or (new >= self.min_cell and n >= self.min_cell)
            step = _step(upper - survival)
            shown = _rounded(survival, step)
            if not told or (survival > 0 and shown <= 0):  # where nothing is left of it
                rows.append([math.nan] * 3)
                continue
            last, new = min(last, shown), 0.0
            if 0 < last < 1 and spread < math.inf:
                rounding = step * step / (12 * last * last)
                told_spread = _rounded(spread, _step(spread - lower), up=True) + rounding
            else:
                told_spread = spread
            if survival > 0.5:
                before = j
            elif by < 0:
                by = j
            rows.append([self.min_cell * (n // self.min_cell), last, told_spread])
        return rows, (before, by)

    def released(self, state: State) -> State:
        """Curves as far as they are told, test, sizes and medians."""
        return {name: state[name] for name in ("curves", "test", "sizes", "medians")}

    def result(self, released: Mapping[str, Values]) -> Result:
        """A table of each curve, and the test."""
        from scipy.stats import chi2, norm

        reach = float(norm.ppf((1 + self.rules.level) / 2))
        tables, curves = [], dict[str, dict[str, Any]]()
        series, bands, below = dict[str, _Points](), dict[str, _Points](), dict[str, _Points]()
        for g, name in enumerate(self.groups):
            rows = []
            for j, (risk, survival, spread) in enumerate(released["curves"][g].tolist()):
                if math.isnan(survival):
                    continue
                low, high = _interval(survival, spread, reach)
                error = survival * math.sqrt(spread) if survival > 0 else 0.0
                rows.append((j * self.times.interval, round(risk), survival, error, low, high))
            header = ("time", "at risk", "survival", "se", "low", "high")
            tables.append(ResultTable(f"Survival: {name}", header, tuple(rows)))
            series[name] = [(row[0], row[2]) for row in rows]
            bands[name] = [(row[0], row[4], row[5]) for row in rows]
            below[name] = [(row[0], row[1]) for row in rows]
            curves[name] = {
                key.replace(" ", "_"): [row[k] for row in rows] for k, key in enumerate(header)
            } | {
                "n": round(float(released["sizes"][g][0])),
                "events": round(float(released["sizes"][g][1])),
                "median": [
                    None if j < 0 else j * self.times.interval for j in map(round, released["medians"][g])
                ],
            }
        values: dict[str, object] = {"curves": curves, "interval": self.times.interval}
        statistic, degrees = (float(one) for one in released["test"])
        if degrees:
            test = {"statistic": statistic, "df": degrees, "p": float(chi2.sf(statistic, degrees))}
            values["log_rank"] = test
            tables.append(ResultTable("Log-rank test", tuple(test), (tuple(test.values()),)))
        tables.append(summary_of(curves))
        title = "Survival" + ("" if self.by is None else f" by {self.by.name}")
        label = f"survival and {self.rules.level * 100:g} % interval"
        figure = Figure("step", title, self.times.label, label, series, bands, below)
        notes = (
            f"told are times between which {self.min_cell} events or more lie; at risk is rounded down",
            f"survival is rounded to what {self.min_cell} more at risk would change; errors include that",
        )
        return Result(values, tuple(tables), (figure,), notes)


def summary_of(curves: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    """How many records and events each curve is of, and its median or the times that it lies between."""
    rows = tuple((name, one["n"], one["events"], _median(one["median"])) for name, one in curves.items())
    return ResultTable("Groups", ("group", "n", "events", "median"), rows)


def _median(found: Any) -> Cell:
    if not isinstance(found, list):
        return "not reached" if found is None else float(found)
    after, by = (None if one is None else f"{one:g}" for one in found)
    if by is None:
        return "not told" if after is None else f"after {after}"
    return f"up to {by}" if after is None else f"{after} to {by}"


def _step(change: float) -> float:
    """The smallest of 1, 2 and 5 of a decimal place that is not below this; the same everywhere."""
    return min((step for step in _STEPS if step >= change), default=_STEPS[0])


def _rounded(value: float, step: float, *, up: bool = False) -> float:
    steps = value / step
    return float(f"{step * (math.ceil(steps - _NEXT) if up else round(steps)):.12f}")


def _interval(survival: float, spread: float, reach: float) -> tuple[float, float]:
    """On the scale of log(-log S)."""
    if not 0 < survival < 1 or not math.isfinite(spread):
        return survival, survival
    half = reach * math.sqrt(spread) / abs(math.log(survival))
    return survival ** math.exp(half), survival ** math.exp(-half)


def _log_rank(events: Sequence[Sequence[float]], risks: Sequence[Sequence[float]]) -> list[float]:
    """Statistic and degrees of freedom, over the groups that have records."""
    groups = [g for g, risk in enumerate(risks) if risk[0] > 0]
    k = len(groups) - 1
    if k < 1:
        return [0.0, 0.0]
    excess = [0.0] * k
    variance = [[0.0] * k for _ in range(k)]
    for j in range(len(events[0])):
        d, n = sum(events[g][j] for g in groups), sum(risks[g][j] for g in groups)
        if not d:
            continue
        shares = [risks[g][j] / n for g in groups[:k]]
        factor = d * (n - d) / (n - 1.0) if n > 1 else 0.0
        for a in range(k):
            excess[a] += events[groups[a]][j] - d * shares[a]
            for b in range(k):
                variance[a][b] += factor * shares[a] * ((1.0 if a == b else 0.0) - shares[b])
    try:
        return [dot(excess, solve(cholesky(variance), excess)), float(k)]
    except ArithmeticError:
        return [0.0, 0.0]
