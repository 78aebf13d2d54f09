"""Closed sums: masked protection under one more keystream, which the sites take off."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from secfed.algorithms.framework.base import Algorithm
from secfed.config.protections import CLOSED, TRAITS, ProtectionTraits
from secfed.config.sections import ProtectionSection
from secfed.crypto import labels
from secfed.crypto.attempt import SiteContribution
from secfed.crypto.codec import digest
from secfed.crypto.encrypted.messages import AnySum, ClosedSum, closed_digest
from secfed.crypto.encrypted.study_keys import KeyForm, KeyPair
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.lanes import pack_into
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.closing import GROUP_KEY_BYTES, Closing, closed_shape, group_key_check
from secfed.crypto.masked.graph import SparseGraph
from secfed.crypto.masked.server import MaskedServer
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Result, Specification
from secfed.errors import MalformedMessage, WrongState
from secfed.protection.interface import RingSums, ServerSession
from secfed.protection.opened_at_sites import OpenedAtSites, chosen_holder
from secfed.wire.layout import Exchange


class GroupKeys(KeyForm):
    """The group key of a study: 32 bytes.

    In place of a public half there is a digest, so that a delivery fits one key only.
    """

    digest: bytes = digest(labels.CLOSED_SUMS)

    def generate(self) -> KeyPair:
        """A fresh one."""
        group_key = secrets.token_bytes(GROUP_KEY_BYTES)
        return KeyPair(secret_key=group_key, public_key=group_key_check(group_key))

    def check(self, keys: KeyPair) -> None:
        """Its length, and that it is the key that everybody is told of."""
        if len(keys.secret_key) != GROUP_KEY_BYTES or keys.public_key != group_key_check(keys.secret_key):
            raise MalformedMessage("the group key is not the one that the delivery names")


_FORM: Final = GroupKeys()


@dataclass(frozen=True)
class Closed(OpenedAtSites):
    """Masked sums that the aggregator relays and the sites open.

    Attributes:
        holder: the site that makes the group key.
        graph: of masks; None for the complete one.
        cipher: that makes masks, and what closes a sum.
        keys: gives them; None at the aggregator, which has none.
    """

    traits: ClassVar[ProtectionTraits] = TRAITS[CLOSED]
    sum_type: ClassVar[type[AnySum]] = ClosedSum

    holder: str
    graph: SparseGraph | None = None
    cipher: StreamCipher = StreamCipher.CHACHA20
    keys: Callable[[], KeyPair] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def derive(
        cls, settings: ProtectionSection, _algorithm: Algorithm, _rounds: int, sites: Sequence[str]
    ) -> Closed:
        """See :func:`secfed.protection.registry.make_protection`."""
        return cls(chosen_holder(settings, sites), settings.sparse_graph, settings.cipher)

    @property
    def form(self) -> KeyForm:
        """32 secret bytes."""
        return _FORM

    def at_site(self, keys: Callable[[], KeyPair]) -> Closed:
        """The same at a site, which will have the group key."""
        return replace(self, keys=keys)

    def site(self, exchange: Exchange, contribution: SiteContribution) -> MaskedSite:  # noqa: ARG002
        """One site's half; it needs the group key."""
        own = replace(contribution, group_key=self._group_key(), cipher=self.cipher)
        return MaskedSite(own, self.graph)

    def server(self, exchange: Exchange, spec: Specification, roster: Roster) -> MaskedServer:
        """The aggregator's half: what it unmasks is still closed."""
        shape = closed_shape(exchange.layout.shape)
        return MaskedServer(spec, roster, shape, graph=self.graph, cipher=self.cipher)

    def relayed(self, spec: Specification, session: ServerSession, identity: Identity) -> ClosedSum:
        """See :class:`OpenedAtSites`."""
        if not isinstance(session, MaskedServer):
            raise WrongState("closed sums come from masked sessions")
        shape, at = session.shape, 0
        vector = memoryview(bytearray(shape.wire_bytes))
        for run, lanes in zip(shape.runs, session.sums, strict=True):
            pack_into(lanes, run, vector[at : at + run.wire_bytes])
            at += run.wire_bytes
        said = closed_digest(spec.layout_digest, session.adverts_digest, vector)
        result = signed(Result(spec.digest, session.survivors, said), identity, labels.SIGN_RESULT)
        return ClosedSum(spec, result, session.adverts_digest, vector)

    def opened(self, exchange: Exchange, relayed: AnySum) -> RingSums:
        """See :class:`OpenedAtSites`."""
        if not isinstance(relayed, ClosedSum):
            raise MalformedMessage("this study's sums are closed ones")
        spec = relayed.spec
        closing = Closing(self._group_key(), spec.digest, relayed.adverts_digest, self.cipher)
        shape = exchange.layout.shape
        return closing.opened(relayed.vector, relayed.result.survivors, spec.broadcast_digest, shape)

    def upload_bytes(self, exchange: Exchange) -> int:
        """The vector and its tags."""
        return closed_shape(exchange.layout.shape).wire_bytes

    def sum_bytes(self, exchange: Exchange) -> int:
        """As much as an upload."""
        return self.upload_bytes(exchange)

    def _group_key(self) -> bytes:
        if self.keys is None:
            raise WrongState("a site needs the study key to close and open sums")
        return self.keys().secret_key
