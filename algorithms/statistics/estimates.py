"""Coefficients as people read them: errors, intervals, tests, and a forest plot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from secfed.algorithms.statistics.analysis import Values
from secfed.algorithms.statistics.results import Figure, Result, ResultTable


def estimates(
    names: Sequence[str],
    coefficients: Values,
    covariance: Values,
    *,
    level: float,
    degrees: float | None,
    exponentiated: str | None,
    title: str,
) -> Result:
    """A line for each coefficient: by Student's t with these degrees of freedom, or by the normal.

    ``exponentiated`` is what the exponential of a coefficient is called, if it has a meaning.
    """
    from scipy.stats import norm, t

    errors = np.sqrt(np.diag(covariance))
    statistic = coefficients / errors
    if degrees is None:
        p, reach = 2 * norm.sf(np.abs(statistic)), float(norm.ppf((1 + level) / 2))
    else:
        p, reach = 2 * t.sf(np.abs(statistic), degrees), float(t.ppf((1 + level) / 2, degrees))
    low, high = coefficients - reach * errors, coefficients + reach * errors
    letter = "z" if degrees is None else "t"
    header = ["term", "coefficient", "se", letter, "p", "low", "high"]
    columns = [one.tolist() for one in (coefficients, errors, statistic, p, low, high)]
    points, axis = np.column_stack([coefficients, low, high]), "coefficient"
    if exponentiated is not None:
        header.append(exponentiated)
        with np.errstate(over="ignore"):
            points, axis = np.exp(points), exponentiated
        columns.append(points[:, 0].tolist())
    rows = tuple(zip(names, *columns, strict=True))
    shown = {n: [tuple(row)] for n, row in zip(names, points.tolist(), strict=True) if n != "Intercept"}
    values = {
        "terms": list(names),
        "coefficients": coefficients,
        "standard_errors": errors,
        "statistics": statistic,
        "p": p,
        "low": low,
        "high": high,
    }
    axis = f"{axis} and {level * 100:g} % interval"
    figures = (Figure("forest", title, axis, "", shown),) if shown else ()
    return Result(values, (ResultTable(title, tuple(header), rows),), figures)
