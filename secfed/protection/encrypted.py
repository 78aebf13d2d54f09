"""Encrypted protection of one study: ring and key holder, which all parties derive, and both halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from secfed.algorithms.framework.base import Algorithm
from secfed.config.protections import TRAITS, ProtectionTraits
from secfed.config.sections import ProtectionSection
from secfed.crypto.attempt import SiteContribution
from secfed.crypto.encrypted.bfv import Parameters, Ring, choose_ring, fit
from secfed.crypto.identity import Roster
from secfed.crypto.message_base import U32, Digest
from secfed.crypto.messages import Specification
from secfed.crypto.record import Record
from secfed.errors import ConfigError, RangeError, WrongState
from secfed.wire.layout import Exchange

# TenSEAL is an optional dependency: what needs it is imported where it is used.
if TYPE_CHECKING:
    from secfed.crypto.encrypted.client import SiteCipher
    from secfed.crypto.encrypted.session import EncryptedServer, EncryptedSite


@dataclass(frozen=True)
class Encrypted:
    """Homomorphic encryption: the aggregator adds ciphertexts that only the sites can read.

    Attributes:
        holder: the site that makes the keys.
        processes: worker processes for encryption at each site; 0 works in the site's own.
        cipher: gives the cipher under the study key; None at the aggregator, which has none.
    """

    traits: ClassVar[ProtectionTraits] = TRAITS["encrypted"]

    ring: Ring
    holder: str
    processes: int = 0
    cipher: Callable[[], SiteCipher] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def derive(
        cls, settings: ProtectionSection, algorithm: Algorithm, rounds: int, sites: Sequence[str]
    ) -> Encrypted:
        """See :func:`secfed.protection.registry.make_protection`."""
        numbers = {1, rounds, rounds + 1} - {0}
        runs = [plan.layout.shape.runs for number in sorted(numbers) for plan in algorithm.exchanges(number)]
        try:
            ring = choose_ring(runs, len(sites), key_mode=settings.key_mode, scheme=settings.scheme)
        except RangeError as error:
            raise ConfigError(f"protection.bits: {error.message}", remedy=error.remedy) from None
        holder = sorted(sites)[0] if settings.key_holder is None else settings.key_holder
        if holder not in sites:
            raise ConfigError(
                f"protection.key_holder: {holder!r} is not a site of the study",
                remedy=f"name one of {', '.join(sites)}",
            )
        return cls(ring, holder, settings.processes)

    def with_cipher(self, cipher: Callable[[], SiteCipher]) -> Encrypted:
        """The same at a site, which will have the study key."""
        return replace(self, cipher=cipher)

    def parameters(self, exchange: Exchange) -> Parameters:
        """How one exchange lies in ciphertexts."""
        return fit(self.ring, exchange.layout.shape.runs, exchange.layout.sites)

    def site(self, exchange: Exchange, contribution: SiteContribution) -> EncryptedSite:
        """One site's half; it needs the study key."""
        from secfed.crypto.encrypted.session import EncryptedSite

        if self.cipher is None:
            raise WrongState("a site needs the study key to encrypt")
        return EncryptedSite(contribution, self.cipher(), self.parameters(exchange))

    def server(self, exchange: Exchange, spec: Specification, roster: Roster) -> EncryptedServer:
        """The aggregator's half, which cannot read the sum."""
        from secfed.crypto.encrypted.session import EncryptedServer

        return EncryptedServer(spec, roster, self.parameters(exchange))

    def upload_bytes(self, exchange: Exchange) -> int:
        """Frames of one upload, without tags."""
        from secfed.crypto.encrypted.server import UPLOAD, FrameFormat

        return FrameFormat(self.parameters(exchange), UPLOAD).total_bytes

    def sum_bytes(self, exchange: Exchange) -> int:
        """Frames of the sum, without nonces and tag."""
        from secfed.crypto.encrypted.server import SUM, FrameFormat

        return FrameFormat(self.parameters(exchange), SUM).total_bytes


@dataclass(frozen=True)
class ExpectedState(Record):
    """What a task carries instead of a state: how many sums, and which state they lead to."""

    sums: U32
    digest: Digest
