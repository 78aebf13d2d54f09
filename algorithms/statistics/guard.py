"""What all analyses of a study are checked for together, before any of them is told.

    a step      tables of categories, with the hospitals of every cell; products of columns
    the next    leverages, given the products: those of records that few share, summed (see leverage)

Both are of the same hospitals, and so are the results that are told: where the hospitals change while an
analysis goes on, the checks begin again. Sites sum in every analysis over the records that have all columns
that any of them needs. Under noise in the sum nothing of this is needed: what is read from sums with enough
noise for a record says no more of it, however the sums are combined.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import (
    DONE,
    STATUS,
    Analysis,
    Part,
    Rules,
    Shapes,
    State,
    Values,
    tensor,
)
from secfed.algorithms.statistics.checks import (
    ONE,
    Checks,
    Crossing,
    Formula,
    Number,
    Span,
    grouped_span,
    products_span,
)
from secfed.algorithms.statistics.cross_table import Positions, table_parts, table_sums
from secfed.algorithms.statistics.described_together import DescribedSum, DescribedSums
from secfed.algorithms.statistics.disclosure import Reason, is_small
from secfed.algorithms.statistics.leverage import (
    MOST_HELD,
    alone,
    components,
    exceeds,
    held,
    packed,
    packed_size,
)
from secfed.algorithms.statistics.results import Result
from secfed.errors import ConfigError

GUARD: Final = "_checks"  # no analysis can have this name
PRODUCTS: Final = "products"
_PHASE: Final = "phase"  # 0 before the products are known, 1 after
MOST_COLUMNS: Final = 500  # checked together: a second of every hospital, and 4 kB of memory for a record
MOST_PRODUCTS: Final = 1_000_000  # of all checks: 8 MB, twice, in every sum
_SMALL, _LONELY = 1.0, 2.0


@dataclass(frozen=True)
class _Cells:
    """A table of these columns; ``events`` among them count only where one grouping is part of another."""

    columns: Crossing
    events: frozenset[Column] = frozenset()

    @property
    def name(self) -> str:
        return ":".join(column.name + "?" * (column in self.events) for column in self.columns)

    @property
    def sizes(self) -> list[int]:
        return [len(column.categories) or 2 for column in self.columns]

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    def positions(self, table: Table) -> Positions:
        """The cell of every record; of a number, whether it is above one half: an event."""
        where = np.zeros(table.records, np.int64)
        for column, size in zip(self.columns, self.sizes, strict=True):
            values = table.values[column.name]
            own = values if column.categories else values > 0.5
            where = where * size + own.astype(np.int64)
        return where

    def counted(self, records: torch.Tensor, hospitals: torch.Tensor) -> tuple[list[float], list[float]]:
        """Records and hospitals of the cells that none may be small of."""
        axes = tuple(at for at, column in enumerate(self.columns) if column in self.events)
        if axes:
            groups = records.reshape(self.sizes).sum(dim=axes)
            if bool((groups.round() > 0).all()):
                records, hospitals = groups, hospitals.reshape(self.sizes).amax(dim=axes)
        return records.ravel().tolist(), hospitals.ravel().tolist()


class Guard(Analysis):
    """The checks of these analyses."""

    kind = "checks"

    def __init__(self, analyses: Sequence[Analysis], rules: Rules) -> None:
        super().__init__(GUARD, analyses, rules)

    def _read(self, options: Sequence[Analysis]) -> None:
        checks = {one.name: one.checks() for one in options}
        tables, joint = dict[str, _Cells](), {ONE.name: ONE}
        self._tables_of, self._joint_of = dict[str, list[str]](), dict[str, int]()
        self._spans_of, spans = dict[str, range](), [Span((ONE,))]
        self.sizes = list[int]()  # of the joint numbers up to each analysis that has some
        groups, crossed = dict[str, dict[str, Number]](), list[tuple[Crossing, bool]]()
        formulas, described = list[Formula](), DescribedSums(spans)
        self._described, self._sums_of = described, dict[str, list[DescribedSum]]()
        for name, one in checks.items():
            named = {cells.name: cells for cells in (*map(_Cells, one.tables), *_crossed(one, crossed))}
            tables |= named
            self._tables_of[name] = list(named)
            start, before = len(spans), len(joint)
            if one.joint:
                joint |= {number.name: number for number in one.joint}
                self._joint_of[name] = len(self.sizes)
                self.sizes.append(len(joint))
            own = [*one.spans, *_grouped(one, groups)]
            if one.formula:
                formulas.append(one.formula)
                own += products_span(formulas)
            spans += own
            if len(joint) > before:
                described.join(name, joint)
            self._spans_of[name] = range(start, len(spans))
            self._sums_of[name] = described.describe(name, one.described, start, joint)
            self._check_size(name, len(joint), spans)
        self.tables, self.spans = tables, [Span(tuple(joint.values())), *spans[1:]]
        self._shared = [at for at, span in enumerate(self.spans) if span.shared]
        self._starts = [0, *accumulate(map(packed_size, self._answers))]
        self.needed = bool(tables or spans[1:])
        last = max(one.first + one.steps - 1 for one in options)
        self.steps = max(2, last) if self.needed else 0

    def _check_size(self, name: str, joint: int, spans: Sequence[Span]) -> None:
        """Refuse what would keep every hospital busy, before anything is sent."""
        widest = max([joint, *(len(span.numbers) for span in spans)])
        whole = sum(map(packed_size, [*self.sizes, *(len(span.numbers) for span in spans[1:])]))
        if widest > MOST_COLUMNS or whole > MOST_PRODUCTS:
            raise ConfigError(
                f"algorithm.analyses.{name}: with the analyses before it {whole} products of up to {widest} "
                f"numbers are to be checked; {MOST_PRODUCTS} of {MOST_COLUMNS} are possible",
                remedy="take fewer terms, fewer functions of one column, or another study",
            )

    def parts(self, step: int) -> Sequence[Part]:
        """The same in every step, since the checks may begin again; zeros where there is nothing to do."""
        del step
        parts = [part for name, cells in self.tables.items() for part in table_parts(name, (1, cells.size))]
        sizes = sum(packed_size(len(span.numbers)) for span in self.spans)
        parts += [Part(PRODUCTS, (sizes,)), Part("held", (sum(map(packed_size, self._answers)),))]
        return [*parts, Part("alone", (self._alone,), whole=True)] if self._alone else parts

    @property
    def _alone(self) -> int:
        return len(self.sizes) + len(self._shared)

    @property
    def _answers(self) -> list[int]:
        """Columns of the joint numbers up to each analysis, then of each span."""
        return [*self.sizes, *(len(span.numbers) for span in self.spans[1:])]

    def shapes(self) -> Shapes:
        """Products, and what was found of tables, leverages and hospitals."""
        products = sum(packed_size(len(span.numbers)) for span in self.spans)
        found = {
            "tables": (len(self.tables),),
            "held": (sum(map(packed_size, self._answers)),),
            "alone": (self._alone,),
        }
        return {PRODUCTS: (products,), _PHASE: (), **found}

    def given(self, step: int) -> Sequence[str]:
        """The products."""
        return (PRODUCTS, _PHASE) if step else ()

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """Tables and products, or leverages."""
        found: dict[str, Values] = {part.name: np.zeros(part.shape) for part in self.parts(step)}
        matrices = (span.matrix(table) for span in self.spans)  # one at a time: each has all records
        if not float(given.get(_PHASE, 0.0)):
            for name, cells in self.tables.items():
                where = cells.positions(table)
                found |= table_sums(name, np.zeros_like(where), where, (1, cells.size))
            return found | {PRODUCTS: np.concatenate([packed(one) for one in matrices])}
        start, answers, shares = 0, list[Values](), list[Values]()
        for at, matrix in enumerate(matrices):
            size = packed_size(matrix.shape[1])
            rows = components(matrix, given[PRODUCTS][start : start + size], self.grain(1.0))
            start += size
            answers.append(held(rows, self.sizes if at == 0 else [matrix.shape[1]], self.min_cell))
            if at == 0 and self.sizes:
                shares.append(alone(rows, self.sizes))
            elif self.spans[at].shared:
                shares.append(alone(rows, [matrix.shape[1]]))
        if self._alone:
            found["alone"] = np.concatenate(shares)
        return found | {"held": np.concatenate(answers)}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Keep products and tables, then leverages of the same hospitals."""
        del step
        if float(state[_PHASE]) and same:
            state["held"], state["alone"] = totals["held"], totals.get("alone", state["alone"])
            state[DONE], state[STATUS] = tensor(1.0), tensor(float(Reason.RELEASED))
        elif float(state[_PHASE]):
            self.restart(state)
        else:
            state[PRODUCTS], state[_PHASE] = totals[PRODUCTS], tensor(1.0)
            state["tables"] = tensor([self._of_table(cells, totals) for cells in self.tables.values()])

    def restart(self, state: State) -> None:
        """Begin again with the next step."""
        state[DONE], state[_PHASE] = tensor(0.0), tensor(0.0)
        state[STATUS] = tensor(float(Reason.UNFINISHED))

    def _of_table(self, cells: _Cells, totals: Mapping[str, torch.Tensor]) -> float:
        records = cells.counted(totals[f"records/{cells.name}"], totals[f"hospitals/{cells.name}"])
        pairs = [(n, round(where)) for n, where in zip(*records, strict=True)]
        if any(is_small(n, self.min_cell) for n, _ in pairs):
            return _SMALL
        few = any(round(n) > 0 and where < self.rules.min_hospitals for n, where in pairs)
        return _LONELY if few else 0.0

    def reason(self, name: str, state: State) -> Reason:
        """Why an analysis is not told as a whole, as far as tables and joint numbers say."""
        found = dict(zip(self.tables, state["tables"].tolist(), strict=True))
        tables = {found[table] for table in self._tables_of[name]}
        if _SMALL in tables:
            return Reason.SMALL_CATEGORIES
        at = self._joint_of.get(name)
        if at is not None and self._exceeds(at, state, MOST_HELD):
            return Reason.DOMINATED
        own = self._spans_of[name]
        lonely = any(self._lonely(k, state) for k in self._shared if k in own and not self._described.has(k))
        lonely = lonely or (at is not None and self._of_one_hospital(at, state))
        return Reason.FEW_HOSPITALS if lonely or _LONELY in tables else Reason.RELEASED

    def blamed(self, name: str, reason: Reason, state: State) -> frozenset[str]:
        """The columns that an analysis is withheld for: of one table, or of the fewest columns with a reason.

        A study of these columns alone would be withheld for the same reason, so their names say no more than
        this does. What is checked of all columns together has no names: none of them alone is the reason.
        """
        own, found = self._spans_of[name], dict(zip(self.tables, state["tables"].tolist(), strict=True))
        kind = _SMALL if reason is Reason.SMALL_CATEGORIES else _LONELY
        named = [
            frozenset(column.name for column in self.tables[table].columns)
            for table in self._tables_of[name]
            if reason is not Reason.DOMINATED and found[table] == kind
        ]
        if reason is Reason.DOMINATED:
            few = self.dominated_spans(name, state)
            named += [self.spans[at].columns for at, out in zip(own, few, strict=False) if out]
        return min(filter(None, named), key=len, default=frozenset())

    def dominated_spans(self, name: str, state: State) -> list[bool]:
        """Which spans of an analysis few records hold."""
        known = dict[int, bool]()

        def few(at: int) -> bool:
            if at not in known:
                known[at] = self._exceeds(len(self.sizes) - 1 + at, state, self.spans[at].limit)
            return known[at]

        def lonely(at: int) -> bool:
            return self._lonely(at, state)

        own, described = self._spans_of[name], self._described
        found = [described.decides(at, few, lonely) if described.has(at) else few(at) for at in own]
        return [*found, *(described.beside(one, few, lonely) for one in self._sums_of[name])]

    def _lonely(self, span: int, state: State) -> bool:
        """Of a shared span, whether a combination is nearly of one hospital."""
        return self._of_one_hospital(len(self.sizes) + bisect_left(self._shared, span), state)

    def _of_one_hospital(self, at: int, state: State) -> bool:
        return self.rules.min_hospitals > 1 and float(state["alone"][at]) > 0

    def _exceeds(self, at: int, state: State, limit: float) -> bool:
        start = self._starts[at]
        products = state["held"][start : start + packed_size(self._answers[at])]
        return exceeds(products.tolist(), self._answers[at], limit)

    def released(self, state: State) -> State:
        """Nothing."""
        del state
        return {}

    def result(self, released: Mapping[str, Values]) -> Result:
        """Nothing."""
        del released
        return Result({})


def _crossed(one: Checks, before: list[tuple[Crossing, bool]]) -> list[_Cells]:
    """What is crossed together with what is so far, which is kept in ``before``."""
    own = [*((crossing, False) for crossing in one.crossed), *((crossing, True) for crossing in one.nested)]
    earlier = list(before)
    before += own
    return [
        _Cells(
            tuple(sorted({*mine, *other}, key=lambda column: column.name)),
            frozenset({mine[-1], other[-1]}) if nested or also else frozenset(),
        )
        for mine, nested in own
        for other, also in ((mine, nested), *earlier)
    ]


def _grouped(one: Checks, before: dict[str, dict[str, Number]]) -> list[Span]:
    """Of every number a span with the groups known of its columns, which are kept in ``before``.

    With its own groups alone there is nothing that its analysis does not check for itself.
    """
    found = list[Span]()
    for number, groups in one.grouped:
        own = {group.name: group for group in groups}
        known = dict(own)
        for column in number.columns:
            known |= before.get(column, {})
            before[column] = before.get(column, {}) | own
        found.append(grouped_span(number, () if known.keys() == own.keys() else tuple(known.values())))
    return found
