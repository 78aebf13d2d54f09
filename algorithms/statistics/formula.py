"""Model formulas (``outcome ~ age + sex + C(stage)``) as design matrices with declared bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Column, Table, Values


@dataclass(frozen=True)
class Design:
    """A formula over declared columns: what every site computes alike, whatever its records hold."""

    formula: str
    response: str | None  # the column on the left; None for a formula without a left side
    terms: tuple[str, ...]  # of the right side, in order: "1", "age", "sex", "age:sex"
    names: tuple[str, ...]  # of the p columns of the matrix: "Intercept", "age", "sex[T.male]"
    term_of: tuple[int, ...]  # [p] position in ``terms`` of the term that each column belongs to
    bounds: tuple[float, ...]  # [p] no value of the column is larger in magnitude
    needs: tuple[str, ...]  # columns of the table that the formula reads, the response among them

    def complete(self, table: Table, also: tuple[str, ...] = ()) -> NDArray[np.bool_]:
        """Which records have every value that the formula, and the columns ``also``, need."""
        raise NotImplementedError

    def matrix(self, table: Table, also: tuple[str, ...] = ()) -> Values:
        """The design matrix [n, p] of the complete records, in their order."""
        raise NotImplementedError

    def outcome(self, table: Table, also: tuple[str, ...] = ()) -> Values:
        """The response [n] of the complete records; of a category, its position (0 or 1 of two)."""
        raise NotImplementedError


def design(formula: str, columns: tuple[Column, ...]) -> Design:
    """Read a formula.

    ConfigError: names the term that is not understood, unbounded, or of an unknown column; or the package
    that is missing.
    """
    raise NotImplementedError
