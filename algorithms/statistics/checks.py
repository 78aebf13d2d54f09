"""What is checked of an analysis before it is told: tables of categories, and leverages of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Column, Table, Values
from secfed.algorithms.statistics.formula import Design, DesignColumn
from secfed.algorithms.statistics.leverage import MOST_OF_A_PRODUCT, MOST_OF_A_SQUARE

Rows = NDArray[np.bool_]
Crossing = tuple[Column, ...]  # whose cells are counted; none for all records


@dataclass(frozen=True)
class Number:
    """One number of every record, of magnitude 1 at most, and where a category it is 0 or 1."""

    name: str
    values: Callable[[Table], Values]
    category: bool = False
    columns: tuple[str, ...] = ()  # that it is computed from; of numbers times categories, the numeric ones
    centre: float = 0.0  # the middle of its bounds

    def __mul__(self, other: Number) -> Number:
        """The product."""
        return Number(f"{self.name}:{other.name}", lambda table: self.values(table) * other.values(table))

    def centred(self) -> Number:
        """Less the middle of its bounds: the same combinations, and powers that lose fewer digits."""
        return replace(self, values=lambda table: self.values(table) - self.centre, centre=0.0)


@dataclass(frozen=True)
class Span:
    """Numbers whose sums of products are told, or follow from what is; of all records or of a group."""

    numbers: tuple[Number, ...]
    rows: Callable[[Table], Rows] | None = None
    shared: bool = False  # whether no combination may be one hospital's, too
    limit: float = MOST_OF_A_PRODUCT  # of any combination that few records may hold

    @property
    def columns(self) -> frozenset[str]:
        """What it is computed from, as far as its numbers say."""
        return frozenset(name for number in self.numbers for name in number.columns)

    def matrix(self, table: Table) -> Values:
        """[n, p] of the records that it is of."""
        table = table if self.rows is None else table.take(self.rows(table))
        return np.column_stack([number.values(table) for number in self.numbers])


@dataclass(frozen=True)
class Formula:
    """What the sums of one formula are of.

    Attributes:
        numbers: whose products are told.
        forms: of every numeric factor the columns that it reads, and how it is written.
        multiplied: whether a term multiplies numbers.
    """

    numbers: tuple[Number, ...]
    forms: frozenset[tuple[str, str]]
    multiplied: bool


@dataclass(frozen=True)
class Described:
    """A sum that a description tells, of all records or of a union of groups.

    Attributes:
        whole: the described number, 0 where it is missing.
        groups: of a union, the column and positions; none of all records.
        numbers: what is summed; of a union which records are of it, and the number there.
        rows: which records have the number and are of it.
        mean: which of its analysis' spans is of these alone.
    """

    whole: Number
    groups: tuple[str, tuple[int, ...]] | None
    numbers: tuple[Number, ...]
    rows: Callable[[Table], Rows]
    mean: int


@dataclass(frozen=True)
class Checks:
    """Of one analysis.

    Attributes:
        tables: of categories, or of events; none of their cells may be small.
        joint: numbers that are checked together with those of the analyses before.
        spans: numbers that are checked for themselves, in parallel to what is told of each.
        grouped: numbers whose sums by groups are told, and these: checked with the groups of the analyses
            before by which a number of the same columns is told, one span each after ``spans``.
        crossed: categories and then an event by which times are told; their cells, and those together with
            what is crossed in each analysis before.
        nested: the same of which no times are told, but how many events; that counts where an empty cell says
            that one grouping is part of another, so that events of their difference follow.
        formula: checked with those before that tell other functions of its columns (:func:`products_span`).
        described: sums that ``spans`` are of; checked with each other and with the
            joint numbers of all analyses. What withholds them is told last, one answer each.
    """

    tables: tuple[Crossing, ...] = ()
    joint: tuple[Number, ...] = ()
    spans: tuple[Span, ...] = ()
    grouped: tuple[tuple[Number, tuple[Number, ...]], ...] = ()
    crossed: tuple[Crossing, ...] = ()
    nested: tuple[Crossing, ...] = ()
    formula: Formula | None = None
    described: tuple[Described, ...] = ()


ONE = Number("1", lambda table: np.ones(table.records), category=True)


def number_of(column: Column) -> Number:
    """A column over its bound, as formulas have it."""
    return Number(
        column.name,
        lambda table: table.values[column.name] / column.bound,
        columns=(column.name,),
        centre=(column.low + column.high) / 2 / column.bound,
    )


def indicator(column: Column, position: int) -> Number:
    """Whether a record is of a category."""
    return Number(
        _category(column, position),
        lambda table: (table.values[column.name] == position) * 1.0,
        category=True,
        columns=(column.name,),
    )


def event_of(column: Column) -> Number:
    """Whether a record has an event: a number as others are, since its sums by groups are told."""
    name = _category(column, 1) if column.categories else column.name
    return Number(
        name, lambda table: (table.values[column.name] > 0.5).astype(np.float64), columns=(column.name,)
    )


def indicators_of(column: Column) -> tuple[Number, ...]:
    """Of all categories but the first, and of missing values."""
    missing = Number(
        f"{column.name}[]",
        lambda table: np.isnan(table.values[column.name]) * 1.0,
        category=True,
        columns=(column.name,),
    )
    return (*(indicator(column, at) for at in range(1, len(column.categories))), missing)


def numbers_of(design: Design) -> tuple[Number, ...]:
    """The columns of a formula over their bounds, without the intercept."""
    return tuple(_number(one) for one in design.columns if one.parts)


def _number(one: DesignColumn) -> Number:
    category = all(level is not None for _, level in one.parts)
    parts = [factor for factor, level in one.parts if category or level is None]
    names = tuple(column.name for factor in parts for column in factor.columns)
    centre = 0.0
    if len(one.parts) == 1 and not category:
        centre = sum(one.parts[0][0].interval) / 2 / (one.bound or 1.0)
    return Number(_spelt(one), partial(_column, one), category, names, centre)


def outcome_of(design: Design) -> tuple[Number, ...]:
    """The left side over its bound; of two categories, whether a record is of the second."""
    left = design.left
    if left is None:
        return ()
    if left.categories:
        return (event_of(left.columns[0]),)
    bound = max(map(abs, left.interval)) or 1.0
    names = tuple(column.name for column in left.columns)
    centre = sum(left.interval) / 2 / bound
    return (Number(left.text, lambda table: left.values(table) / bound, columns=names, centre=centre),)


def category_sets(design: Design) -> list[frozenset[Column]]:
    """The categories of each column of a formula: several of an interaction, none of a number."""
    return [
        frozenset(factor.columns[0] for factor, level in one.parts if level is not None)
        for one in design.columns
    ]


def crossings_of(design: Design, event: Column | None, *, alone: bool) -> tuple[Crossing, ...]:
    """Each two categorical columns of a formula, each two terms of them together, and events.

    A covariance has the sum of the product of every two terms: of an interaction and a category, the cells of
    all three.
    ``alone``: with categories only, events of what interacts are told, too.
    """
    sets = category_sets(design)
    factors = {column.name: column for one in sets for column in one}
    pairs = combinations([factors[name] for name in sorted(factors)], 2)  # the same order everywhere
    terms = combinations(dict.fromkeys(sets), 2)
    chosen = [*map(frozenset, pairs), *sets, frozenset[Column](), *(one | other for one, other in terms)]
    if event is not None:
        chosen.append(frozenset([event]))
        chosen += [one | {event} for one in sets if alone and len(one) > 1]
    return tuple(tuple(sorted(one, key=lambda column: column.name)) for one in dict.fromkeys(chosen))


def pairs_of(numbers: Sequence[Number]) -> tuple[Span, ...]:
    """Every sum of a product of two is told: it is checked with both, and with the number of records."""
    return tuple(
        Span((ONE, one, other, one * other))
        for one, other in combinations(numbers, 2)
        if not (one.category and other.category)
    )


def factors_of(design: Design) -> tuple[Number, ...]:
    """The columns of a formula, each divided into its numbers and its categories."""
    parts = [
        replace(one, parts=tuple(part for part in one.parts if (part[1] is None) is numeric))
        for one in design.columns
        for numeric in (True, False)
    ]
    return tuple({number.name: number for number in (_number(one) for one in parts if one.parts)}.values())


def grouped_of(numbers: Sequence[Number]) -> tuple[tuple[Number, tuple[Number, ...]], ...]:
    """Of every number, the sum by each category is told."""
    categories = tuple(one for one in numbers if one.category)
    return tuple((one, categories) for one in numbers if categories and not one.category)


def grouped_span(number: Number, groups: Sequence[Number]) -> Span:
    """How many records are of all these groups, and the sums of a number over them."""
    products = (number * group for group in groups)
    return Span((ONE, *groups, *((number, *products) if groups else ())), partial(_known, number))


def _known(number: Number, table: Table) -> Rows:
    known: Rows = ~np.isnan(number.values(table))
    return known


def squares_of(numbers: Sequence[Number], rows: Callable[[Table], Rows] | None = None) -> tuple[Span, ...]:
    """A mean and a deviation: two records can be the only ones with a value that is neither 0 nor 1."""
    centred = (one.centred() for one in numbers if not one.category)
    return tuple(Span((ONE, one, one * one), rows, limit=MOST_OF_A_SQUARE) for one in centred)


def formula_of(design: Design, numbers: Sequence[Number]) -> Formula:
    """Of a formula whose sums are of products of these numbers."""
    parts = [[factor for factor, level in one.parts if level is None] for one in design.columns]
    factors = [factor for own in parts for factor in own]
    if design.left and not design.left.categories:
        factors.append(design.left)
    forms = frozenset((column.name, factor.text) for factor in factors for column in factor.columns)
    return Formula(tuple(numbers), forms, any(len(own) > 1 for own in parts))


def products_span(formulas: Sequence[Formula]) -> tuple[Span, ...]:
    """One span of all that the last of these formulas tells together with those before it.

    Enough functions of one number, and their products, have a combination that is 0 for all records but
    one, though no two of them do. Where each column has one function only, no product is of two of them.
    """
    texts: dict[str, set[str]] = {}
    for column, text in (form for one in formulas for form in one.forms):
        texts.setdefault(column, set()).add(text)
    several = {column for column, own in texts.items() if len(own) > 1}
    chosen = [one for one in formulas if one.multiplied or any(column in several for column, _ in one.forms)]
    if formulas[-1] not in chosen:
        return ()
    numbers, products = dict[str, Number](), dict[tuple[str, ...], Number]()
    for formula in chosen:
        own = [one.centred() for one in formula.numbers]
        numbers |= {one.name: one for one in own}
        for one, other in combinations_with_replacement(own, 2):
            if not (one.category and other.category):
                products[tuple(sorted((one.name, other.name)))] = one * other
    return (Span((ONE, *numbers.values(), *products.values()), shared=True),)


def _category(column: Column, position: int) -> str:
    """Quoted: no name of a category is that of another number."""
    return f"{column.name}[{column.categories[position]!r}]"


def _spelt(column: DesignColumn) -> str:
    parts = (
        _category(factor.columns[0], level) if level is not None else factor.text
        for factor, level in column.parts
    )
    return ":".join(sorted(parts))


def _column(column: DesignColumn, table: Table) -> Values:
    found = np.ones(table.records)
    for factor, level in column.parts:
        values = factor.values(table)
        found *= values if level is None else values == level
    return found / (column.bound or 1.0)
