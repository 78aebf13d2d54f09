"""Noise in the sum for any algorithm: its exchanges, with room for noise, and the noise of each.

It hides a site, whatever the algorithm is, or one unit of a site's records where the algorithm bounds what
that adds (:meth:`~secfed.algorithms.framework.base.Algorithm.unit_bound`). The algorithm is left as it is.
Its layouts are widened so that contributions and noise fit (:meth:`SiteNoise.plan`), its exchanges pass
:func:`secfed.pipeline.order.with_noise`, and whoever decodes a total runs the same stages on it before the
server program sees it. All parties derive the same from the study.

Source of the mechanisms: :mod:`secfed.dp.mechanisms.noise`, :mod:`secfed.dp.mechanisms.unit_noise`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from secfed.algorithms.framework.base import Algorithm, Metrics, ServerProgram, SiteProgram, UnitBound
from secfed.config.cohort_rules import min_survivors
from secfed.dp.accounting.events import Event, compose
from secfed.dp.accounting.interface import accountant, calibrate
from secfed.dp.mechanisms.noise import SiteNoise
from secfed.dp.mechanisms.unit_noise import UnitNoise
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError, RangeError, RoundAborted
from secfed.pipeline.order import WITHOUT_NOISE, with_noise
from secfed.pipeline.stage import Pipeline
from secfed.study.study import Study
from secfed.wire.layout import Exchange, State, Totals


class NoisedAlgorithm(Algorithm):
    """An algorithm whose sums carry noise.

    Args:
        sites: the study's.
        min_survivors: how many sites an exchange plans for -> the smallest survivor set that may be summed;
            every site insists on it.
        colluders: sites whose noise does not count.

    Raises:
        ConfigError: an exchange that mixes protected and unprotected fields, that is not a bounded sum over
            the study's units, or that noise does not fit.
    """

    def __init__(
        self,
        inner: Algorithm,
        settings: PrivacySection,
        rounds: int,
        *,
        sites: Sequence[str],
        min_survivors: Callable[[int], int],
        colluders: int,
    ) -> None:
        self.inner, self._settings, self._rounds = inner, settings, rounds
        self._colluders = colluders
        planned, members = Counter[Exchange](), dict[Exchange, int]()
        for number in range(1, rounds + 2):
            for exchange in filter(self._is_noised, inner.exchanges(number)):
                planned[exchange] += 1
                asked = len(inner.members(number, exchange, sites))
                # The same noise in every round, so that of the round with the fewest sites.
                members[exchange] = min(asked, members.get(exchange, asked))
        self._survivors = {exchange: min_survivors(asked) for exchange, asked in members.items()}
        if not planned:
            raise ConfigError(
                "privacy.unit: no exchange of this study would carry noise", remedy="remove [privacy]"
            )
        self.releases = sum(planned.values())
        self._bounds = {exchange: self._bound(exchange, times) for exchange, times in planned.items()}
        # All releases of an exchange together get its share of 1 / multiplier^2.
        relative = {
            exchange: math.sqrt(times / self._bounds[exchange].share) for exchange, times in planned.items()
        }

        def plan(exchange: Exchange, multiplier: float) -> SiteNoise:
            return self._plan(exchange, multiplier * relative[exchange])

        def events(multiplier: float) -> Sequence[Event]:
            return [self._event(plan(exchange, multiplier), n) for exchange, n in planned.items()]

        self.noise_multiplier = calibrate(
            settings.epsilon, settings.delta, events, preferred=accountant(settings.accountant)
        )
        self._noises: dict[Exchange, SiteNoise] = {
            exchange: plan(exchange, self.noise_multiplier) for exchange in planned
        }
        self._outer = {
            exchange: replace(exchange, layout=noise.layout) for exchange, noise in self._noises.items()
        }
        self._inner_of = {outer: exchange for exchange, outer in self._outer.items()}

    def _is_noised(self, exchange: Exchange) -> bool:
        named = set(self.inner.unprotected(exchange))
        everything = {field.name for field in exchange.layout.fields}
        if named and named != everything:
            raise ConfigError(
                f"exchange {exchange.name!r}: {', '.join(sorted(named))} would leave without noise beside "
                "fields with noise",
                remedy="let the algorithm put them into an exchange of their own",
            )
        return not named

    def _bound(self, exchange: Exchange, releases: int) -> UnitBound:
        """What is hidden of a site's part: all of it, clipped, or one unit."""
        if not self._settings.hides_records:
            return UnitBound(self._settings.clip_norm, share=releases)
        bound = self.inner.unit_bound(exchange)
        if bound is None:
            raise ConfigError(
                f"privacy.noise: exchange {exchange.name!r} has no bound on what one {self._settings.unit} "
                "adds, so noise in the sum cannot hide it",
                remedy='set privacy.noise = "site", or write the algorithm\'s unit_bound',
            )
        return bound

    def _plan(self, exchange: Exchange, multiplier: float) -> SiteNoise:
        bound, settings = self._bounds[exchange], self._settings
        plan = SiteNoise.plan
        if settings.hides_records:
            plan = partial(
                UnitNoise.plan, bounds={field.name: field.bound for field in exchange.layout.fields}
            )
        return plan(
            exchange.layout,
            clip_norm=bound.norm,
            noise_multiplier=multiplier,
            min_survivors=self._survivors[exchange],
            colluders=self._colluders,
            scales=bound.scales,
            kind=settings.distribution,
        )

    def _event(self, noise: SiteNoise, releases: int) -> Event:
        return noise.event(releases, self._settings.privacy_unit.adjacency)

    def inner_exchange(self, exchange: Exchange) -> Exchange:
        """The algorithm's own exchange behind one with noise."""
        return self._inner_of.get(exchange, exchange)

    def pipeline(self, exchange: Exchange) -> Pipeline:
        """The stages of an exchange."""
        noise = self._noises.get(self.inner_exchange(exchange))
        return WITHOUT_NOISE if noise is None else with_noise(noise)

    def event_of(self, exchange: Exchange) -> Event | None:
        """What one sum of this exchange spends; None if it leaves without noise."""
        noise = self._noises.get(self.inner_exchange(exchange))
        return None if noise is None else self._event(noise, 1)

    def unprotected(self, exchange: Exchange) -> Sequence[str]:
        """Fields that leave without noise."""
        return self.inner.unprotected(self.inner_exchange(exchange))

    def left_out(self) -> Sequence[str]:
        """As the algorithm's."""
        return self.inner.left_out()

    def field_words(self) -> Mapping[str, str]:
        """The algorithm's."""
        return self.inner.field_words()

    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        """The algorithm's exchanges, with room for noise."""
        return tuple(self._outer.get(item, item) for item in self.inner.exchanges(round_number))

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[str]) -> Sequence[str]:
        """The algorithm's cohort."""
        return self.inner.members(round_number, self.inner_exchange(exchange), sites)

    def contributors(self, round_number: int, exchange: Exchange) -> Sequence[tuple[Collection[str], int]]:
        """Who may add more than zeros to each part: as many of them are needed with noise as without."""
        return self.inner.contributors(round_number, self.inner_exchange(exchange))

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """As the algorithm has it."""
        self.inner.check_broadcast(round_number, self.inner_exchange(exchange), broadcast)

    def model_in(self, broadcast: State) -> State:
        """As the algorithm has it."""
        return self.inner.model_in(broadcast)

    def builds_on(self, round_number: int, exchange: Exchange) -> Sequence[str]:
        """As the algorithm's; names are the same with noise."""
        return self.inner.builds_on(round_number, self.inner_exchange(exchange))

    def server(self) -> ServerProgram:
        """The algorithm's server program behind the stages on totals."""
        return _StagedServer(self, self.inner.server())

    def site(self, site_id: str) -> SiteProgram:
        """The algorithm's site program, which knows nothing of noise."""
        return self.inner.site(site_id)


class _StagedServer(ServerProgram):
    """A server program that is given what the stages make of a total."""

    def __init__(self, algorithm: NoisedAlgorithm, inner: ServerProgram) -> None:
        self._algorithm, self._inner = algorithm, inner

    def begin(self, model: State) -> None:
        self._inner.begin(model)

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Pass the stages, then hand on."""
        try:
            totals = self._algorithm.pipeline(exchange).on_total(exchange, totals)
        except RangeError as error:
            raise RoundAborted(error.message, remedy=error.remedy) from None
        self._inner.absorb(round_number, self._algorithm.inner_exchange(exchange), totals)

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        return self._inner.broadcast(round_number, self._algorithm.inner_exchange(exchange))

    def model(self) -> State:
        return self._inner.model()

    def metrics(self) -> Mapping[int, Metrics]:
        return self._inner.metrics()

    def save(self) -> State:
        return self._inner.save()

    def load(self, state: State) -> None:
        self._inner.load(state)


def with_privacy(study: Study, algorithm: Algorithm, sites: Sequence[str]) -> Algorithm:
    """The algorithm as the study's ``[privacy]`` wants it; ``sites`` are all that the study names.

    Raises:
        ConfigError: the algorithm cannot work under that unit.
    """
    settings = study.privacy
    if settings is None:
        return algorithm
    name = study.algorithm.name
    if settings.noise == "sum":
        if settings.unit not in algorithm.summed_units:
            units = ", ".join(algorithm.summed_units)
            raise ConfigError(
                f"privacy.noise: {name} has no sums whose noise could hide one {settings.unit}",
                remedy=f"set privacy.unit to one of: {units}"
                if units
                else 'set privacy.noise = "site", or use an algorithm such as fedsgd or canonical',
            )
    elif settings.unit not in algorithm.private_units:
        both = {*algorithm.private_units, *algorithm.summed_units}
        raise ConfigError(
            f"privacy.unit: {name} does not train with the {settings.unit} as unit",
            remedy=f"it supports: {', '.join(algorithm.private_units) or 'no unit; remove [privacy]'}"
            if settings.unit not in both
            else 'set privacy.noise = "sum"',
        )
    if settings.in_local_steps:
        return algorithm
    colluders = study.protection.colluders_for(len(sites))
    return NoisedAlgorithm(
        algorithm,
        settings,
        study.rounds,
        sites=sites,
        min_survivors=partial(min_survivors, study.protection, len(sites)),
        # Every hospital sees the sum and knows its own share: one of them at least reads what another hides.
        colluders=max(1, colluders) if settings.hides_records else colluders,
    )


def pipeline_of(algorithm: Algorithm, exchange: Exchange) -> Pipeline:
    """The stages of one of the algorithm's exchanges."""
    return algorithm.pipeline(exchange) if isinstance(algorithm, NoisedAlgorithm) else WITHOUT_NOISE


def inner_exchange(algorithm: Algorithm, exchange: Exchange) -> Exchange:
    """The exchange as the algorithm's own programs know it."""
    return algorithm.inner_exchange(exchange) if isinstance(algorithm, NoisedAlgorithm) else exchange


def noise_payments(algorithm: Algorithm, rounds: int, site: str, sites: Sequence[str]) -> tuple[Event, ...]:
    """All that a site pays for noise in the sums of a whole study; empty where noise is not in the sum.

    ``sites`` are the study's, in roster order.
    """
    if not isinstance(algorithm, NoisedAlgorithm):
        return ()
    asked = (
        exchange
        for number in range(1, rounds + 2)
        for exchange in algorithm.exchanges(number)
        if site in algorithm.members(number, exchange, sites)
    )
    return compose(event for event in map(algorithm.event_of, asked) if event is not None)
