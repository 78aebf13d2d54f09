"""What one site pays for in one study, and notes as unprotected, before it works on an exchange.

The ledger is written, and on the disk, before any record is touched. A budget that does not cover the
work raises :class:`~secfed.errors.BudgetExceeded`: the site is then a dropout like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from secfed.algorithms.framework.base import Algorithm, SiteProgram, without_noise
from secfed.dp.ledger.ledger import Ledger
from secfed.dp.settings import PrivacySection
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.dp.training.unit_sums import UnitSums
from secfed.pipeline.noised_algorithm import NoisedAlgorithm
from secfed.site.parts import Draws
from secfed.wire.layout import Exchange


@dataclass
class SitePrivacy:
    """One site's privacy in one study."""

    settings: PrivacySection  # the study's ``[privacy]``
    algorithm: Algorithm  # from :func:`secfed.pipeline.noised_algorithm.with_privacy`
    ledger: Ledger  # of the data set that the study uses
    study: str  # study id
    seed: int  # the study's seed; decides groups of records only
    draws: Draws  # gives sampling and noise of local steps

    def __post_init__(self) -> None:
        self._noised = self.algorithm if isinstance(self.algorithm, NoisedAlgorithm) else None
        self.refused = 0  # rounds that a budget refused
        self.local: LocalPrivacy | UnitSums | None = None
        if self.settings.noise == "sum":
            self.local = UnitSums(self.settings, seed=self.seed, random=self.draws.local)
        elif self.settings.in_local_steps:
            self.local = LocalPrivacy(
                self.settings, self.ledger, study=self.study, seed=self.seed, random=self.draws.local
            )

    def prepare(self, program: SiteProgram) -> None:
        """Give the program what it needs; before its first work."""
        if isinstance(self.local, UnitSums):
            program.use_unit_sums(self.local)
        elif self.local is not None:
            program.use_privacy(self.local)

    def begin(self, round_number: int, exchange: Exchange) -> None:
        """Pay for noise in the sum, note fields without noise, and say where local steps belong.

        Raises:
            BudgetExceeded: a budget does not cover it; nothing was touched.
            TranscriptError: the ledger cannot be written; nothing was touched.
        """
        where = {"study": self.study, "round_number": round_number, "exchange": exchange.name}
        event = None if self._noised is None else self._noised.event_of(exchange)
        if event is not None:
            self.ledger.spend(event, **where)  # type: ignore[arg-type]  # the three keys of one place
        fields = without_noise(self.algorithm, exchange, self.settings)
        if fields:
            values = sum(one.elements for one in exchange.layout.fields if one.name in fields)
            self.ledger.note_unprotected(fields, values=values, **where)  # type: ignore[arg-type]  # as above
        if self.local is not None:
            self.local.enter(round_number, exchange.name)

    def heads(self) -> dict[str, str]:
        """Data set to the ledger's head, for the transcript."""
        return {self.ledger.dataset: self.ledger.head.hex()}
