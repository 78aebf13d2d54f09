"""The families of ``glm``: what a record adds to score, information and deviance, and how large that can be.

Start values are those of R's ``glm``; links are canonical, so Newton's method is iteratively reweighted least
squares. Outcomes are divided by ``scale`` before anything is summed.

Source: McCullagh and Nelder 1989, section 2.5; R 4.4, stats::binomial and stats::poisson.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np

from secfed.algorithms.statistics.analysis import Values

_FARTHEST_LOGIT: Final = 40.0
_ROOM: Final = 8.0  # a prediction so many times the largest outcome is beyond what a sum has room for
_SMALLEST_LOG: Final = -30.0


@dataclass(frozen=True)
class Terms:
    """Of every record: residual, weight, part of the deviance, and whether its prediction is out of range."""

    residual: Values
    weight: Values
    deviance: Values
    beyond: Values


class Family(ABC):
    """One family, for outcomes within declared bounds."""

    scale = 1.0

    def __init__(self, low: float, high: float) -> None:
        self.low, self.largest = low, max(high, 1.0)

    @abstractmethod
    def start(self, y: Values) -> tuple[Values, Values]:
        """Weight, and weight times working outcome, where predictions begin with the outcomes."""

    @abstractmethod
    def terms(self, eta: Values, y: Values) -> Terms:
        """At linear predictions."""

    @abstractmethod
    def bounds(self) -> tuple[float, float, float]:
        """Largest magnitude of residual (or weighted working outcome), weight and deviance of a record."""

    def null_terms(self, y: Values) -> Values:
        """What the null deviance needs beside the sum of outcomes."""
        return np.zeros_like(y)

    def null_bound(self) -> float:
        """Largest magnitude of :meth:`null_terms`."""
        return 1.0

    @abstractmethod
    def null_deviance(self, n: float, total: float, extra: float) -> float:
        """Of the model with an intercept only, of outcomes that are not scaled."""


class Gaussian(Family):
    """Identity link; outcomes of magnitude 1 at most."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__(low, high)
        self.scale = max(abs(low), abs(high)) or 1.0

    def start(self, y: Values) -> tuple[Values, Values]:
        """Least squares."""
        return np.ones_like(y), y

    def terms(self, eta: Values, y: Values) -> Terms:
        """Residuals."""
        residual = y - eta
        beyond = (np.abs(residual) > _ROOM).astype(np.float64)
        residual = np.clip(residual, -_ROOM, _ROOM)
        return Terms(residual, np.ones_like(y), residual**2, beyond)

    def bounds(self) -> tuple[float, float, float]:
        """Of scaled outcomes."""
        return _ROOM, 1.0, _ROOM**2

    def null_terms(self, y: Values) -> Values:
        """Squares."""
        return y**2

    def null_deviance(self, n: float, total: float, extra: float) -> float:
        """Squares around the mean."""
        return self.scale**2 * (extra - total * total / n)


class Binomial(Family):
    """Logit link; outcomes 0 and 1."""

    def start(self, y: Values) -> tuple[Values, Values]:
        """Probabilities of 1/4 and 3/4."""
        mu = (y + 0.5) / 2
        weight = mu * (1 - mu)
        return weight, weight * np.log(mu / (1 - mu)) + (y - mu)

    def terms(self, eta: Values, y: Values) -> Terms:
        """Probabilities."""
        eta = np.clip(eta, -_FARTHEST_LOGIT, _FARTHEST_LOGIT)
        mu = 1 / (1 + np.exp(-eta))
        deviance = 2 * np.logaddexp(0.0, np.where(y > 0.5, -eta, eta))
        return Terms(y - mu, mu * (1 - mu), deviance, np.zeros_like(y))

    def bounds(self) -> tuple[float, float, float]:
        """Of probabilities."""
        return 1.0, 0.25, 2 * _FARTHEST_LOGIT + 2

    def null_deviance(self, n: float, total: float, extra: float) -> float:
        """Of the share."""
        del extra
        parts = (total, n - total)
        return -2 * sum(part * math.log(part / n) for part in parts if part > 0)


class Poisson(Family):
    """Logarithmic link; outcomes from 0."""

    def start(self, y: Values) -> tuple[Values, Values]:
        """A tenth above the outcomes."""
        mu = y + 0.1
        return mu, mu * np.log(mu) + (y - mu)

    def terms(self, eta: Values, y: Values) -> Terms:
        """Rates."""
        most = math.log(_ROOM * self.largest)
        beyond = (eta > most).astype(np.float64)
        eta = np.clip(eta, _SMALLEST_LOG, most)
        mu = np.exp(eta)
        deviance = 2 * (self.null_terms(y) - y * eta - (y - mu))
        return Terms(y - mu, mu, deviance, beyond)

    def bounds(self) -> tuple[float, float, float]:
        """Of rates."""
        most, log = _ROOM * self.largest, math.log(_ROOM * self.largest)
        return most * (log + 3), most, 2 * (self.largest * (log - _SMALLEST_LOG) + most)

    def null_terms(self, y: Values) -> Values:
        """Y log y."""
        return y * np.log(np.maximum(y, 1e-300))

    def null_bound(self) -> float:
        """Of y log y."""
        return max(1.0, self.largest * math.log(self.largest))

    def null_deviance(self, n: float, total: float, extra: float) -> float:
        """Of the mean rate."""
        return 2 * (extra - total * math.log(total / n))


FAMILIES: Final[dict[str, type[Family]]] = {"gaussian": Gaussian, "binomial": Binomial, "poisson": Poisson}
