"""Protections whose sums only the sites can open: what such a study adds at either party."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from secfed.config.protections import ProtectionTraits
from secfed.config.sections import ProtectionSection
from secfed.crypto.attempt import SiteContribution
from secfed.crypto.encrypted.messages import AnySum
from secfed.crypto.encrypted.study_keys import KeyForm, KeyPair
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.message_base import U32, Digest
from secfed.crypto.messages import Specification
from secfed.crypto.record import Record
from secfed.errors import ConfigError
from secfed.protection.interface import RingSums, ServerSession, SiteSession
from secfed.wire.layout import Exchange


class OpenedAtSites:
    """A :class:`~secfed.protection.interface.Protection` under which every site holds the study's keys.

    Attributes:
        holder: the site that makes the keys.
        sum_type: the message in which the aggregator relays a sum.
    """

    traits: ClassVar[ProtectionTraits]
    sum_type: ClassVar[type[AnySum]]
    holder: str

    @property
    def form(self) -> KeyForm:
        """What the keys are for."""
        raise NotImplementedError

    def at_site(self, keys: Callable[[], KeyPair]) -> Self:
        """The same at one site, which will have the keys."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop what runs beside this process."""

    def relayed(self, spec: Specification, session: ServerSession, identity: Identity) -> AnySum:
        """The finished sum of an attempt, with the aggregator's signed result."""
        raise NotImplementedError

    def opened(self, exchange: Exchange, relayed: AnySum) -> RingSums:
        """Ring integers of a sum, at a site.

        Raises:
            SecfedError: it is not the sum of the survivors' uploads (refusal 45), or malformed.
        """
        raise NotImplementedError

    def site(self, exchange: Exchange, contribution: SiteContribution) -> SiteSession:
        """One site's half of an attempt."""
        raise NotImplementedError

    def server(self, exchange: Exchange, spec: Specification, roster: Roster) -> ServerSession:
        """The aggregator's half."""
        raise NotImplementedError

    def upload_bytes(self, exchange: Exchange) -> int:
        """What one site uploads, without signatures."""
        raise NotImplementedError

    def sum_bytes(self, exchange: Exchange) -> int:
        """What the aggregator relays of a sum."""
        raise NotImplementedError


def chosen_holder(settings: ProtectionSection, sites: Sequence[str]) -> str:
    """The site that makes the keys.

    Raises:
        ConfigError: ``protection.key_holder`` is not a site of the study.
    """
    holder = sorted(sites)[0] if settings.key_holder is None else settings.key_holder
    if holder not in sites:
        raise ConfigError(
            f"protection.key_holder: {holder!r} is not a site of the study",
            remedy=f"name one of {', '.join(sites)}",
        )
    return holder


@dataclass(frozen=True)
class ExpectedState(Record):
    """What a task carries instead of a state: how many sums, and which state they lead to."""

    sums: U32
    digest: Digest
