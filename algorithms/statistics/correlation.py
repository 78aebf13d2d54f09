"""``correlation``: Pearson's correlations of several numbers, and their principal components.

Of the records that have all of the numbers, which are centred and scaled as in moments. Components are
those of standardised columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.statistics.analysis import Analysis, Part, Shapes, State, Values, finish, hide, tensor
from secfed.algorithms.statistics.arithmetic import symmetric
from secfed.algorithms.statistics.checks import Checks, Formula, number_of, pairs_of, squares_of
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.moments import centre_of, scale_of
from secfed.algorithms.statistics.options import CorrelationOptions
from secfed.algorithms.statistics.results import Cell, Result, ResultTable
from secfed.errors import ConfigError

_CONSTANT = 1e-12  # of a scaled column's squares: less variance than this is none


class Correlation(Analysis):
    """Several columns of numbers."""

    kind = "correlation"

    def _read(self, options: CorrelationOptions) -> None:
        self.numbers = [self.column("columns", name, "number") for name in options.columns]
        self.needs = options.columns
        if len(set(options.columns)) < len(options.columns):
            where = f"algorithm.analyses.{self.name}.columns"
            raise ConfigError(f"{where}: names a column twice", remedy="name every column once")

    def parts(self, step: int) -> Sequence[Part]:
        """Records, sums and products."""
        del step
        p = len(self.numbers)
        return Part("records", ()), Part("sums", (p,)), Part("products", (p * (p + 1) // 2,))

    def checks(self) -> Checks:
        """Of all pairs."""
        numbers = tuple(map(number_of, self.numbers))
        spans = (*pairs_of(numbers), *squares_of(numbers))
        forms = frozenset((one.name, one.name) for one in self.numbers)
        return Checks(((),), numbers, spans, formula=Formula(numbers, forms, multiplied=False))

    def shapes(self) -> Shapes:
        """Means, covariances and how many records."""
        p = len(self.numbers)
        return {"means": (p,), "covariance": (p, p), "records": ()}

    def contribute(
        self, step: int, table: Table, given: Mapping[str, Values]
    ) -> Mapping[str, Values | float]:
        """Sums over complete records."""
        del step, given
        rows = table.complete(tuple(one.name for one in self.numbers))
        x = np.column_stack(
            [(table.values[one.name][rows] - centre_of(one)) / scale_of(one) for one in self.numbers]
        )
        products = (x.T @ x)[np.tril_indices(len(self.numbers))]
        return {"records": float(len(x)), "sums": x.sum(axis=0), "products": products}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Means and covariances."""
        del step, same
        p, n = len(self.numbers), float(round(float(totals["records"])))
        if n < max(self.min_cell, 3):
            return hide(state, Reason.FEW_RECORDS)
        if self.too_many(p, n):
            return hide(state, Reason.MANY_PARAMETERS)
        sums = totals["sums"].tolist()
        products = symmetric(totals["products"].tolist(), p)
        scales = [scale_of(one) for one in self.numbers]
        covariance = [
            [scales[i] * scales[j] * (products[i][j] - sums[i] * sums[j] / n) / (n - 1.0) for j in range(p)]
            for i in range(p)
        ]
        if any(covariance[i][i] <= _CONSTANT * scales[i] * scales[i] for i in range(p)):
            return hide(state, Reason.NO_VARIATION)
        means = [
            centre_of(one) + scale * s / n for one, scale, s in zip(self.numbers, scales, sums, strict=True)
        ]
        state["means"], state["covariance"], state["records"] = tensor(means), tensor(covariance), tensor(n)
        finish(state)
        return None

    def released(self, state: State) -> State:
        """All of it."""
        return {name: state[name] for name in ("means", "covariance", "records")}

    def result(self, released: Mapping[str, Values]) -> Result:
        """Correlations with p, and components."""
        from scipy.stats import t

        covariance, n = released["covariance"], float(released["records"])
        deviations = np.sqrt(np.diag(covariance))
        r = np.clip(covariance / np.outer(deviations, deviations), -1.0, 1.0)
        with np.errstate(divide="ignore"):
            statistic = np.abs(r) * math.sqrt(n - 2) / np.sqrt(1 - r**2)
        p = 2 * t.sf(statistic, n - 2)
        values, vectors = np.linalg.eigh(r)
        order = np.argsort(values)[::-1]
        values, vectors = values[order], vectors[:, order]
        vectors = vectors * np.where(vectors[np.abs(vectors).argmax(axis=0), range(len(r))] < 0, -1.0, 1.0)
        names = [one.name for one in self.numbers]
        pairs = tuple(
            (names[i], names[j], float(r[i, j]), float(p[i, j]))
            for i in range(len(names))
            for j in range(i + 1, len(names))
        )
        shares = values / values.sum()
        components: tuple[tuple[Cell, ...], ...] = tuple(
            (f"component {k + 1}", 100 * float(shares[k]), *(float(one) for one in vectors[:, k]))
            for k in range(len(names))
        )
        return Result(
            {
                "columns": names,
                "n": round(n),
                "means": released["means"],
                "covariance": covariance,
                "correlation": r,
                "p": p,
                "component_shares": shares,
                "components": vectors.T,
            },
            (
                ResultTable(f"Correlations of {round(n)} records", ("", "with", "r", "p"), pairs),
                ResultTable("Principal components", ("", "% of variance", *names), components),
            ),
        )
