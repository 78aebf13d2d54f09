"""Model formulas (``outcome ~ age + sex + C(stage)``) as design matrices with declared bounds.

formulaic says what belongs to what. The matrix is made here, since formulas come from elsewhere: nothing in
one is executed, categories are those that are declared and not those of one site, and every column has a
bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Column, Table, Values, find_column
from secfed.algorithms.statistics.coding import Spanned
from secfed.algorithms.statistics.expressions import LARGEST, Expression, refused
from secfed.errors import missing_package

_MOST_CHARACTERS: Final = 1000
_MOST_COLUMNS: Final = 500
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9_ .,+\-*/:~()\[\]{}]*")
_CATEGORY: Final = re.compile(r"C\(\s*(\w+)\s*\)")

Term = tuple[str, ...]  # its factors, in order; none for the intercept


@dataclass(frozen=True)
class Factor:
    """A categorical column, or a numeric expression."""

    text: str  # as the formula writes it
    columns: tuple[Column, ...]
    expression: Expression | None  # None for a category

    @property
    def categories(self) -> tuple[str, ...]:
        """Of a category, in the declared order."""
        return () if self.expression is not None else self.columns[0].categories

    @property
    def interval(self) -> tuple[float, float]:
        """The smallest and the largest value; of a category, positions."""
        return self.expression.interval if self.expression else (self.columns[0].low, self.columns[0].high)

    def values(self, table: Table) -> Values:
        """For every record, the number or the position of the category; NaN where it is missing."""
        if self.expression is not None:
            return self.expression.values(table)
        return np.clip(table.values[self.columns[0].name], *self.interval)


@dataclass(frozen=True)
class DesignColumn:
    """One column of a design matrix: a product of numbers and of indicators of categories."""

    name: str
    term: int  # position of its term
    parts: tuple[tuple[Factor, int | None], ...]  # None for a number; else the position of the category

    @property
    def bound(self) -> float:
        """No value is larger in magnitude."""
        return float(prod(max(map(abs, factor.interval)) for factor, level in self.parts if level is None))

    @property
    def degree(self) -> float:
        """Of its numbers, multiplied; see :attr:`Expression.degree`."""
        factors = (factor.expression for factor, level in self.parts if level is None)
        return sum(expression.degree for expression in factors if expression)


@dataclass(frozen=True)
class Design:
    """A formula over declared columns: what every site computes alike, whatever its records hold."""

    formula: str
    left: Factor | None  # what the formula explains; None without a left side
    terms: tuple[str, ...]  # of the right side, in order: "1", "age", "sex", "age:sex"
    columns: tuple[DesignColumn, ...]  # of the matrix

    @property
    def response(self) -> str | None:
        """The left side as it is written."""
        return None if self.left is None else self.left.text

    @property
    def names(self) -> tuple[str, ...]:
        """Of the p columns of the matrix: "Intercept", "age", "sex[T.male]"."""
        return tuple(column.name for column in self.columns)

    @property
    def term_of(self) -> tuple[int, ...]:
        """[p] position in ``terms`` of the term that each column belongs to."""
        return tuple(column.term for column in self.columns)

    @property
    def bounds(self) -> tuple[float, ...]:
        """[p] no value of the column is larger in magnitude."""
        return tuple(column.bound for column in self.columns)

    @property
    def outcome_interval(self) -> tuple[float, float]:
        """The smallest and the largest value of the left side."""
        return self._left().interval

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns of the table that the formula reads, those of the left side first."""
        factors = [] if self.left is None else [self.left]
        factors += [factor for column in self.columns for factor, _ in column.parts]
        return tuple(dict.fromkeys(column.name for factor in factors for column in factor.columns))

    def complete(self, table: Table, also: tuple[str, ...] = ()) -> NDArray[np.bool_]:
        """Which records have every value that the formula, and the columns ``also``, need."""
        return table.complete((*self.needs, *also))

    def matrix(self, table: Table, also: tuple[str, ...] = ()) -> Values:
        """The design matrix [n, p] of the complete records, in their order."""
        chosen = table.take(self.complete(table, also))
        known: dict[str, Values] = {}
        matrix = np.ones((chosen.records, len(self.columns)))
        for at, column in enumerate(self.columns):
            for factor, level in column.parts:
                if factor.text not in known:
                    known[factor.text] = factor.values(chosen)
                values = known[factor.text]
                matrix[:, at] *= values if level is None else values == level
        return matrix

    def outcome(self, table: Table, also: tuple[str, ...] = ()) -> Values:
        """The left side [n] of the complete records; of two categories, 1 for the second."""
        return self._left().values(table.take(self.complete(table, also)))

    def _left(self) -> Factor:
        if self.left is None:
            raise refused(self.formula, "has no left side", 'write it as "outcome ~ age + sex"')
        return self.left


def design(formula: str, columns: tuple[Column, ...]) -> Design:
    """Read a formula: ``+ - : *``, parentheses, ``C(column)`` and :class:`Expression`.

    ConfigError: names the term that is not understood, unbounded, or of an unknown column; or the package
    that is missing.
    """
    left, right = _sides(_tree(formula))
    explained = None if left is None else _left_side(_terms(left), columns)
    terms = sorted(_terms(right), key=len)
    spanned, made = Spanned(), list[DesignColumn]()
    for at, term in enumerate(terms):
        factors = [_factor(text, columns) for text in term]
        numeric = [factor.text for factor in factors if not factor.categories]
        categorical = [factor.text for factor in factors if factor.categories]
        # Counted before they are made: k categories span 2^k columns or more, and a few can span millions.
        fits = 1 << len(categorical) <= _MOST_COLUMNS
        for coded in spanned.add(numeric, categorical) if fits else ():
            full = dict(coded)
            used = [factor for factor in factors if not factor.categories or factor.text in full]
            fits = fits and len(made) + _columns_of(used, full) <= _MOST_COLUMNS
            made += _coded_columns(at, used, full) if fits else []
        if not fits:
            raise refused(formula, f"has more than {_MOST_COLUMNS} columns", "take fewer interactions")
    for column in made:
        if not 1 / LARGEST <= column.bound <= LARGEST:
            remedy = f"multiply or divide it by a constant: {1 / LARGEST:g} to {LARGEST:g} is possible"
            raise refused(column.name, "has values that are all too small, or may be too large", remedy)
    if not made:
        raise refused(formula, "has no terms", "name a column, or leave out - 1 for the intercept")
    return Design(formula, explained, tuple(":".join(term) or "1" for term in terms), tuple(made))


def _columns_of(factors: list[Factor], full: dict[str, bool]) -> int:
    """How many columns :func:`_coded_columns` makes."""
    return prod(len(factor.categories) - (not full[factor.text]) for factor in factors if factor.categories)


def _coded_columns(term: int, factors: list[Factor], full: dict[str, bool]) -> list[DesignColumn]:
    levels: list[list[tuple[Factor, int | None, str]]] = []
    for factor in factors:
        if not factor.categories:
            levels.append([(factor, None, factor.text)])
            continue
        first, mark = (0, "") if full[factor.text] else (1, "T.")
        levels.append(
            [
                (factor, at, f"{factor.text}[{mark}{category}]")
                for at, category in enumerate(factor.categories)
                if at >= first
            ]
        )
    # The first factor changes fastest, as everywhere where formulas are read.
    chosen = [tuple(reversed(one)) for one in product(*reversed(levels))]
    return [
        DesignColumn(
            ":".join(name for _, _, name in parts) or "Intercept",
            term,
            tuple((factor, level) for factor, level, _ in parts),
        )
        for parts in chosen
    ]


def _factor(text: str, columns: tuple[Column, ...]) -> Factor:
    category = _CATEGORY.fullmatch(text)
    name = category[1] if category else text
    if category or name.isidentifier():
        column = find_column(columns, name, "formula")
        if column.categories:
            return Factor(text, (column,), None)
        if category:
            remedy = f"declare categories for {name!r} in [data.columns], or write {name} alone"
            raise refused(text, "is of a column of numbers", remedy)
    expression = Expression.parse(text, columns)
    return Factor(text, expression.columns, expression)


def _left_side(terms: list[Term], columns: tuple[Column, ...]) -> Factor:
    if len(terms) != 1 or len(terms[0]) != 1:
        written = " + ".join(":".join(term) or "1" for term in terms)
        raise refused(written, "is no left side", 'name one column there, as in "outcome ~ age + sex"')
    factor = _factor(terms[0][0], columns)
    if len(factor.categories) > 2:
        remedy = "name a column of numbers or of two categories"
        raise refused(factor.text, "has more than two categories", remedy)
    return factor


def _tree(formula: str) -> Any:
    """What belongs to what, by formulaic; it is not asked for terms, whose number it does not limit."""
    if not formula.strip(" ~"):
        raise refused(formula, "is empty", 'write for example "outcome ~ age + sex + C(stage)"')
    if len(formula) > _MOST_CHARACTERS or not _CHARACTERS.fullmatch(formula):
        remedy = f"use letters, digits and + - * / : ~ ( ) . _, {_MOST_CHARACTERS} characters at most"
        raise refused(formula, "contains other signs, or is too long", remedy)
    try:
        from formulaic.errors import FormulaicError
        from formulaic.parser import DefaultFormulaParser
    except ImportError:
        raise missing_package("a formula", "formulaic") from None
    try:
        return DefaultFormulaParser().get_ast(formula)
    except (FormulaicError, SyntaxError, AttributeError, LookupError, ValueError, RecursionError):
        raise refused(
            formula, "is not a formula", 'write for example "outcome ~ age + sex + C(stage)"'
        ) from None


def _sides(tree: Any) -> tuple[Any, Any]:
    if getattr(getattr(tree, "operator", None), "symbol", None) != "~":
        return None, tree
    return (None, tree.args[0]) if len(tree.args) == 1 else (tree.args[0], tree.args[1])


def _terms(node: Any) -> list[Term]:
    """The terms of one side, each once, in order."""
    operator = getattr(node, "operator", None)
    if operator is None:
        text, kind = str(node.token), node.kind.value
        if kind == "value":
            if text != "1":
                raise refused(text, "is no term", "write 1, - 1, or the name of a column")
            return [()]
        return [(text,)]
    sign = operator.symbol
    if sign not in ("+", "-", ":", "*"):
        raise refused(sign, "stands between terms", "use + - : * there, and write arithmetic as I(age / 10)")
    parts = [_terms(argument) for argument in node.args]
    if len(parts) == 1:  # a sign before the first term
        return parts[0] if sign == "+" else []
    left, right = parts
    if sign == "+":
        return _once([*left, *right])
    if sign == "-":
        taken = {frozenset(term) for term in right}
        return [term for term in left if frozenset(term) not in taken]
    if len(left) * len(right) > _MOST_COLUMNS:
        raise refused(sign, "stands between too many terms", "take fewer interactions")
    both = [tuple(dict.fromkeys((*one, *other))) for one, other in product(left, right)]
    return _once(both if sign == ":" else [*left, *right, *both])


def _once(terms: Iterable[Term]) -> list[Term]:
    seen: dict[frozenset[str], Term] = {}
    for term in terms:
        seen.setdefault(frozenset(term), term)
    return list(seen.values())
