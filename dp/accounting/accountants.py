"""The accountants: RDP, PRV and PLD behind one interface. Each refuses what it cannot account for.

* ``rdp`` (dp_accounting): Gaussian and Poisson sampled Gaussian with sensitivity C only: under "replace one"
  its library returns the add-or-remove number, which is too small. Skellam and distributed discrete Gaussian
  under every relation, by the bounds of their papers.
* ``prv`` (opacus): numerical composition with an error bound (Gopi, Lee, Wutschitz 2021); sensitivity C
  only, Gaussian mechanisms only. It composes the dominating ("remove") direction.
* ``pld`` (dp_accounting), the default: privacy loss distributions, pessimistically rounded, both directions,
  both sensitivities, true Poisson sampling.

Source: Abadi et al. 2016; Mironov, Talwar, Zhang 2019; Koskela et al. 2020; Canonne, Kamath, Steinke 2020
(RDP to epsilon); Lebeda, Regehr, Kamath, Steinke 2024 (Poisson and fixed-size sampling are not
interchangeable, nor are the two relations). The libraries take seconds to import, so it is done on use.
"""

from __future__ import annotations

import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from typing import Any, ClassVar, Final

import numpy as np

from secfed.dp.accounting import discrete_rdp
from secfed.dp.accounting.events import (
    DistributedDiscreteGaussian,
    Event,
    Gaussian,
    PoissonSampledGaussian,
    Skellam,
    compose,
)
from secfed.errors import ConfigError

# pld and prv compose by fast Fourier transforms, whose error is absolute: about 1e-16 of all probability for
# every point of the grid that delta sums over. Down to these deltas they were compared with a composition
# whose error is relative; from 1e-11 they begin to fall short of the truth.
LEAST_DELTA: Final = {"pld": 1e-10, "prv": 1e-10, "rdp": 0.0}


class Accountant(ABC):
    """Turns a composition of events of one relation into epsilon at a delta. Equal ones answer alike."""

    name: ClassVar[str]
    _library: ClassVar[str]
    _gaussians_only: ClassVar[bool]
    _covers_replacing: ClassVar[bool]

    @property
    def version(self) -> str:
        """Library and version the number comes from, with settings that change it."""
        return f"{self._library} {_version(self._library)}{self._settings()}"

    def _settings(self) -> str:
        return ""

    @property
    def least_delta(self) -> float:
        """Below this delta its numbers are not known to be upper bounds; 0 if there is no such delta."""
        return LEAST_DELTA[self.name]

    def refusal(self, event: Event) -> str | None:
        """Why this event cannot be accounted for soundly; None if it can."""
        if not isinstance(event, Gaussian | PoissonSampledGaussian):
            cannot = f"the {self.name} accountant cannot express {event.name}; use rdp"
            return cannot if self._gaussians_only else None
        if event.adjacency.factor == 1 or self._covers_replacing:
            return None
        return f"the {self.name} accountant knows add-or-remove only; use pld for replace relations"

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        """An upper bound on epsilon of all events; inf without noise, ConfigError if one is refused."""
        check_delta(delta)
        return _cached_epsilon(self, self._prepared(events), delta)

    @abstractmethod
    def _epsilon(self, events: tuple[Event, ...], delta: float) -> float: ...

    def _prepared(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Canonical events of one relation, none of them refused."""
        merged = compose(events)
        if len({event.adjacency for event in merged}) != 1:
            message = "an epsilon needs at least one event, and all under one neighbouring relation"
            raise ConfigError(message, remedy="restate the events under a relation they share")
        for event in merged:
            if reason := self.refusal(event):
                raise ConfigError(f"{event.name} under {event.adjacency}: {reason}")
        return merged


# Sites of one study often spend the same, and a ledger or an audit asks again and again.
@lru_cache(maxsize=4096)
def _cached_epsilon(accountant: Accountant, events: tuple[Event, ...], delta: float) -> float:
    return accountant._epsilon(events, delta)


_version = cache(metadata.version)


@dataclass(frozen=True)
class Rdp(Accountant):
    """Renyi differential privacy on a grid of orders."""

    name, _library = "rdp", "dp-accounting"
    _gaussians_only = False
    _covers_replacing = False

    # Fractional orders matter at large epsilon, large ones at tiny epsilon.
    orders: ClassVar[Any] = np.array(
        [1 + x / 10 for x in range(1, 100)] + [*range(11, 64)] + [2**k for k in range(6, 12)]
    )

    def _epsilon(self, events: tuple[Event, ...], delta: float) -> float:
        from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

        total = self.divergences(events)
        return math.inf if np.isinf(total).all() else float(compute_epsilon(self.orders, total, delta)[0])

    def divergences(self, events: Sequence[Event]) -> Any:
        """Of all events, none of them refused, per order; infinite without noise."""
        total = np.zeros_like(self.orders)
        for event in events:
            if isinstance(event, Skellam):
                total += event.times * discrete_rdp.skellam(self.orders, event)
            elif isinstance(event, DistributedDiscreteGaussian):
                total += event.times * discrete_rdp.distributed_gaussian(self.orders, event)
            else:
                total += event.times * _gaussian_divergence(event.repeated(1), tuple(self.orders))
        return total


# With every payment a ledger has the same mechanisms, with a few steps more each time.
@lru_cache(maxsize=256)
def _gaussian_divergence(event: Event, orders: tuple[float, ...]) -> Any:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    multiplier, rate = _gaussian_parameters(event)
    inner = dp_accounting.GaussianDpEvent(multiplier)
    sampled = inner if rate == 1.0 else dp_accounting.PoissonSampledDpEvent(rate, inner)
    library = RdpAccountant(orders, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    logger = logging.getLogger("absl")  # names every order that it leaves out, which is sound
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        library.compose(dp_accounting.SelfComposedDpEvent(sampled, event.times))
    finally:
        logger.setLevel(level)
    return library.rdp


@dataclass(frozen=True)
class Prv(Accountant):
    """Privacy random variables; the error in epsilon is bounded by ``epsilon_error`` and included."""

    name, _library = "prv", "opacus"
    _gaussians_only = True
    _covers_replacing = False
    epsilon_error: ClassVar[float] = 0.01

    def _settings(self) -> str:
        return f", epsilon error {self.epsilon_error}"

    def _epsilon(self, events: tuple[Event, ...], delta: float) -> float:
        parameters = [_gaussian_parameters(event) for event in events]
        if any(multiplier == 0 for multiplier, _ in parameters):
            return math.inf
        from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = [(*one, event.times) for one, event in zip(parameters, events, strict=True)]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # Its densities overflow harmlessly in the far tails, and it warns about RDP orders it only
            # uses to size its grid; the result is checked below instead.
            warnings.simplefilter("ignore")
            try:
                found = float(accountant.get_epsilon(delta, eps_error=self.epsilon_error))
            except (RuntimeError, ValueError) as problem:
                raise ConfigError(f"the prv accountant gave up: {problem}", remedy="use pld") from problem
        if not math.isfinite(found):
            raise ConfigError("the prv accountant found no finite epsilon", remedy="use pld")
        return max(found, 0.0)


@dataclass(frozen=True)
class Pld(Accountant):
    """Privacy loss distributions, discretised upwards to multiples of ``interval``.

    The result is an upper bound at every interval. At 1e-3 it is within 0.1 % of that at 1e-4 for the usual
    settings, and several times quicker; with tens of thousands of steps at a tiny rate it can be 5 % looser.
    """

    name, _library = "pld", "dp-accounting"
    _gaussians_only = True
    _covers_replacing = True
    interval: float = 1e-3

    def _settings(self) -> str:
        return f", interval {self.interval:g}"

    def _epsilon(self, events: tuple[Event, ...], delta: float) -> float:
        composed = self.composed(events)
        return math.inf if composed is None else float(composed.get_epsilon_for_delta(delta))

    def composed(self, events: Sequence[Event], onto: Any = None) -> Any:
        """The distribution of events in canonical form on top of another; None without noise."""
        from dp_accounting.pld import privacy_loss_distribution as library

        # Zeroing a site's contribution has the numbers of add-or-remove (specification, section 8).
        replace = events[0].adjacency.factor == 2
        total = library.identity(self.interval) if onto is None else onto
        for event in events:
            multiplier, rate = _gaussian_parameters(event)
            if multiplier == 0:
                return None
            if rate == 1.0:  # Gaussians compose to a Gaussian
                sigma = multiplier / math.sqrt(event.times)
                total = total.compose(_one_step(sigma, 1.0, self.interval, replace))
            else:
                step = _one_step(multiplier, rate, self.interval, replace)
                total = total.compose(step.self_compose(event.times))
        return total


@lru_cache(maxsize=64)
def _one_step(multiplier: float, rate: float, interval: float, replace: bool) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as library

    relation = NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE
    return library.from_gaussian_mechanism(
        standard_deviation=multiplier,
        value_discretization_interval=interval,
        sampling_prob=rate,
        neighboring_relation=relation,
    )


def _gaussian_parameters(event: Event) -> tuple[float, float]:
    if isinstance(event, Gaussian):
        return event.noise_multiplier, 1.0
    if isinstance(event, PoissonSampledGaussian):
        return event.noise_multiplier, event.sampling_rate
    raise ConfigError(f"{event.name} is not a Gaussian mechanism")


def check_delta(delta: float) -> None:
    """Raises: ConfigError: not a delta."""
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta = {delta} is not between 0 and 1")


def check_epsilon(epsilon: float) -> None:
    """Raises: ConfigError: not an epsilon."""
    if not (epsilon >= 0.0 and math.isfinite(epsilon)):
        raise ConfigError(f"epsilon = {epsilon} is not a finite number of at least 0")


def below_least(name: str, delta: float) -> ConfigError:
    """The refusal of a delta below the least of an accountant."""
    least = LEAST_DELTA[name]
    return ConfigError(
        f"privacy.delta: {delta:g} is below {least:g}, the smallest delta at which accountant {name!r} gives "
        "an upper bound",
        remedy=f"raise delta to {least:g} or more, in the study or in the budget that states it; "
        'privacy.accountant = "rdp" has no such limit, and covers the relation add-or-remove-record',
    )
