"""``glm`` with ``family = "gaussian"`` under noise in the sum: least squares from noisy products.

One step. Every record adds the products of its design columns and outcome, each centred and divided by its
declared bounds, so that the norm of what it adds is known from the formula alone. What is told are the noisy
products; estimates and errors follow from them, and so say nothing more.

With Z'Z = [A b; b' c] + noise of variance t^2 in each of its lower triangle, the estimate is A^-1 b. To first
order it is off by A^-1 u, u = (noise of b) - (noise of A) g for coefficients g, which is independent of
sampling:

    Cov(u) = t^2 ((1 + |g|^2) I + g g' - diag(g^2))

The squares that are left, c - b' A^-1 b, are too few by tr(A^-1 Cov(u)) on average, which is added. Where the
smallest eigenvalue is not far above the noise, this does not hold, and the result is withheld.

Source: Sheffet 2017, Differentially Private Ordinary Least Squares; Fuller 1987, Measurement Error Models,
section 1.2, for the first-order errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.statistics.analysis import (
    NOISE,
    WEIGHTS,
    Analysis,
    Part,
    Shapes,
    State,
    Values,
    finish,
    hide,
)
from secfed.algorithms.statistics.arithmetic import cholesky, symmetric
from secfed.algorithms.statistics.bounded_design import BoundedDesign, products_norm
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.estimates import estimates
from secfed.algorithms.statistics.options import GlmOptions
from secfed.algorithms.statistics.results import Result, ResultTable

_ABOVE_NOISE: Final = 2.0  # norms of the noise matrix by which the smallest eigenvalue is above it


class NoisyLinear(Analysis):
    """One linear model."""

    kind = "glm"
    noisy = True

    def _read(self, options: GlmOptions) -> None:
        self.bounded = BoundedDesign(self.name, options, self.rules)
        self.design, self.at = self.bounded.design, self.bounded.at
        low, high = self.design.outcome_interval
        self.outcome = (low + high) / 2, (high - low) / 2 or 1.0
        self.size = self.bounded.size + 1

    def unit_scales(self) -> Mapping[str, float]:
        """The norm of a record's products, those with the outcome among them."""
        return {"products": products_norm(self.bounded.squares + 1)}

    def parts(self, step: int) -> Sequence[Part]:
        """The lower triangle of all products, the outcome last."""
        del step
        return (Part("products", (self.size * (self.size + 1) // 2,)),)

    def shapes(self) -> Shapes:
        """The noisy products, and the deviation of their noise."""
        return {"products": (self.size * (self.size + 1) // 2,), NOISE: ()}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """Products of complete records."""
        del step
        middle, half = self.outcome
        y = (self.design.outcome(table) - middle) / half
        z = np.column_stack([self.bounded.columns(table), np.clip(y, -1.0, 1.0)])
        weighted = z
        if WEIGHTS in given:
            weighted = z * given[WEIGHTS][self.design.complete(table)][:, None]
        return {"products": (weighted.T @ z)[np.tril_indices(self.size)]}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Keep the sums, unless noise could have made them."""
        del step, same
        state[NOISE] = state[NOISE] * self.unit_scales()["products"]
        state["products"] = totals["products"].clone()
        products = symmetric(totals["products"].tolist(), self.size)[:-1]
        # The norm of a symmetric matrix of such noise is about twice the root of its size.
        least = _ABOVE_NOISE * 2.0 * math.sqrt(self.size - 1) * float(state[NOISE])
        for k in range(self.size - 1):
            products[k][k] -= least
        try:
            cholesky(products)
        except ArithmeticError:
            return hide(state, Reason.TOO_NOISY)
        return finish(state)

    def released(self, state: State) -> State:
        """The noisy sums."""
        return {name: state[name] for name in ("products", NOISE)}

    def result(self, released: Mapping[str, Values]) -> Result:
        """A line for each coefficient, with errors of sampling and noise together."""
        p, t = self.size - 1, float(released[NOISE])
        z = np.array(symmetric(released["products"].tolist(), self.size))
        inverse, n = np.linalg.inv(z[:p, :p]), float(z[self.at, self.at])
        g = inverse @ z[:p, p]
        shaken = t * t * ((1 + g @ g) * np.eye(p) + np.outer(g, g) - np.diag(g * g))
        left = float(z[p, p] - z[:p, p] @ g + np.trace(inverse @ shaken))
        dispersion, noise = max(left, 0.0) / max(n - p, 1.0), inverse @ shaken @ inverse
        middle, half = self.outcome
        back = self.bounded.back(half)
        coefficients = back @ g
        coefficients[self.at] += middle
        covariance = back @ (dispersion * inverse + noise) @ back.T
        found = estimates(
            self.design.names,
            coefficients,
            covariance,
            level=self.rules.level,
            degrees=max(n - p, 1.0),
            exponentiated=None,
            title=self.design.formula,
        )
        values = {
            "formula": self.design.formula,
            "family": "gaussian",
            **found.values,
            "covariance": covariance,
            "noise_errors": np.sqrt(np.diag(back @ noise @ back.T)),
            "n": n,
            "dispersion": dispersion * half * half,
            "noise_deviation": t,
        }
        fit = ResultTable("Fit", ("n", "dispersion"), ((n, dispersion * half * half),))
        note = "with the noise of [privacy]; errors and intervals include it"
        return Result(values, (*found.tables, fit), found.figures, (note,))
