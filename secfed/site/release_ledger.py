"""The ledger as one study at one hospital sees it: every payment names its release, so none is made twice.

A program may pay several times for one exchange (training, then metrics). It does so in the same order
every time, because it is given the same randomness every time; so release id and order name a payment.
"""

from __future__ import annotations

from secfed.dp.ledger.ledger import Ledger
from secfed.errors import WrongState


class ReleaseLedger(Ledger):
    """A :class:`~secfed.dp.ledger.ledger.Ledger` that pays for one release at a time.

    Raises:
        WrongState: a payment before a release was entered.
    """

    _release = ""
    _count = 0

    def enter(self, release: str) -> None:
        """The work of an exchange begins, or begins again."""
        self._release, self._count = release, 0

    def _payment_id(self) -> str | None:
        if not self._release:
            raise WrongState("private work outside an exchange")
        self._count += 1
        return f"{self._release}/{self._count}"

    def _note_id(self) -> str | None:
        return self._release or None
