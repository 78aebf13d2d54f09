"""How far noise may have moved a metric, and when that is so far that the metric is withheld.

Beside a metric ``accuracy`` that was computed from noisy sums stands ``accuracy_error_95``: with 95 %
confidence noise moved it no further. It speaks of the noise alone; that held-out records are a sample comes
on top.

A metric whose error is above :data:`WITHHELD_ABOVE` says next to nothing. It is undefined (NaN, null in
run.json), and its error says why. A share of 1 is known to lie between 0 and 1, so no error is above 1.

Source: Fieller, "Some problems in interval estimation", J. R. Statist. Soc. B 16, 1954 (the ratio of two
normal means).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

ERROR_95: Final = "_error_95"  # ends the name of a metric's error
WITHHELD_ABOVE: Final = 0.1
NORMAL_95: Final = 1.959964  # standard deviations that a normal variable leaves in 5 % of all cases


def ratio_error(part: float, whole: float, deviation: float) -> float:
    """Half the width of the 95 % interval of part / whole, whose noise is independent with this deviation.

    It holds exactly for normal noise, however large: without a bound on the ratio the answer is infinity.
    """
    reach = (NORMAL_95 * deviation) ** 2
    if whole <= 0 or whole**2 <= reach:
        return math.inf
    # The roots in r of (part - r whole)^2 = reach (1 + r^2).
    middle, spare = part * whole, whole**2 - reach
    half = math.sqrt(max(0.0, reach * (whole**2 + part**2 - reach)))
    ratio = part / whole
    return max((middle + half) / spare - ratio, ratio - (middle - half) / spare)


def mean_error(errors: Iterable[float]) -> float:
    """The error of a mean of quantities with independent errors."""
    each = list(errors)
    return math.hypot(*each) / len(each)


def stated(name: str, value: float, error: float) -> dict[str, float]:
    """The metric with its error; undefined where the error is too large."""
    error = min(error, 1.0)
    return {name: value if error <= WITHHELD_ABOVE else math.nan, name + ERROR_95: error}


def is_error(name: str) -> bool:
    """Whether this is the name of an error, and not of a metric."""
    return name.endswith(ERROR_95)


def error_of(metrics: Mapping[str, float | None], name: str) -> float | None:
    """The error of one of the metrics; None for one without noise."""
    return metrics.get(name + ERROR_95)


def is_withheld(metrics: Mapping[str, float | None], name: str) -> bool:
    """Whether this metric is not given because of its error."""
    error = error_of(metrics, name)
    return error is not None and error > WITHHELD_ABOVE
