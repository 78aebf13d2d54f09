"""Which columns a term becomes: treatment coding without columns that others already span.

Source: the algorithm of patsy ("Redundancy and categorical factors" in its manual), by which formulas of R,
patsy and formulaic mean the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

Coded = frozenset[
    tuple[str, bool]
]  # categorical factors; whether each has a column for its first category, too


class Spanned:
    """What the terms so far span."""

    def __init__(self) -> None:
        self._spanned: set[tuple[frozenset[str], frozenset[str]]] = set()

    def add(self, numeric: Sequence[str], categorical: Sequence[str]) -> list[Coded]:
        """How to code a term of these factors, so that it adds what is not spanned, once."""
        numbers = frozenset(numeric)
        parts: list[Coded] = []
        for size in range(len(categorical) + 1):
            for chosen in combinations(categorical, size):
                part = (numbers, frozenset(chosen))
                if part not in self._spanned:
                    self._spanned.add(part)
                    parts.append(frozenset((factor, False) for factor in chosen))
        while _merge(parts):
            pass
        return parts


def _merge(parts: list[Coded]) -> bool:
    """Let one part absorb another that lacks one factor of it: all categories instead of all but one."""
    for at, short in enumerate(parts):
        for later, long in enumerate(parts[at + 1 :], start=at + 1):
            if len(long) == len(short) + 1 and short < long:
                ((factor, _),) = long - short
                parts[later] = short | {(factor, True)}
                del parts[at]
                return True
    return False
