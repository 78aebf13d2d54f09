"""Which records of a described number are checked together: all, each group, and each two groups.

Where a group is withheld, so is another, and the sum of both follows from that of all records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Final

import numpy as np

from secfed.algorithms.data.tabular.columns import Column, Table, Values
from secfed.algorithms.statistics.analysis import positions
from secfed.algorithms.statistics.checks import (
    ONE,
    Described,
    Number,
    Rows,
    Span,
    number_of,
    squares_of,
)

_MOST_PAIRED: Final = 20  # groups; of more, none may be withheld where a mean is told


def unions_of(by: Column | None) -> list[tuple[int, ...]]:
    """Groups by position, missing values last; () is all records."""
    groups = range(len(by.categories) + 1 if by is not None else 0)
    pairs = combinations(groups, 2) if len(groups) <= _MOST_PAIRED else ()
    return [(), *((group,) for group in groups), *pairs]


def group_spans(column: Column, by: Column | None) -> list[Span]:
    """The sums of the mean, of each union; and then those of the deviation."""
    number, rows = number_of(column), [partial(_rows, column, by, union) for union in unions_of(by)]
    means = [Span((ONE, number), own) for own in rows]
    return [*means, *(span for own in rows for span in squares_of((number,), own))]


def described_sums(column: Column, by: Column | None, first: int) -> list[Described]:
    """The sum of each union, whose :func:`group_spans` are the spans from ``first`` on."""
    number = number_of(column)
    whole = replace(number, values=lambda table: np.nan_to_num(number.values(table)))
    found = list[Described]()
    for at, union in enumerate(unions_of(by), start=first):
        rows = partial(_rows, column, by, union)
        if by is None or not union:
            found.append(Described(whole, None, (whole,), rows, at))
            continue
        group = Number(f"{by.name}{union}", partial(_in_union, by, union))
        found.append(Described(whole, (by.name, union), (group, whole * group), rows, at))
    return found


def _in_union(by: Column, union: tuple[int, ...], table: Table) -> Values:
    found: Values = np.isin(positions(table.values[by.name], len(by.categories)), union).astype(np.float64)
    return found


def _rows(column: Column, by: Column | None, union: tuple[int, ...], table: Table) -> Rows:
    known = table.complete((column.name,))
    if not union or by is None:
        return known
    found: Rows = known & np.isin(positions(table.values[by.name], len(by.categories)), union)
    return found


def hidden_groups(by: Column | None, withheld: Sequence[bool], spans: Sequence[bool]) -> list[bool] | None:
    """Of which groups no mean is told, so that few records decide none that is, nor their sum; None: of all.

    Args:
        by: what groups are of.
        withheld: of each group, whether its mean is withheld as it is.
        spans: of each union, whether few records decide its sums.
    """
    few = dict(zip(unions_of(by), spans, strict=True))
    if few[()]:
        return None
    hidden = {g for g, out in enumerate(withheld) if out or few.get((g,), False)}
    if not hidden:
        return list(withheld)
    # The sum of what is hidden is known: one group that is large in it, hidden already or from now on.
    for large in sorted(range(len(withheld)), key=lambda g: (g not in hidden, g)):
        others = hidden - {large}
        if (
            not few.get((large,), True)
            and others
            and all(not few.get((min(large, g), max(large, g)), True) for g in others)
        ):
            hidden.add(large)
            return [g in hidden for g in range(len(withheld))]
    return None
