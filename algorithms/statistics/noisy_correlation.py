"""``correlation`` under noise in the sum: Pearson's correlations from noisy products of bounded columns.

One step. A record adds the products of 1 and its numbers, centred and divided by their declared bounds. For
a pair with means m and second moments q, a correlation r is off by the noise of six totals, to first order:

    n dc_ij = dQ_ij - (q_ij - 2 m_i m_j) dn - m_j dS_i - m_i dS_j
    dr = dc_ij / sqrt(c_ii c_jj) - r / 2 (dc_ii / c_ii + dc_jj / c_jj)

An interval has the correlations that a test does not reject: of a correlation rho the variance is taken at
rho and not at r, (1 - rho^2)^2 / (n - 3) for sampling and that of dr for noise.

Source: Fuller 1987, section 1.2, for the first-order errors; Fieller 1954 for such intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.statistics.analysis import NOISE, WEIGHTS, Part, Shapes, State, Values, finish, hide
from secfed.algorithms.statistics.arithmetic import symmetric
from secfed.algorithms.statistics.bounded_design import products_norm
from secfed.algorithms.statistics.correlation import Correlation
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.moments import centre_of, scale_of
from secfed.algorithms.statistics.results import Cell, Result, ResultTable

_ABOVE_NOISE: Final = 10.0  # deviations of the noise, by which the number of records is above it
_VARIES: Final = 5.0  # the same, of a variance
_RHO: Final = np.linspace(-1.0, 1.0, 20_001)


class NoisyCorrelation(Correlation):
    """Several columns of numbers."""

    noisy = True

    def unit_scales(self) -> Mapping[str, float]:
        """The norm of a record's products: of 1, and of every number within 1."""
        return {"products": products_norm(len(self.numbers) + 1)}

    def parts(self, step: int) -> Sequence[Part]:
        """The lower triangle of all products; 1 comes first."""
        del step
        p = len(self.numbers) + 1
        return (Part("products", (p * (p + 1) // 2,)),)

    def shapes(self) -> Shapes:
        """The noisy products, and the deviation of their noise over their scale."""
        return {**{part.name: part.shape for part in self.parts(0)}, NOISE: ()}

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """Products of complete records."""
        del step
        rows = table.complete(tuple(one.name for one in self.numbers))
        columns = [(table.values[one.name][rows] - centre_of(one)) / scale_of(one) for one in self.numbers]
        z = np.column_stack([np.ones(int(rows.sum())), *(np.clip(one, -1.0, 1.0) for one in columns)])
        weights = given.get(WEIGHTS, np.ones(table.records))[rows]
        return {"products": ((z * weights[:, None]).T @ z)[np.tril_indices(z.shape[1])]}

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Keep the products, unless noise could have made them."""
        del same
        t = self.noise_in(step, state) * self.unit_scales()["products"]
        q = symmetric(totals["products"].tolist(), len(self.numbers) + 1)
        n = q[0][0]
        if n < max(_ABOVE_NOISE * t, 4.0):
            return hide(state, Reason.TOO_NOISY)
        for k in range(1, len(q)):
            mean, square = q[k][0] / n, q[k][k] / n
            error = t / n * math.sqrt(1 + 4 * mean * mean + (2 * mean * mean - square) ** 2)
            if square - mean * mean <= _VARIES * error:
                return hide(state, Reason.TOO_NOISY)
        state["products"] = totals["products"].clone()
        return finish(state)

    def released(self, state: State) -> State:
        """The noisy products."""
        return {name: state[name] for name in self.shapes()}

    def result(self, released: Mapping[str, Values]) -> Result:
        """Correlations with intervals and p."""
        from scipy.stats import norm

        t = float(released[NOISE]) * self.unit_scales()["products"]
        moments = np.array(symmetric(released["products"].tolist(), len(self.numbers) + 1))
        n = float(moments[0, 0])
        size = len(self.numbers)
        reach = float(norm.ppf((1 + self.rules.level) / 2))
        r, low, high, p, errors = (np.eye(size) for _ in range(5))
        np.fill_diagonal(p, 0.0)
        np.fill_diagonal(errors, 0.0)
        for i in range(size):
            for j in range(i):
                found = Shaken.of(moments / n, i, j)
                bounds = found.interval(n, t / n, reach)
                tested = 2 * norm.sf(abs(found.r) / math.sqrt(found.variance(np.zeros(1), n, t / n)[0]))
                numbers = (found.r, *bounds, tested, t / n * found.error)
                for one, value in zip((r, low, high, p, errors), numbers, strict=True):
                    one[i, j] = one[j, i] = value
        names, scales = [one.name for one in self.numbers], np.array([scale_of(one) for one in self.numbers])
        means = moments[0, 1:] / n
        covariance = (moments[1:, 1:] / n - np.outer(means, means)) * n / (n - 1) * np.outer(scales, scales)
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (names[i], names[j], *(float(one[i, j]) for one in (r, low, high, p)))
            for i in range(len(names))
            for j in range(i + 1, len(names))
        )
        header = ("", "with", "r", "low", "high", "p")
        return Result(
            {
                "columns": names,
                "n": n,
                "means": np.array([centre_of(one) for one in self.numbers]) + scales * means,
                "covariance": covariance,
                "correlation": r,
                "low": low,
                "high": high,
                "p": p,
                "noise_errors": errors,
                "noise_deviation": t,
            },
            (ResultTable(f"Correlations of about {n:.0f} records", header, rows),),
            notes=("with the noise of [privacy]; intervals and p include it",),
        )


@dataclass(frozen=True)
class Shaken:
    """The correlation of two columns, and what noise of 1 in six mean products does to it.

    Of a correlation rho that is ``fixed`` plus rho times ``turned``.
    """

    r: float
    fixed: Values
    turned: Values

    @classmethod
    def of(cls, q: Values, i: int, j: int) -> Self:
        """From mean products."""
        means = q[0, 1:]
        c = q[1:, 1:] - np.outer(means, means)
        root = math.sqrt(c[i, i] * c[j, j])
        parts: list[Values] = []
        for a, b, factor in ((i, j, 1 / root), (i, i, -0.5 / c[i, i]), (j, j, -0.5 / c[j, j])):
            by_n, by_sums, by_products = np.zeros(1), np.zeros(2), np.zeros(3)
            by_products[len(parts)] = factor
            by_n -= factor * (q[a + 1, b + 1] - 2 * means[a] * means[b])
            by_sums[0 if a == i else 1] -= factor * means[b]
            by_sums[0 if b == i else 1] -= factor * means[a]
            parts.append(np.concatenate([by_n, by_sums, by_products]))
        return cls(float(c[i, j] / root), parts[0], parts[1] + parts[2])

    @property
    def error(self) -> float:
        """The deviation of r under such noise."""
        return float(np.linalg.norm(self.fixed + self.r * self.turned))

    def variance(self, rho: Values, n: float, t: float) -> Values:
        """Of r, where the correlation is rho and the noise in a mean product has deviation t."""
        noise = self.fixed @ self.fixed + 2 * rho * (self.fixed @ self.turned)
        return (1 - rho**2) ** 2 / (n - 3) + t * t * (noise + rho**2 * (self.turned @ self.turned))

    def interval(self, n: float, t: float, reach: float) -> tuple[float, float]:
        """The correlations within so many errors of r."""
        kept = _RHO[(self.r - _RHO) ** 2 <= reach**2 * self.variance(_RHO, n, t)]
        if not len(kept):  # r is beyond 1, and further than noise explains
            return (float(np.sign(self.r)),) * 2
        return float(kept[0]), float(kept[-1])
