"""Exchanges with liars, for tests: journals that can be watched."""

from __future__ import annotations

from typing import Any

import numpy as np

from secfed.attack import scene
from secfed.attack.liars import BOUND, Liar
from secfed.attack.liars import LyingExchange as Played
from secfed.crypto.fixedpoint import FixedPoint
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

    @property
    def attempts(self) -> int:
        """How many attempts were begun."""
        return len({attempt for _, attempt, _ in self.asked})

    def adds(self, site: str, value: float) -> None:
        """Let a site add this to every element, whatever its bound."""
        rule = FixedPoint.choose(bound=BOUND, bits=32, sites=self.layout.sites)
        lanes, scalar = self.consortium.updates[site]
        self.consortium.updates[site] = (np.full_like(lanes, round(value / rule.step)), scalar)

    def assert_right(self, summed: RoundSum) -> None:
        """The totals are those of the survivors."""
        assert self.is_right(summed)


class _Consortium(WatchedConsortium):
    """Updates that are small beside the ring, as updates are."""

    update = scene.SimulatedConsortium.update
