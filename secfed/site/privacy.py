"""What one site does about privacy in one study: pays before it works, adds noise, and writes down the rest.

    begin(round, exchange)   noise in the sum: pay now; fields without noise: write them down;
                             local steps: say where they belong, so that the program's steps are paid
    guard(exchange, ...)     clip what the program contributed, and wrap it so that it is read with noise

The ledger is written, and on the disk, before any record is touched. A budget that does not cover the
work raises :class:`~secfed.errors.BudgetExceeded`: the site is then a dropout like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from secfed.algorithms.framework.base import Algorithm, SiteProgram
from secfed.config.cohort_rules import min_survivors
from secfed.dp.accounting.events import Event
from secfed.dp.accounting.unit import Unit
from secfed.dp.ledger.ledger import Ledger
from secfed.dp.mechanisms.noise import SiteNoise
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.settings import PrivacySection
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.errors import ConfigError
from secfed.site.noised_algorithm import NoisedAlgorithm
from secfed.study.study import Study
from secfed.wire.layout import Exchange


def with_privacy(study: Study, algorithm: Algorithm, sites: int) -> Algorithm:
    """The algorithm as the study's ``[privacy]`` wants it.

    Args:
        study: the study.
        algorithm: built from it.
        sites: enrolled sites.

    Raises:
        ConfigError: the algorithm cannot work under that unit.
    """
    settings = study.privacy
    if settings is None:
        return algorithm
    if settings.unit not in algorithm.private_units:
        raise ConfigError(
            f"privacy.unit: {study.algorithm.name} does not train with the {settings.unit} as unit",
            remedy=f"it supports: {', '.join(algorithm.private_units) or 'no unit; remove [privacy]'}",
        )
    if settings.in_local_steps:
        return algorithm
    return NoisedAlgorithm(
        algorithm,
        settings,
        study.rounds,
        min_survivors=min_survivors(study.protection, sites),
        colluders=study.protection.colluders_for(sites),
    )


def first_payment(algorithm: Algorithm, rounds: int) -> Event | None:
    """What a study pays first, where that does not depend on the site's records; None where it does.

    Args:
        algorithm: from :func:`with_privacy`.
        rounds: training rounds; one closing evaluation follows.
    """
    if not isinstance(algorithm, NoisedAlgorithm):
        return None
    planned = (each for number in range(1, rounds + 2) for each in algorithm.exchanges(number))
    return next((event for event in map(algorithm.event_of, planned) if event is not None), None)


@dataclass
class SitePrivacy:
    """One site's privacy in one study.

    Attributes:
        settings: the study's ``[privacy]``.
        algorithm: from :func:`with_privacy`.
        ledger: of the data set that the study uses.
        study: study id.
        seed: the study's seed; decides groups of records only.
        random: (round, exchange) -> source of sampling and noise for local steps, fresh for each.
        noise_key: (round, exchange) -> 32 bytes for the noise in one sum: fresh for each, and secret; all
            attempts of an exchange carry the same noise.
    """

    settings: PrivacySection
    algorithm: Algorithm
    ledger: Ledger
    study: str
    seed: int
    random: Callable[[int, str], SecureRandom]
    noise_key: Callable[[int, str], bytes] = field(repr=False)

    def __post_init__(self) -> None:
        self._noised = self.algorithm if isinstance(self.algorithm, NoisedAlgorithm) else None
        self.refused = 0  # rounds that a budget refused
        self.local: LocalPrivacy | None = None
        if self.settings.in_local_steps:
            self.local = LocalPrivacy(
                self.settings, self.ledger, study=self.study, seed=self.seed, random=self.random
            )

    def prepare(self, program: SiteProgram) -> SiteProgram:
        """Give the program what it needs; before its first work.

        Raises:
            ConfigError: a program that cannot train under privacy.
        """
        if self.local is not None:
            program.use_privacy(self.local)
        return program

    def begin(self, round_number: int, exchange: Exchange) -> None:
        """Before the program works on an exchange.

        Raises:
            BudgetExceeded: a budget does not cover it; nothing was touched.
            TranscriptError: the ledger cannot be written; nothing was touched.
        """
        where = {"study": self.study, "round_number": round_number, "exchange": exchange.name}
        event = None if self._noised is None else self._noised.event_of(exchange)
        if event is not None:
            self.ledger.spend(event, **where)  # type: ignore[arg-type]  # the three keys of one place
        fields = self.algorithm.unprotected(exchange)
        if fields:
            self.ledger.note_unprotected(fields, **where)  # type: ignore[arg-type]  # as above
        if self.local is not None:
            self.local.enter(round_number, exchange.name)

    def own_exchange(self, exchange: Exchange) -> Exchange:
        """The exchange as the algorithm's program knows it."""
        return exchange if self._noised is None else self._noised.inner_exchange(exchange)

    def noise_of(self, exchange: Exchange) -> SiteNoise | None:
        """The noise that this site adds to an exchange."""
        return None if self._noised is None else self._noised.noise_of(exchange)

    def heads(self) -> dict[str, str]:
        """Data set to the ledger's head, for the transcript."""
        return {self.ledger.dataset: self.ledger.head.hex()}

    @property
    def protects(self) -> Unit:
        """Whom the study's guarantee hides."""
        return self.settings.budgeted
