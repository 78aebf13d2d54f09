"""Encrypted protection of one study: ring and key holder, which all parties derive, and both halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from secfed.algorithms.framework.base import Algorithm
from secfed.config.protections import TRAITS, ProtectionTraits
from secfed.config.sections import ProtectionSection
from secfed.crypto import labels
from secfed.crypto.attempt import SiteContribution
from secfed.crypto.encrypted.bfv import Parameters, Ring, choose_ring, fit
from secfed.crypto.encrypted.messages import AnySum, Summed, totals_digest
from secfed.crypto.encrypted.study_keys import KeyForm, KeyPair
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Result, Specification
from secfed.errors import ConfigError, RangeError, WrongState
from secfed.protection.interface import RingSums, ServerSession
from secfed.protection.opened_at_sites import OpenedAtSites, chosen_holder
from secfed.wire.layout import Exchange

# TenSEAL is an optional dependency: what needs it is imported where it is used.
if TYPE_CHECKING:
    from secfed.crypto.encrypted.client import SiteCipher
    from secfed.crypto.encrypted.session import EncryptedServer, EncryptedSite


@dataclass(frozen=True)
class RingKeys(KeyForm):
    """Keys of a ring."""

    ring: Ring

    @property
    def digest(self) -> bytes:
        """The ring's."""
        return self.ring.digest

    def generate(self) -> KeyPair:
        """Fresh keys."""
        from secfed.crypto.encrypted.bfv_tenseal import generate_keys

        return generate_keys(self.ring)

    def check(self, keys: KeyPair) -> None:
        """Nothing: the library reads them at first use."""


class OwnCipher:
    """The cipher of one site under the study key, made when it is first needed."""

    def __init__(self, keys: Callable[[], KeyPair], processes: int) -> None:
        self._keys, self._processes = keys, processes
        self._cipher: SiteCipher | None = None

    def __call__(self) -> SiteCipher:
        """The cipher; :class:`WrongState` before the study key is there."""
        from secfed.crypto.encrypted.client import SiteCipher

        if self._cipher is None:
            self._cipher = SiteCipher(self._keys(), processes=self._processes)
        return self._cipher

    def close(self) -> None:
        """Stop the worker processes."""
        if self._cipher is not None:
            self._cipher.close()


@dataclass(frozen=True)
class Encrypted(OpenedAtSites):
    """Homomorphic encryption: the aggregator adds ciphertexts that only the sites can read.

    Attributes:
        holder: the site that makes the keys.
        processes: worker processes for encryption at each site; 0 works in the site's own.
        cipher: gives the site's cipher; None at the aggregator, which has no key.
    """

    traits: ClassVar[ProtectionTraits] = TRAITS["encrypted"]
    sum_type: ClassVar[type[AnySum]] = Summed

    ring: Ring
    holder: str
    processes: int = 0
    cipher: OwnCipher | None = field(default=None, repr=False, compare=False)

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
        return cls(ring, chosen_holder(settings, sites), settings.processes)

    @property
    def form(self) -> KeyForm:
        """The ring."""
        return RingKeys(self.ring)

    def at_site(self, keys: Callable[[], KeyPair]) -> Encrypted:
        """The same at a site, which will have the study key."""
        return replace(self, cipher=OwnCipher(keys, self.processes))

    def close(self) -> None:
        """Stop the worker processes."""
        if self.cipher is not None:
            self.cipher.close()

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

    def relayed(self, spec: Specification, session: ServerSession, identity: Identity) -> Summed:
        """See :class:`OpenedAtSites`."""
        from secfed.crypto.encrypted.session import EncryptedServer

        if not isinstance(session, EncryptedServer):
            raise WrongState("encrypted sums come from encrypted sessions")
        parts = session.nonces, session.tag, session.ciphertext()
        unsigned = Result(spec.digest, session.survivors, totals_digest(spec.layout_digest, *parts))
        return Summed(spec, signed(unsigned, identity, labels.SIGN_RESULT), *parts)

    def opened(self, exchange: Exchange, relayed: AnySum) -> RingSums:
        """See :class:`OpenedAtSites`."""
        from secfed.crypto.encrypted.server import SUM, FrameFormat

        if self.cipher is None or not isinstance(relayed, Summed):
            raise WrongState("a site needs the study key to decrypt, and a sum of ciphertexts")
        parameters, cipher = self.parameters(exchange), self.cipher()
        frames = list(FrameFormat(parameters, SUM).split(relayed.ciphertext))
        cipher.verify(parameters, relayed, frames)  # all of them, before the first is decrypted
        return cipher.decrypt(parameters, frames)

    def upload_bytes(self, exchange: Exchange) -> int:
        """Frames of one upload, without tags."""
        from secfed.crypto.encrypted.server import UPLOAD, FrameFormat

        return FrameFormat(self.parameters(exchange), UPLOAD).total_bytes

    def sum_bytes(self, exchange: Exchange) -> int:
        """Frames of the sum, without nonces and tag."""
        from secfed.crypto.encrypted.server import SUM, FrameFormat

        return FrameFormat(self.parameters(exchange), SUM).total_bytes
