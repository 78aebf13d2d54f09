"""``describe``: the first table of a paper, by group: n, missing values, means, quantiles, shares.

One step. Quantiles come from records in ``bins`` cells between a column's declared bounds. A cell of
fewer than ``min_cell`` records would be the value of one of them, so it is joined with the cells beside it:
with one, with three, with seven, until there are enough, in divisions that are the same for all records.
What is told is one of five places in it, as if its records were spread over it evenly; finer ones would give
the number of records below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import (
    Analysis,
    Part,
    Shapes,
    State,
    Values,
    cells,
    finish,
    hide,
    positions,
    tally,
    tensor,
)
from secfed.algorithms.statistics.checks import Checks, indicators_of, number_of
from secfed.algorithms.statistics.counts import MISSING
from secfed.algorithms.statistics.cross_table import (
    check_size,
    table_parts,
    table_sums,
    told_table,
    with_margins,
)
from secfed.algorithms.statistics.described_groups import (
    described_sums,
    group_spans,
    hidden_groups,
    unions_of,
)
from secfed.algorithms.statistics.disclosure import (
    WITHHELD,
    Reason,
    is_small,
    protected,
    suppressed_list,
)
from secfed.algorithms.statistics.moments import mean_and_variance, moment_sums, without_count
from secfed.algorithms.statistics.options import DescribeOptions
from secfed.algorithms.statistics.results import Cell, Result, ResultTable, count

_QUANTILES: Final = (0.25, 0.5, 0.75)
_NUMBERS: Final = ("n", "missing", "mean", "sd", "q25", "median", "q75")
_NONE: Final = math.nan
_PLACES: Final = 4  # that a cell is divided into: a quantile is told to one of their edges


class Describe(Analysis):
    """Several columns; the last group is of all records."""

    kind = "describe"

    def _read(self, options: DescribeOptions) -> None:
        self.described = [self.column("columns", name) for name in options.columns]
        self.by: Column | None = None if options.by is None else self.column("by", options.by, "category")
        self.groups = () if self.by is None else self.by.categories
        self.own = len(self.groups) + 1  # the last of them: records whose group is missing
        self.bins = options.bins
        for column in self.described:
            check_size(self.name, (self.own, len(column.categories) + 1), self.rules)

    def parts(self, step: int) -> Sequence[Part]:
        """Sizes of groups; of a number moments and cells, of categories counts."""
        del step
        parts = [Part("groups", (self.own,)), Part("hospitals", (self.own + 1,), whole=True)]
        for column in self.described:
            if column.kind == "number":
                parts.append(Part(f"moments/{column.name}", (3, self.own)))
                parts.append(Part(f"cells/{column.name}", (self.own, self.bins)))
                parts.append(Part(f"known/{column.name}", (self.own + 1, 2), whole=True))
            else:
                parts += table_parts(column.name, (self.own, len(column.categories) + 1))
        return parts

    def shapes(self) -> Shapes:
        """As it is told: one row for each group, and one for all records."""
        rows = self.own + 1
        wide = {
            c.name: len(_NUMBERS) if c.kind == "number" else len(c.categories) + 1 for c in self.described
        }
        return {"n": (rows,), **{f"told/{name}": (rows, width) for name, width in wide.items()}}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """Sums over the records of each group."""
        del step, given
        group = np.full(table.records, self.own - 1, np.int64)
        if self.by is not None:
            group = positions(table.values[self.by.name], len(self.groups))
        sizes = np.bincount(group, minlength=self.own).astype(np.float64)
        found: dict[str, Values] = {"groups": sizes, "hospitals": np.minimum([*sizes, sizes.sum()], 1.0)}
        for column in self.described:
            found |= self._sums(column, table.values[column.name], group)
        return found

    def _sums(self, column: Column, values: Values, group: NDArray[np.int64]) -> Mapping[str, Values]:
        if column.kind == "category":
            shape = (self.own, len(column.categories) + 1)
            return table_sums(column.name, group, positions(values, shape[1] - 1), shape)
        where = cells(values, column, self.bins)
        known = where >= 0
        there = tally(group, (~known).astype(np.int64), (self.own, 2))
        return {
            f"known/{column.name}": np.minimum([*there, there.sum(axis=0)], 1.0),
            f"moments/{column.name}": moment_sums(values, column, group, self.own),
            f"cells/{column.name}": tally(group[known], where[known], (self.own, self.bins)),
        }

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Withhold what is of few records, and what that would follow from."""
        del step, same
        sizes = [float(round(size)) for size in totals["groups"].tolist()]
        if is_small(sum(sizes), self.min_cell):
            return hide(state, Reason.FEW_RECORDS)
        *places, everywhere = totals["hospitals"].tolist()
        if sum(sizes) and round(everywhere) < self.rules.min_hospitals:
            return hide(state, Reason.FEW_HOSPITALS)
        small = [self._few(size, place) for size, place in zip(sizes, places, strict=True)]
        hidden = suppressed_list(sizes, small, self.min_cell)
        if len(sizes) > 1 and all(hidden):
            return hide(state, Reason.FEW_RECORDS)
        told = [WITHHELD if out else size for size, out in zip(sizes, hidden, strict=True)]
        state["n"] = tensor([*told, sum(sizes)])
        for column in self.described:
            if column.kind == "category":
                order = ("" if self.by is None else self.by.name, column.name)
                found = told_table(column.name, totals, self.rules, order)
                rows = self._nothing(len(column.categories) + 1)
                if found is not None:
                    rows = [row[:-1] for row in with_margins(found)]
            else:
                moments = totals[f"moments/{column.name}"].tolist()
                places_of = totals[f"known/{column.name}"].tolist()
                spread = totals[f"cells/{column.name}"].tolist()
                rows = self._numbers(column, moments, spread, places_of, sizes, hidden)
            state[f"told/{column.name}"] = tensor(rows)
        finish(state)
        return None

    def _few(self, records: float, hospitals: float) -> bool:
        """Whether so many records of so many hospitals must not be told."""
        lonely = round(records) > 0 and round(hospitals) < self.rules.min_hospitals
        return lonely or is_small(records, self.min_cell)

    def checks(self) -> Checks:
        """Mean and deviation of every number, by group and of all records."""
        groups = () if self.by is None else indicators_of(self.by)
        return Checks(
            spans=tuple(span for column in self._of_numbers for span in group_spans(column, self.by)),
            described=tuple(
                one
                for at, column in enumerate(self._of_numbers)
                for one in described_sums(column, self.by, 2 * at * len(unions_of(self.by)))
            ),
            grouped=tuple((number_of(column), groups) for column in self._of_numbers),
        )

    @property
    def _of_numbers(self) -> list[Column]:
        return [column for column in self.described if column.kind == "number"]

    def dominated(self, released: State, spans: Sequence[bool]) -> State:
        """Of a number that few records decide in a group, no mean and deviation: others would complete it."""
        told, each = dict(released), len(unions_of(self.by))
        for at, column in enumerate(self._of_numbers):
            rows = told[f"told/{column.name}"].clone()
            withheld = [n != 0 and math.isnan(mean) for n, _, mean, *_ in rows[:-1].tolist()]
            means, squares = (spans[(2 * at + k) * each :][:each] for k in range(2))
            beside = spans[(2 * each + 1) * len(self._of_numbers) + at * each :][:each]
            means = [few or own for few, own in zip(means, beside, strict=True)]
            if spans[2 * len(self._of_numbers) * each + at]:  # with the groups of analyses before
                means = [True] * each
            for first, few in ((2, means), (3, [a or b for a, b in zip(means, squares, strict=True)])):
                hidden = hidden_groups(self.by, withheld, few)
                rows[[True] * len(rows) if hidden is None else [*hidden, False], first:4] = math.nan
            told[f"told/{column.name}"] = rows
        return told

    def _nothing(self, width: int) -> list[list[float]]:
        return [[WITHHELD] * width for _ in range(self.own + 1)]

    def _numbers(
        self,
        column: Column,
        moments: list[list[float]],
        by_cell: list[list[float]],
        places: list[list[float]],
        sizes: Sequence[float],
        hidden: Sequence[bool],
    ) -> list[list[float]]:
        known = [float(round(n)) for n in moments[0]]
        there = [[n, size - n] for n, size in zip(known, sizes, strict=True)]
        if sum(known) and round(places[-1][0]) < self.rules.min_hospitals:
            return [[*row, *[_NONE] * (len(_NUMBERS) - 2)] for row in self._nothing(2)]
        small = [
            [self._few(cell, place) for cell, place in zip(row, here, strict=True)]
            for row, here in zip(there, places[:-1], strict=True)
        ]
        found = protected(there, small, self.min_cell)
        counts = self._nothing(3) if found is None else with_margins(found)
        # The mean of few records is withheld, and others with it, or it would follow from that of all.
        few = any(row[0] for row, out in zip(small, hidden, strict=True) if not out)
        rows = []
        for g in range(self.own + 1):
            whole = g == self.own
            n = sum(known) if whole else known[g]
            told = counts[g][:2]
            covered = not whole and (hidden[g] or (few and told[0] == WITHHELD))
            if n < max(self.min_cell, 2) or covered:
                rows.append([*told, *[_NONE] * (len(_NUMBERS) - 2)])
                continue
            total = sum(moments[1]) if whole else moments[1][g]
            squares = sum(moments[2]) if whole else moments[2][g]
            mean, variance = mean_and_variance(n, total, squares, column)
            spread = [sum(part) for part in zip(*by_cell, strict=True)] if whole else by_cell[g]
            deviation = math.sqrt(variance)
            if WITHHELD in told:
                mean, deviation = without_count(mean, deviation, n)
            rows.append([*told, mean, deviation, *self._quantiles(column, spread, n)])
        return rows

    def _quantiles(self, column: Column, by_cell: Sequence[float], n: float) -> list[float]:
        width, counts, found = (column.high - column.low) / self.bins, [round(cell) for cell in by_cell], []
        for share in _QUANTILES:
            wanted = share * n
            if min(wanted, n - wanted) < self.min_cell:
                found.append(_NONE)
                continue
            at = next(i for i, below in enumerate(accumulate(counts)) if below >= wanted)
            size = 1
            while sum(counts[at // size * size :][:size]) < self.min_cell:
                size *= 2
            start = at // size * size
            records, cells = sum(counts[start:][:size]), min(size, self.bins - start)
            place = round(_PLACES * (wanted - sum(counts[:start])) / records) / _PLACES
            found.append(column.low + width * (start + cells * place))
        return found

    def released(self, state: State) -> State:
        """Sizes of groups, and a table for each column."""
        return {"n": state["n"], **{name: value for name, value in state.items() if name.startswith("told/")}}

    def result(self, released: Mapping[str, Values]) -> Result:
        """One table for all columns."""
        rows_of = [*range(len(self.groups)), self.own]
        if self.by is not None and released["n"][self.own - 1] != 0:
            rows_of.insert(-1, self.own - 1)
        names = [*self.groups, MISSING, "all"]
        header = [names[g] if self.by is not None else "all" for g in rows_of]
        sizes = [count(float(released["n"][g])) for g in rows_of]
        lines: list[tuple[Cell, ...]] = [("n", *[_shown(size) for size in sizes])]
        values: dict[str, object] = {"groups": header, "n": sizes, "columns": {}}
        columns: dict[str, object] = {}
        for column in self.described:
            told = released[f"told/{column.name}"][rows_of]
            if column.kind == "category":
                own, text = _of_categories(column, told)
            else:
                own, text = _of_numbers(column, told, (column.high - column.low) / self.bins)
            columns[column.name] = own
            lines += text
        title = "Description" + ("" if self.by is None else f" by {self.by.name}")
        return Result({**values, "columns": columns}, (ResultTable(title, ("", *header), tuple(lines)),))


def _of_categories(column: Column, told: Values) -> tuple[dict[str, object], list[tuple[Cell, ...]]]:
    names = [*column.categories, MISSING]
    counts = {name: [count(float(cell)) for cell in told[:, k]] for k, name in enumerate(names)}
    lines: list[tuple[Cell, ...]] = []
    for k, name in enumerate(names):
        if name == MISSING and not told[:, k].any():
            continue
        cells: list[Cell] = []
        for row in told:
            known = row[:-1].sum() if (row[:-1] >= 0).all() else math.nan
            text = _shown(count(float(row[k])))
            if row[k] >= 0 and known > 0 and name != MISSING:
                text += f" ({100 * row[k] / known:.1f} %)"
            cells.append(text)
        lines.append((f"{column.name}: {name}", *cells))
    return {"counts": counts}, lines


def _of_numbers(
    column: Column, told: Values, width: float
) -> tuple[dict[str, object], list[tuple[Cell, ...]]]:
    own: dict[str, object] = {name: told[:, k] for k, name in enumerate(_NUMBERS[2:], start=2)}
    own["n"] = [count(float(cell)) for cell in told[:, 0]]
    own["missing"] = [count(float(cell)) for cell in told[:, 1]]
    own["quantile_width"] = width
    unit = f", {column.unit}" if column.unit else ""
    means: list[Cell] = [_pair(row[2], row[3]) for row in told]
    middles: list[Cell] = [
        "withheld" if math.isnan(row[5]) else f"{_short(row[5])} [{_short(row[4])}, {_short(row[6])}]"
        for row in told
    ]
    lines: list[tuple[Cell, ...]] = [
        (f"{column.name}{unit}: mean (sd)", *means),
        (f"{column.name}{unit}: median [quartiles]", *middles),
    ]
    if told[:, 1].any():
        lines.append((f"{column.name}: missing", *(_shown(count(float(row[1]))) for row in told)))
    return own, lines


def _pair(mean: float, deviation: float) -> str:
    return "withheld" if math.isnan(mean) else f"{_short(mean)} ({_short(deviation)})"


def _shown(number: int | None) -> str:
    return "withheld" if number is None else str(number)


def _short(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"
