"""``describe`` under noise in the sum: means, deviations and quartiles from noisy counts and sums.

One step. A record adds 1 to one group, and for every column a count, a value and a square, each within 1, and
1 to one cell. What is told are the noisy sums; numbers and the intervals that the noise leaves follow from
them. They are about the records of the study, as those of tables: sampling is not in them.

Of a ratio or a variance the interval is that of its first order. A quartile's needs no order: between a true
cell's edges the counts below, less the quartile's share of all, change their sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import (
    NOISE,
    WEIGHTS,
    Part,
    Shapes,
    State,
    Values,
    cells,
    finish,
    positions,
    tally,
)
from secfed.algorithms.statistics.counts import MISSING
from secfed.algorithms.statistics.cross_table import TWO_SIDED_95
from secfed.algorithms.statistics.describe import Describe
from secfed.algorithms.statistics.moments import centre_of, scale_of
from secfed.algorithms.statistics.results import Cell, Result, ResultTable

_QUARTILES: Final = {"q25": 0.25, "median": 0.5, "q75": 0.75}
_ABOVE_NOISE: Final = 10.0  # deviations of the noise: of fewer records nothing is told but how many
_Found = dict[str, tuple[float, float, float]]  # estimate, low and high


class NoisyDescribe(Describe):
    """Several columns; the last group is of all records."""

    noisy = True

    def parts(self, step: int) -> Sequence[Part]:
        """Sizes of groups; of a number moments and cells, of categories counts."""
        del step
        parts = [Part("groups", (self.own,))]
        for column in self.described:
            if column.kind == "number":
                parts.append(Part(f"moments/{column.name}", (3, self.own)))
            parts.append(Part(f"cells/{column.name}", (self.own, self._width(column))))
        return parts

    def _width(self, column: Column) -> int:
        return self.bins if column.kind == "number" else len(column.categories) + 1

    def unit_scales(self) -> Mapping[str, float]:
        """All parts are noised alike: a record adds 1 to each, or three numbers within 1 to moments."""
        parts = self.parts(0)
        return {
            part.name: math.sqrt(len(parts) * (3 if part.name.startswith("moments/") else 1))
            for part in parts
        }

    def shapes(self) -> Shapes:
        """The noisy sums, and the deviation of their noise over their scales."""
        return {**{part.name: part.shape for part in self.parts(0)}, NOISE: ()}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """Sums over the records of each group."""
        del step
        weights = given.get(WEIGHTS, np.ones(table.records))
        group = np.full(table.records, self.own - 1, np.int64)
        if self.by is not None:
            group = positions(table.values[self.by.name], len(self.groups))
        sizes = np.bincount(group, weights, minlength=self.own)
        found: dict[str, Values] = {"groups": sizes.astype(np.float64)}
        for column in self.described:
            values, width = table.values[column.name], self._width(column)
            number = column.kind == "number"
            where = cells(values, column, width) if number else positions(values, width - 1)
            known = where >= 0
            inside, kept = group[known], weights[known]
            found[f"cells/{column.name}"] = tally(inside, where[known], (self.own, width), kept)
            if number:
                z = np.clip((values[known] - centre_of(column)) / scale_of(column), -1.0, 1.0)
                moments = [np.bincount(inside, kept * z**k, minlength=self.own) for k in range(3)]
                found[f"moments/{column.name}"] = np.stack(moments)
        return found

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Keep the sums."""
        del step, same
        state.update({part.name: totals[part.name].clone() for part in self.parts(0)})
        finish(state)

    def released(self, state: State) -> State:
        """The noisy sums."""
        return {name: state[name] for name in self.shapes()}

    def result(self, released: Mapping[str, Values]) -> Result:
        """One table for all columns: every number with its interval."""
        scales, deviation = self.unit_scales(), float(released[NOISE])
        names = [*self.groups, MISSING] if self.by is not None else []
        rows = [(name, [g]) for g, name in enumerate(names)] + [("all", list(range(self.own)))]
        columns: dict[str, Any] = {}
        lines: list[tuple[Cell, ...]] = []
        for name, members in rows:
            noise = deviation * math.sqrt(len(members))
            sizes = released["groups"][members].sum()
            reach = TWO_SIDED_95 * noise * scales["groups"]
            found: dict[str, _Found] = {"": {"n": (sizes, sizes - reach, sizes + reach)}}
            for column in self.described:
                counts = released[f"cells/{column.name}"][members].sum(axis=0)
                at = noise * scales[f"cells/{column.name}"]
                if column.kind == "number":
                    moments = released[f"moments/{column.name}"][:, members].sum(axis=1)
                    found[column.name] = _moments(column, moments, noise * scales[f"moments/{column.name}"])
                    if moments[0] >= _ABOVE_NOISE * noise * scales[f"moments/{column.name}"]:
                        found[column.name] |= _quartiles(column, counts, at)
                else:
                    reach = TWO_SIDED_95 * at
                    found[column.name] = {
                        category: (n, n - reach, n + reach)
                        for category, n in zip((*column.categories, MISSING), counts.tolist(), strict=True)
                    }
            columns[name] = {column or "records": numbers for column, numbers in found.items()}
            lines += [
                (name, column, what, *map(float, numbers))
                for column, some in found.items()
                for what, numbers in some.items()
            ]
        title = "Description" + ("" if self.by is None else f" by {self.by.name}")
        table = ResultTable(title, ("group", "column", "", "estimate", "low", "high"), tuple(lines))
        note = "with the noise of [privacy], and the interval at 95 % that it leaves"
        return Result({"groups": columns, "noise_deviation": deviation}, (table,), notes=(note,))


def _moments(column: Column, moments: Values, t: float) -> _Found:
    """How many; and mean and deviation, where there are more than the noise of deviation ``t`` could make."""
    n, total, squares = (float(one) for one in moments)
    found = {"n": (n, n - TWO_SIDED_95 * t, n + TWO_SIDED_95 * t)}
    if n < max(_ABOVE_NOISE * t, 2.0):
        return found
    centre, scale = centre_of(column), scale_of(column)
    mean, square = total / n, squares / n
    reach = scale * TWO_SIDED_95 * t * math.sqrt(1 + mean * mean) / n
    found["mean"] = (centre + scale * mean, centre + scale * mean - reach, centre + scale * mean + reach)
    variance = square - mean * mean
    error = t / n * math.sqrt(1 + 4 * mean * mean + (2 * mean * mean - square) ** 2)
    # The interval is that of the variance, so it holds however far below the noise that is; a deviation told
    # only where it happens to be above would be too large.
    reach = TWO_SIDED_95 * error
    bounds = (variance, variance - reach, variance + reach)
    estimate, low, high = (scale * math.sqrt(max(one, 0.0) * n / (n - 1)) for one in bounds)
    found["sd"] = (estimate, low, high)
    return found


def _quartiles(column: Column, counts: Values, t: float) -> _Found:
    """Edges between which the quartiles lie, and a value between them."""
    bins = len(counts)
    below = np.concatenate([[0.0], np.cumsum(counts)])
    edges = column.low + (column.high - column.low) / bins * np.arange(bins + 1)
    found = {}
    for name, share in _QUARTILES.items():
        excess = below - share * below[-1]
        before = np.arange(bins + 1)
        reach = TWO_SIDED_95 * t * np.sqrt(before * (1 - share) ** 2 + (bins - before) * share**2)
        low = max(int(np.argmax(excess >= -reach)) - 1, 0)
        high = min(bins - int(np.argmax((excess <= reach)[::-1])) + 1, bins)
        middle = (edges[int(np.argmax(excess >= 0))] + edges[bins - int(np.argmax((excess <= 0)[::-1]))]) / 2
        found[name] = (float(np.clip(middle, edges[low], edges[high])), float(edges[low]), float(edges[high]))
    return found
