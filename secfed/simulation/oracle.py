"""Metrics of single sites: simulation only.

In a real study nobody can compute these, because nobody has the records of two hospitals. A simulation
can, outside the protocol, and every report labels the result ``oracle``.
"""

from __future__ import annotations

from collections.abc import Mapping

from secfed.algorithms.framework.base import Metrics
from secfed.algorithms.framework.datasets import SiteId

_LOSSES = ("loss", "infonce", "mse", "mae")


def worst_site_metrics(metrics: Mapping[SiteId, Metrics]) -> Metrics:
    """Each metric at the site where it is lowest (highest, for a loss), of the sites that have it."""
    return {name: (max if name in _LOSSES else min)(found) for name, found in columns(metrics).items()}


def columns(metrics: Mapping[SiteId, Metrics]) -> dict[str, list[float]]:
    """Every metric's values, at the sites that have it."""
    found: dict[str, list[float]] = {}
    for one in metrics.values():
        for name, value in one.items():
            found.setdefault(name, []).append(value)
    return found
