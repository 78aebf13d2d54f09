"""The Protection interface: how summands become totals.

A protection is sans-I/O. For one attempt it makes one :class:`SiteSession` per site (``handle`` turns
a message into a reply) and one :class:`ServerSession` (``begin`` and ``advance`` give the next
requests, ``receive`` takes one site's reply as it arrives). A site that does not answer a request is
dropped; a session never waits, never sleeps and never opens anything.

Every protection starts with the aggregator's signed :class:`Specification` and ends with its signed
:class:`Result`; what happens in between is its own affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from secfed.config.protections import ProtectionTraits
from secfed.crypto.attempt import SiteContribution
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster
from secfed.crypto.messages import Result, Specification
from secfed.wire.layout import Exchange

SiteId = str
RingSums = tuple[NDArray[Any], ...]  # one array of ring integers per run of the layout


class SiteSession(Protocol):
    """One site's half of one attempt."""

    def handle(self, message: Buffer) -> Buffer:
        """Answer one request of the server.

        Raises:
            SecfedError: the message is refused; the session is over and its secrets are gone.
        """
        ...

    @property
    def released(self) -> tuple[SiteId, ...] | None:
        """The survivors of the sum that this site is about to help unmask; None at any other time."""
        ...

    @property
    def view(self) -> tuple[SiteId, ...] | None:
        """The survivors that this site has signed for its attempt; None before, or where none are signed."""
        ...

    @property
    def complaints(self) -> tuple[SiteId, ...]:
        """Sites whose message to this one was no good, once the reply that says so is ready to leave."""
        ...

    @property
    def result(self) -> Result | None:
        """The aggregator's signed result, once it has arrived and been checked."""
        ...


class ServerSession(Protocol):
    """The aggregator's half of one attempt. It can learn the sum, and nothing finer."""

    def begin(self) -> Mapping[SiteId, Buffer]:
        """The first requests."""
        ...

    def receive(self, site: SiteId, reply: Buffer) -> None:
        """Take one site's reply to the current requests; called as replies arrive.

        Raises:
            ProtocolError: the reply is refused and the site counts as dropped.
        """
        ...

    def advance(self) -> Mapping[SiteId, Buffer]:
        """Close the current step; the next requests, empty when the session is finished.

        Raises:
            RoundAborted: too few sites are left to go on.
        """
        ...

    @property
    def stage(self) -> str:
        """Name of the step the current requests belong to, for progress and reports."""
        ...

    @property
    def spent(self) -> bool:
        """Whether sites may have revealed something, so that their updates must not be used again."""
        ...

    @property
    def survivors(self) -> tuple[SiteId, ...]:
        """Sites whose summand is in the sum, known once the session is finished."""
        ...

    @property
    def sums(self) -> RingSums:
        """Ring integers of the sum, known once the session is finished.

        Raises:
            WrongState: the aggregator cannot read this protection's sums.
        """
        ...

    @property
    def disputes(self) -> tuple[tuple[SiteId, SiteId], ...]:
        """Complaints that ended the attempt: (who complained, of whom); see ``crypto/masked/disputes.py``."""
        ...


class Protection(Protocol):
    """One study's protection: makes the two halves of every attempt."""

    @property
    def traits(self) -> ProtectionTraits:
        """What follows from it for everybody else."""
        ...

    def site(self, exchange: Exchange, contribution: SiteContribution) -> SiteSession:
        """One site's half."""
        ...

    def server(self, exchange: Exchange, spec: Specification, roster: Roster) -> ServerSession:
        """The aggregator's half."""
        ...

    def upload_bytes(self, exchange: Exchange) -> int:
        """What one site uploads, without signatures."""
        ...

    def sum_bytes(self, exchange: Exchange) -> int:
        """The sum that the aggregator hands to the sites; 0 where it reads the sum itself."""
        ...
