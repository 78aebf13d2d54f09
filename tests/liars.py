"""Exchanges with liars, for tests: journals that can be watched."""

from __future__ import annotations

from typing import Any

from secfed.attack import scene
from secfed.attack.liars import Liar
from secfed.attack.liars import LyingExchange as Played
from secfed.server.round import RoundSum
from tests.journals import WatchedJournal
from tests.simulator import Consortium as WatchedConsortium

__all__ = ["Liar", "LyingExchange"]


class LyingExchange(Played):
    """See :class:`secfed.attack.liars.LyingExchange`."""

    consortium: WatchedConsortium  # type: ignore[assignment]

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, consortium=_Consortium, **options)

    def journal(self, site: str) -> WatchedJournal:
        """What one site noted."""
        return self.consortium.journals[site]

    def assert_right(self, summed: RoundSum) -> None:
        """The totals are those of the survivors."""
        assert self.is_right(summed)


class _Consortium(WatchedConsortium):
    """Updates that are small beside the ring, as updates are."""

    update = scene.SimulatedConsortium.update
