"""Numeric expressions over declared columns, with bounds by interval arithmetic.

The text comes from a study, that is, from elsewhere: it is parsed, never executed, and what is not in the
short list here is refused. Bounds follow from those of the columns, so they are public; they can be wider
than what is reached where a column occurs twice.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from secfed.algorithms.data.tabular.columns import Column, Table, Values, find_column
from secfed.errors import ConfigError

Interval = tuple[float, float]
LARGEST: Final = 1e15  # of any number on the way: everything below adds without a loss that matters
_POWERS: Final = (2, 3, 4)
_FUNCTIONS: Final[Mapping[str, Callable[[Values], Values]]] = {
    "log": np.log,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "exp": np.exp,
}
# From which value on a function has one; all of them rise.
_FROM: Final = {"log": math.ulp(0.0), "log10": math.ulp(0.0), "sqrt": 0.0, "exp": -math.inf}
_KNOWN: Final = (
    "use numbers, columns, + - * /, powers 2 to 4, log, log10, sqrt, exp and I( ), or a column of its own"
)


@dataclass(frozen=True)
class Expression:
    """One expression, checked: it has a value within ``interval`` wherever its columns have theirs."""

    text: str
    columns: tuple[Column, ...]
    interval: Interval
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str, columns: tuple[Column, ...]) -> Expression:
        """Read an expression.

        ConfigError: names it, and what in it is not understood or has no bound.
        """
        try:
            tree = ast.parse(text, mode="eval").body
            names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
            interval = _interval(tree, columns, text)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
            raise refused(text, "is not an expression", _KNOWN) from None
        used = tuple(column for column in columns if column.name in names)
        if not used:
            raise refused(text, "is a constant", "name a column, or leave it out")
        return cls(text, used, interval, tree)

    @property
    def degree(self) -> float:
        """Of a polynomial of columns, and of roots and logarithms of their sums; infinite if it is none.

        What is none can rise from 0 to 1 between two neighbouring values of a column.
        """
        return _degree(self._tree)

    def values(self, table: Table) -> Values:
        """The value for every record; NaN where a column is missing."""
        return _values(self._tree, table)


def refused(term: str, what: str, remedy: str) -> ConfigError:
    """The error of a term of a formula."""
    return ConfigError(f"formula: {term[:80]!r} {what}", remedy=remedy)


def _interval(node: ast.expr, columns: tuple[Column, ...], text: str) -> Interval:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            found = (float(number), float(number))
        case ast.Name(id=name):
            column = find_column(columns, name, "formula")
            if column.categories:
                raise refused(text, f"computes with the categories of {name!r}", f"write {name} or C({name})")
            found = (column.low, column.high)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            low, high = _interval(inner, columns, text)
            found = (-high, -low)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if power in _POWERS:
            found = _power(_interval(left, columns, text), power)
        case ast.BinOp(left=left, op=op, right=right):
            found = _combined(op, _interval(left, columns, text), _interval(right, columns, text), text)
        case ast.Call(args=[inner], keywords=[]) if (function := _function(node)) is not None:
            found = _interval(inner, columns, text)
            if function != "I":
                found = _of_function(function, found, text)
        case _:
            raise refused(text, "contains what no formula here may", _KNOWN)
    if not max(map(abs, found)) <= LARGEST:
        raise refused(
            text, f"can be larger than {LARGEST:g}", "divide by a constant, or narrow the column's bounds"
        )
    return found


def _combined(op: ast.operator, left: Interval, right: Interval, text: str) -> Interval:
    match op:
        case ast.Add():
            return left[0] + right[0], left[1] + right[1]
        case ast.Sub():
            return left[0] - right[1], left[1] - right[0]
        case ast.Mult():
            corners = [a * b for a, b in product(left, right)]
        case ast.Div():
            if right[0] <= 0 <= right[1]:
                raise refused(text, "may divide by 0", "divide by what cannot be 0")
            corners = [a / b for a, b in product(left, right)]
        case _:
            raise refused(text, "contains what no formula here may", _KNOWN)
    return min(corners), max(corners)


def _of_function(name: str, inner: Interval, text: str) -> Interval:
    if inner[0] < _FROM[name]:
        remedy = "raise low of the column in [data.columns], or take another term"
        raise refused(text, f"has no value for all that its columns may hold ({name})", remedy)
    with np.errstate(over="ignore"):
        low, high = _FUNCTIONS[name](np.array(inner))
    return float(low), float(high)


def _power(base: Interval, power: int) -> Interval:
    ends = [end**power for end in base]
    if power % 2 == 0 and base[0] < 0 < base[1]:
        ends.append(0.0)
    return min(ends), max(ends)


def _degree(node: ast.expr) -> float:
    match node:
        case ast.Name():
            return 1.0
        case ast.UnaryOp(operand=inner):
            return _degree(inner)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))):
            return _degree(left) * power
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _degree(left), _degree(right)
            if isinstance(op, ast.Add | ast.Sub):
                return max(one, other)
            return one + other if isinstance(op, ast.Mult) or _is_monomial(right) else math.inf
        case ast.Call(args=[inner]):
            function, of = _function(node), _degree(inner)
            if function == "I" or not of:
                return of
            # A root of a square is a kink, and the difference of two kinks is a step.
            return 1.0 if function != "exp" and (of <= 1 or _is_monomial(inner)) else math.inf
    return 0.0  # a constant


def _is_monomial(node: ast.expr) -> bool:
    """Whether a tree multiplies only, so that it changes nowhere but near 0."""
    match node:
        case ast.Constant() | ast.Name():
            return True
        case ast.BinOp(left=left, op=ast.Pow()):
            return _is_monomial(left)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _is_monomial(left) and _is_monomial(right)
        case ast.Call(args=[inner]):
            return _function(node) == "I" and _is_monomial(inner)
    return not _degree(node)


def _function(node: ast.Call) -> str | None:
    """The name of a function that is known, with or without ``np.`` before it."""
    match node.func:
        case ast.Name(id=name) if name == "I" or name in _FUNCTIONS:
            return name
        case ast.Attribute(value=ast.Name(id="np"), attr=name) if name in _FUNCTIONS:
            return name
    return None


def _values(node: ast.expr, table: Table) -> Values:
    """The value of a tree that :func:`_interval` accepted: at every step within its bounds.

    Powers and functions of arrays can differ from those of the bounds in the last digit, and a root or a
    quotient of what is beyond them need not be a number: one record would make every sum of its hospital NaN.
    """
    return np.clip(_unbounded(node, table), *_interval(node, table.columns, ""))


def _unbounded(node: ast.expr, table: Table) -> Values:
    match node:
        case ast.Constant(value=number):
            return np.full(table.records, float(number))  # type: ignore[arg-type]
        case ast.Name(id=name):
            column = table.column(name)
            return np.clip(table.values[name], column.low, column.high)
        case ast.UnaryOp(operand=inner):
            return -_values(inner, table)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))):
            return _values(left, table) ** power
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _values(left, table), _values(right, table)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
            return a / b
        case ast.Call(args=[inner]):
            function = _FUNCTIONS.get(_function(node) or "")
            values = _values(inner, table)
            return values if function is None else function(values)  # I( ) only groups
    raise TypeError(f"not an expression: {type(node).__name__}")
