"""The ledger as one study at one hospital sees it: every payment names its release, so none is made twice.

A program may pay several times for one exchange (training, then metrics). It does so in the same order
every time, because it is given the same randomness every time; so release id and order name a payment.
"""

from __future__ import annotations

from collections.abc import Sequence

from secfed.dp.accounting.events import Event
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import WrongState
from secfed.records.hash_chain import Entry


class ReleaseLedger(Ledger):
    """A :class:`~secfed.dp.ledger.ledger.Ledger` that pays for one release at a time."""

    _release = ""
    _count = 0

    def enter(self, release: str) -> None:
        """The work of an exchange begins, or begins again."""
        self._release, self._count = release, 0

    def spend(
        self,
        event: Event,
        *,
        study: str,
        round_number: int,
        exchange: str,
        record_private: bool = False,
        release: str | None = None,
    ) -> Entry:
        """Pay for one event of the release that was entered; see :meth:`Ledger.spend`.

        Raises:
            WrongState: no release was entered.
            BudgetExceeded, TranscriptError: see there.
        """
        if not self._release:
            raise WrongState("private work outside an exchange")
        self._count += 1
        return super().spend(
            event,
            study=study,
            round_number=round_number,
            exchange=exchange,
            record_private=record_private,
            release=release or f"{self._release}/{self._count}",
        )

    def note_unprotected(
        self,
        fields: Sequence[str],
        *,
        study: str,
        round_number: int,
        exchange: str,
        release: str | None = None,
    ) -> Entry:
        """See :meth:`Ledger.note_unprotected`; once for each release."""
        return super().note_unprotected(
            fields,
            study=study,
            round_number=round_number,
            exchange=exchange,
            release=release or self._release or None,
        )
