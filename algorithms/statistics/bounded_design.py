"""A formula's design with every column centred and divided by its declared bounds, for noise in the sum.

What a record adds to products of such columns is then bounded by the formula alone.
"""

from __future__ import annotations

import math

import numpy as np

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.statistics.analysis import Rules, Values
from secfed.algorithms.statistics.glm import INTERCEPT, Glm
from secfed.algorithms.statistics.options import GlmOptions
from secfed.errors import ConfigError


class BoundedDesign:
    """The design of one ``glm``; ConfigError for what its estimate under noise has no errors for."""

    def __init__(self, name: str, options: GlmOptions, rules: Rules) -> None:
        model = Glm(name, options, rules)
        where = f"algorithm.analyses.{name}"
        self.design = model.design
        if options.ridge:
            raise ConfigError(
                f"{where}.ridge: errors under noise are of an estimate without one", remedy="remove it"
            )
        if not model.intercept:
            raise ConfigError(
                f"{where}.formula: under noise columns are centred, which needs an intercept",
                remedy="remove - 1 from the formula",
            )
        self.at = next(k for k, c in enumerate(self.design.columns) if self.design.terms[c.term] == INTERCEPT)
        self.size = len(self.design.columns)
        self.moved = np.zeros(self.size)
        self.scales = np.array([bound or 1.0 for bound in self.design.bounds])
        for k, column in enumerate(self.design.columns):
            if len(column.parts) == 1 and column.parts[0][1] is None:
                low, high = column.parts[0][0].interval
                self.moved[k], self.scales[k] = (low + high) / 2, (high - low) / 2 or 1.0

    def columns(self, table: Table) -> Values:
        """The centred and scaled columns [n, p] of the complete records, within -1 and 1."""
        found: Values = np.clip((self.design.matrix(table) - self.moved) / self.scales, -1.0, 1.0)
        return found

    @property
    def squares(self) -> int:
        """What the squares of a record's columns add up to at most.

        Of the indicators of one set of categories one is not zero, so every set counts once, as numbers and
        the intercept do.
        """
        return len(
            {
                (column.term, *((factor.text, level is None) for factor, level in column.parts))
                for column in self.design.columns
            }
        )

    def back(self, unit: float = 1.0) -> Values:
        """The matrix [p, p] that gives coefficients of the columns as they are, of an outcome in ``unit``."""
        found = np.diag(unit / self.scales)
        found[self.at] -= unit * self.moved / self.scales
        return found


def products_norm(squares: float) -> float:
    """The norm of the lower triangle of a record's products, whose squares add up to so much at most.

    Each square is 1 at most, so (sum(z)^2 + sum(z^2)) / 2 for squares z is (squares^2 + squares) / 2 at most.
    """
    return math.sqrt((squares * squares + squares) / 2)


def predictions(columns: Values, coefficients: Values) -> Values:
    """Linear predictions [n], of each record by itself.

    A matrix product rounds a row by where it stands; whoever chooses the coefficients could make that as
    large as the bound of a record. Sums column by column do not.
    """
    found = np.zeros(len(columns))
    with np.errstate(invalid="ignore", over="ignore"):
        for column, coefficient in zip(columns.T, coefficients, strict=True):
            found = found + column * coefficient
    return np.nan_to_num(found)
