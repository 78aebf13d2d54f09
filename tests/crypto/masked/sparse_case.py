"""Attempts in a sparse graph that is weak enough for a few sites to have strangers among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from secfed.crypto.codec import Buffer
from secfed.crypto.masked.graph import Holders, SparseGraph
from secfed.crypto.refusals import Refusal
from tests.simulator import Attempt, Consortium, SeededEntropy

SITE = "hospital-0"


@dataclass(frozen=True)
class Few(SparseGraph):
    """Too few holders to be safe, so that few sites are enough to have strangers among them."""

    dropout_rate: float = 0.0  # the server takes every threshold
    count: int = 3
    threshold: int = 2

    def holders(self, enrolled: int, least: int, colluders: int, advertised: int) -> Holders:
        return Holders(self.count, self.threshold)


def sparse(sites: int = 9, *, graph: SparseGraph | None = None, threshold: int = 6) -> Consortium:
    return Consortium(sites, graph=Few() if graph is None else graph, threshold=threshold)


def attempt_of(consortium: Consortium, draw: str = "a", **options: Any) -> Attempt:
    """An attempt whose graph depends on ``draw`` only."""
    entropies = {name: {"entropy": SeededEntropy(draw, name)} for name in consortium.names}
    return consortium.attempt(contributions=entropies, **options)


def peers_of(attempt: Attempt, site: str = SITE) -> Any:
    return next(s.peers for s in attempt.states[site] if hasattr(s, "peers"))


def refused_by_a_copy(attempt: Attempt, site: str, message: Buffer, refusal: Refusal) -> None:
    """As ``Attempt.refused``, and the session can be tried once more."""
    session = attempt.sites[site]
    state = session.state
    attempt.refused(site, message, refusal)
    session.state = state
