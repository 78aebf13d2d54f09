"""What a test for membership can find, from all that is known of the noise and not one (epsilon, delta).

At false-alarm rate a, a test that finds more than a share p of the members cannot exist,

* because of each point (epsilon, delta(epsilon)) of the privacy curve, which limits p to
  min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a));
* because of each Renyi divergence D of the mechanism: what a test says is post-processing, so the divergences
  of order alpha between Bernoulli variables with p and a, in both directions, are at most D.

The least of these holds as well.

Source: Wasserman and Zhou 2010; Kairouz, Oh, Viswanath 2015, theorem 2.1; van Erven and Harremoës 2014,
theorem 9 (data processing); Balle, Barthe, Gaboardi, Hsu, Sato 2020 (Renyi privacy as hypothesis testing).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secfed.dp.accounting.accountants import LEAST_DELTA, Pld, Rdp
from secfed.dp.accounting.events import Event, common_adjacency, compose

_EPSILONS: Final = np.concatenate([[0.0], np.geomspace(1e-3, 100.0, 400)])
_HALVINGS: Final = 60


def most_found(events: Sequence[Event], false_alarms: float) -> float:
    """An upper bound on the share of members that a test finds at this rate of false alarms, 0 < a < 1.

    From the accountants that cover all events together; 1 where none does.
    """
    _, restated = common_adjacency(compose(events))
    return _most_found(compose(restated), false_alarms)


@lru_cache(maxsize=256)  # hospitals of one study often spend the same
def _most_found(merged: tuple[Event, ...], false_alarms: float) -> float:
    found = 1.0
    if not any(Pld().refusal(event) for event in merged):
        found = min(found, _by_curve(merged, false_alarms))
    if not any(Rdp().refusal(event) for event in merged):
        found = min(found, _by_divergences(merged, false_alarms))
    return found


def most_guessed(events: Sequence[Event]) -> float:
    """An upper bound on how often somebody is right who held both answers for equally likely, 1/2 to 1.

    The total variation of the results under both answers bounds the advantage: it is delta at epsilon 0 (from
    the privacy curve), and at most sqrt(D / 2) and sqrt(1 - e^-D) for a Renyi divergence D of order above 1
    (Pinsker; Bretagnolle and Huber). 1 where no accountant covers all events.
    """
    _, restated = common_adjacency(compose(events))
    return _most_guessed(compose(restated))


@lru_cache(maxsize=256)
def _most_guessed(merged: tuple[Event, ...]) -> float:
    apart = 1.0
    if not any(Pld().refusal(event) for event in merged):
        composed = Pld().composed(merged)
        if composed is not None:
            apart = min(apart, float(composed.get_delta_for_epsilon(0.0)) + LEAST_DELTA["pld"])
    if not any(Rdp().refusal(event) for event in merged):
        least = max(0.0, float(np.min(Rdp().divergences(merged))))  # divergences grow with the order
        apart = min(apart, float(np.sqrt(least / 2)), float(np.sqrt(-np.expm1(-least))))
    return (1.0 + apart) / 2


def guessed_at(epsilon: float, delta: float) -> float:
    """The same from one point of the curve."""
    odds = float(np.exp(-min(epsilon, 700.0)))
    return min(1.0, (1.0 + delta * odds) / (1.0 + odds))


def found_at(epsilon: float, delta: float, false_alarms: float) -> float:
    """The same from one point of the curve."""
    return float(_found(np.array([min(epsilon, 700.0)]), np.array([delta]), false_alarms)[0])


def _found(epsilons: NDArray[Any], deltas: NDArray[Any], false_alarms: float) -> NDArray[Any]:
    low = np.exp(epsilons) * false_alarms + deltas
    high = 1.0 - np.exp(-epsilons) * np.maximum(0.0, 1.0 - deltas - false_alarms)
    return np.asarray(np.minimum(np.minimum(low, high), 1.0))


def _by_curve(events: Sequence[Event], false_alarms: float) -> float:
    composed = Pld().composed(events)
    if composed is None:
        return 1.0
    # Below this delta the library's numbers are not known to be upper bounds.
    deltas = np.maximum(composed.get_delta_for_epsilon(list(_EPSILONS)), LEAST_DELTA["pld"])
    return float(_found(_EPSILONS, deltas, false_alarms).min())


def _by_divergences(events: Sequence[Event], false_alarms: float) -> float:
    rdp = Rdp()
    orders, limits = np.asarray(rdp.orders, dtype=float), np.asarray(rdp.divergences(events), dtype=float)
    low, high = np.full_like(orders, false_alarms), np.ones_like(orders)
    for _ in range(_HALVINGS):  # divergences grow with p from a on, so each order permits p up to a limit
        middle = (low + high) / 2
        ways = (middle, false_alarms), (false_alarms, middle)
        permitted = np.maximum(*(_bernoulli(orders, p, q) for p, q in ways))
        low, high = (np.where(permitted <= limits, middle, low), np.where(permitted <= limits, high, middle))
    return float(high.min())


def _bernoulli(orders: NDArray[Any], p: Any, q: Any) -> NDArray[Any]:
    """Renyi divergence of Bernoulli(p) from Bernoulli(q), per order above 1."""
    with np.errstate(divide="ignore"):
        logs = [orders * np.log(a) + (1 - orders) * np.log(b) for a, b in ((p, q), (1 - p, 1 - q))]
        return np.asarray(np.logaddexp(*logs) / (orders - 1))
