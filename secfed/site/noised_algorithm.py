"""Site-level privacy for any algorithm: its exchanges, with room for noise, and the noise of each.

The algorithm is left as it is. Its layouts are widened so that clipped contributions and noise fit
(:meth:`secfed.dp.mechanisms.noise.SiteNoise.plan`); a site clips what the program contributed and adds its
share of
the noise; whoever decodes a total checks that its norm is possible before the server program sees it.
All parties derive the same from the study.

Source of the mechanism: :mod:`secfed.dp.mechanisms.noise`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from secfed.algorithms.framework.base import Algorithm, Metrics, ServerProgram, SiteProgram
from secfed.dp.accounting.events import Event
from secfed.dp.accounting.interface import accountant, calibrate
from secfed.dp.mechanisms.noise import SiteNoise
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError, RangeError, RoundAborted
from secfed.wire.layout import Exchange, State, Totals


class NoisedAlgorithm(Algorithm):
    """An algorithm whose sums carry site-level noise.

    Args:
        inner: the algorithm.
        settings: the study's ``[privacy]``, with ``unit = "site"``.
        rounds: training rounds; one closing evaluation follows.
        min_survivors: the smallest survivor set that may be summed; every site insists on it.
        colluders: sites whose noise does not count.

    Raises:
        ConfigError: an exchange that mixes protected and unprotected fields, or that noise does not fit.
    """

    def __init__(
        self, inner: Algorithm, settings: PrivacySection, rounds: int, *, min_survivors: int, colluders: int
    ) -> None:
        self.inner, self._settings, self._rounds = inner, settings, rounds
        self._survivors, self._colluders = min_survivors, colluders
        planned = Counter(
            exchange
            for number in range(1, rounds + 2)
            for exchange in inner.exchanges(number)
            if self._is_noised(exchange)
        )
        if not planned:
            raise ConfigError(
                "privacy.unit: no exchange of this study would carry noise", remedy="remove [privacy]"
            )
        self.releases = sum(planned.values())

        def events(multiplier: float) -> Sequence[Event]:
            return [self._event(self._plan(exchange, multiplier), n) for exchange, n in planned.items()]

        self.noise_multiplier = calibrate(
            settings.epsilon, settings.delta, events, preferred=accountant(settings.accountant)
        )
        self._noises: dict[Exchange, SiteNoise] = {
            exchange: self._plan(exchange, self.noise_multiplier) for exchange in planned
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

    def _plan(self, exchange: Exchange, multiplier: float) -> SiteNoise:
        return SiteNoise.plan(
            exchange.layout,
            clip_norm=self._settings.clip_norm,
            noise_multiplier=multiplier,
            min_survivors=self._survivors,
            colluders=self._colluders,
            kind=self._settings.noise,
        )

    def _event(self, noise: SiteNoise, releases: int) -> Event:
        return noise.event(releases, self._settings.privacy_unit.adjacency)

    def inner_exchange(self, exchange: Exchange) -> Exchange:
        """The algorithm's own exchange behind one with noise."""
        return self._inner_of.get(exchange, exchange)

    def noise_of(self, exchange: Exchange) -> SiteNoise | None:
        """The noise of an exchange, None if it leaves without."""
        return self._noises.get(self.inner_exchange(exchange))

    def event_of(self, exchange: Exchange) -> Event | None:
        """What one sum of this exchange spends."""
        noise = self.noise_of(exchange)
        return None if noise is None else self._event(noise, 1)

    def unprotected(self, exchange: Exchange) -> Sequence[str]:
        """Fields that leave without noise."""
        return self.inner.unprotected(self.inner_exchange(exchange))

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

    def server(self) -> ServerProgram:
        """The algorithm's server program behind the norm test."""
        return _Checked(self, self.inner.server())

    def site(self, site_id: str) -> SiteProgram:
        """The algorithm's site program, which knows nothing of noise."""
        return self.inner.site(site_id)


class _Checked(ServerProgram):
    """A server program whose totals were tested first."""

    def __init__(self, algorithm: NoisedAlgorithm, inner: ServerProgram) -> None:
        self._algorithm, self._inner = algorithm, inner

    def begin(self, model: State) -> None:
        """As the algorithm's."""
        self._inner.begin(model)

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Test, then hand on.

        Raises:
            RoundAborted: a total that honest sites cannot have made; the state is unchanged.
        """
        noise = self._algorithm.noise_of(exchange)
        if noise is not None:
            try:
                noise.check_totals(totals)
            except RangeError as error:
                raise RoundAborted(error.message, remedy=error.remedy) from None
        self._inner.absorb(round_number, self._algorithm.inner_exchange(exchange), totals)

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """As the algorithm's."""
        return self._inner.broadcast(round_number, self._algorithm.inner_exchange(exchange))

    def model(self) -> State:
        """As the algorithm's."""
        return self._inner.model()

    def metrics(self) -> Mapping[int, Metrics]:
        """As the algorithm's."""
        return self._inner.metrics()

    def save(self) -> State:
        """As the algorithm's."""
        return self._inner.save()

    def load(self, state: State) -> None:
        """As the algorithm's."""
        self._inner.load(state)
