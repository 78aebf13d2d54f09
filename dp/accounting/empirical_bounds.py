"""Lower bounds on epsilon from attacks: what somebody who guesses proves about a mechanism.

Differential privacy limits how often a guess may be "there" where a record is (a hit) for a given rate of
false alarms, so guesses that are too good refute the claim; an attack that finds nothing proves nothing.

* :func:`epsilon_shown` holds for every mechanism, and cannot come near the truth where that rests on rare
  outcomes, as with Gaussian noise.
* :func:`gaussian_epsilon_shown` is for Gaussian noise, whose trade-off is one number mu, the distance of the
  two worlds in standard deviations; epsilon follows from mu exactly. It is never below the first bound.

A bound is above the truth with probability at most ``1 - confidence``, if the trials are independent and the
rule for guessing was fixed before anybody looked at them.

Source: Jagielski, Ullman, Oprea 2020 (Clopper-Pearson limits); Dong, Roth, Su 2022 (corollary 2.13); Nasr et
al. 2023 ("Tight auditing").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import optimize, special

from secfed.dp.accounting.accountants import check_delta, check_epsilon
from secfed.errors import ConfigError


@dataclass(frozen=True)
class Guesses:
    """How often an attacker said "it is there"; ConfigError for counts that cannot be."""

    hits: int  # said so, and it was
    present: int  # trials in which it was there
    false_alarms: int  # said so, and it was not
    absent: int  # trials in which it was not there

    def __post_init__(self) -> None:
        if not (0 <= self.hits <= self.present and 0 <= self.false_alarms <= self.absent):
            raise ConfigError(
                f"{self.hits} hits in {self.present} trials and {self.false_alarms} false alarms in "
                f"{self.absent} cannot be counts of guesses",
                remedy="count each trial once, and only guesses of trials",
            )

    @property
    def trials(self) -> int:
        """Guesses in all."""
        return self.present + self.absent

    def limits(self, confidence: float) -> tuple[float, float]:
        """The least rate of hits and the largest rate of false alarms that the counts allow.

        Both hold at once with probability ``confidence`` (Bonferroni: each errs with half of the rest).
        """
        if not 0.0 < confidence < 1.0:
            message = f"confidence = {confidence} is not strictly between 0 and 1"
            raise ConfigError(message, remedy="use, for example, 0.99")
        error = (1.0 - confidence) / 2.0
        # Clopper and Pearson 1934: exact for every count, also for none and for all.
        least = most = 0.0
        if self.hits:
            least = float(special.betaincinv(self.hits, self.present - self.hits + 1, error))
        if self.false_alarms == self.absent:
            most = 1.0
        else:
            quiet = self.absent - self.false_alarms
            most = 1.0 - float(special.betaincinv(quiet, self.false_alarms + 1, error))
        return least, most


def epsilon_shown(guesses: Guesses, delta: float, *, confidence: float) -> float:
    """The epsilon that these guesses prove of any mechanism; 0 where they prove nothing.

    Differential privacy says hits <= e^epsilon * false alarms + delta, and the same of the two ways to say
    "it is not there". The larger of both answers counts.
    """
    check_delta(delta)
    hits, alarms = guesses.limits(confidence)
    ratios = ((hits, alarms), (1.0 - alarms, 1.0 - hits))
    return max(math.log((often - delta) / rare) if often > delta + rare else 0.0 for often, rare in ratios)


def gaussian_epsilon_shown(guesses: Guesses, delta: float, *, confidence: float) -> float:
    """The epsilon that these guesses prove of a mechanism with Gaussian noise; 0 where they prove nothing."""
    check_delta(delta)
    hits, alarms = guesses.limits(confidence)
    # Both ways to guess give the same mu, as the normal distribution is symmetric.
    distance = float(special.ndtri(hits) - special.ndtri(alarms))
    return gaussian_epsilon(distance, delta) if distance > 0.0 else 0.0


def gaussian_delta(distance: float, epsilon: float) -> float:
    """Exact delta of a release with Gaussian noise whose sensitivity is ``distance`` (mu) deviations."""
    _check_distance(distance)
    check_epsilon(epsilon)
    # The product is taken in logarithms: its first factor alone would overflow.
    second = math.exp(epsilon + float(special.log_ndtr(-epsilon / distance - distance / 2.0)))
    return float(special.ndtr(-epsilon / distance + distance / 2.0)) - second


def gaussian_epsilon(distance: float, delta: float) -> float:
    """Exact epsilon of such a release at ``delta``; 0 if delta pays for all of it."""
    _check_distance(distance)
    check_delta(delta)
    if gaussian_delta(distance, 0.0) <= delta:
        return 0.0
    # Here the first term alone is delta (or epsilon is 0, which was looked at), so the root is below.
    most = distance**2 / 2.0 - distance * float(special.ndtri(delta))
    return float(optimize.brentq(lambda epsilon: gaussian_delta(distance, epsilon) - delta, 0.0, most))


def _check_distance(distance: float) -> None:
    if not (math.isfinite(distance) and distance > 0.0):
        message = f"distance = {distance} is not a positive number"
        raise ConfigError(message, remedy="state it in standard deviations")
