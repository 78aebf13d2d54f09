"""Which protections there are, and the one place where a study's is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from secfed.algorithms.framework.base import Algorithm
from secfed.config.protections import CLOSED, TRAITS, ProtectionTraits
from secfed.config.sections import ProtectionSection
from secfed.crypto.attempt import SiteContribution
from secfed.crypto.identity import Roster
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.lanes import VectorShape
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.server import MaskedServer
from secfed.crypto.messages import Specification
from secfed.protection.closed import Closed
from secfed.protection.encrypted import Encrypted
from secfed.protection.interface import Protection, ServerSession, SiteSession
from secfed.protection.plain import PlainServer, PlainSite
from secfed.wire.layout import Exchange


@dataclass(frozen=True)
class VectorSums:
    """Sums of ring integers that the aggregator reads: plain or masked."""

    traits: ProtectionTraits
    site_session: Callable[[SiteContribution], SiteSession]
    server_session: Callable[[Specification, Roster, VectorShape], ServerSession]

    def site(self, exchange: Exchange, contribution: SiteContribution) -> SiteSession:  # noqa: ARG002
        """One site's half."""
        return self.site_session(contribution)

    def server(self, exchange: Exchange, spec: Specification, roster: Roster) -> ServerSession:
        """The aggregator's half."""
        return self.server_session(spec, roster, exchange.layout.shape)

    def upload_bytes(self, exchange: Exchange) -> int:
        """The vector as it is."""
        return exchange.layout.shape.wire_bytes

    def sum_bytes(self, exchange: Exchange) -> int:  # noqa: ARG002
        """Sums stay at the aggregator."""
        return 0


PLAIN: Final = VectorSums(TRAITS["plain"], PlainSite, PlainServer)
MASKED: Final = VectorSums(TRAITS["masked"], MaskedSite, MaskedServer)


def _masked(settings: ProtectionSection) -> VectorSums:
    """The same states in either graph; every party takes graph and cipher from its own copy of the study."""
    graph, cipher = settings.sparse_graph, settings.cipher
    if graph is None and cipher is StreamCipher.CHACHA20:
        return MASKED

    def site(contribution: SiteContribution) -> MaskedSite:
        return MaskedSite(replace(contribution, cipher=cipher), graph)

    return VectorSums(TRAITS["masked"], site, partial(MaskedServer, graph=graph, cipher=cipher))


def make_protection(
    settings: ProtectionSection, algorithm: Algorithm, rounds: int, sites: Sequence[str]
) -> Protection:
    """The protection of a study, the same at every party because it depends on the study alone.

    Raises:
        ConfigError: no encryption parameters fit the study, or the key holder is not a site.
    """
    return _MAKERS[settings.kind](settings, algorithm, rounds, sites)


_MAKERS: Final[dict[str, Callable[[ProtectionSection, Algorithm, int, Sequence[str]], Protection]]] = {
    "plain": lambda *_: PLAIN,
    "masked": lambda settings, *_: _masked(settings),
    CLOSED: Closed.derive,
    "encrypted": Encrypted.derive,
}
