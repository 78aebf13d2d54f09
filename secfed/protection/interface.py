"""The Protection interface: how summands become totals. ``plain`` and the registry live here.

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

from secfed.crypto import labels
from secfed.crypto.attempt import AttemptId, SiteContribution
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster, verify
from secfed.crypto.lanes import VectorShape
from secfed.crypto.masked import masks
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.server import MaskedServer
from secfed.crypto.masked.state import expect
from secfed.crypto.messages import Message, Result, Specification, Upload, peek_type
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import check_specification
from secfed.errors import ConfigError, MalformedMessage, RoundAborted, WrongState

SiteId = str
RingSums = tuple[NDArray[Any], ...]  # one array of ring integers per run of the layout

__all__ = ["PROTECTIONS", "Buffer", "Protection", "RingSums", "ServerSession", "SiteId", "SiteSession"]


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


class OpenServerSession(ServerSession, Protocol):
    """A server session whose aggregator learns the sum (``plain`` and ``masked``)."""

    @property
    def sums(self) -> RingSums:
        """Ring integers of the sum, known once the session is finished."""
        ...

    @property
    def disputes(self) -> tuple[tuple[SiteId, SiteId], ...]:
        """Complaints that ended the attempt: (who complained, of whom); see ``crypto/masked/disputes.py``."""
        ...


class Protection(Protocol):
    """Makes the two halves of an attempt."""

    def site(self, given: SiteContribution) -> SiteSession:
        """One site's half."""
        ...

    def server(self, spec: Specification, roster: Roster, shape: VectorShape) -> OpenServerSession:
        """The aggregator's half."""
        ...


class PlainSite:
    """Sends the quantised vector as it is. For simulation and comparison: the server sees every update."""

    def __init__(self, given: SiteContribution) -> None:
        self._given = given
        self._spec: Specification | None = None
        self._expects: type[Message] | None = Specification
        self.released: tuple[SiteId, ...] | None = None  # nothing is masked, so nothing is released
        self.complaints: tuple[SiteId, ...] = ()  # sites send each other nothing
        self.result: Result | None = None

    def handle(self, message: Buffer) -> Buffer:
        """Specification -> upload; result -> nothing."""
        expects, self._expects = self._expects, None  # a refusal below ends the session
        try:
            kind = peek_type(message)
            if expects is None or kind != expects.TYPE:
                raise Refusal.OUT_OF_ORDER.refuse(f"message type {kind}")
            decoded = expects.decode(message)
        except MalformedMessage as error:
            raise Refusal.MALFORMED.refuse(error.message) from None
        if isinstance(decoded, Result) and self._spec is not None:
            return self._finish(decoded, self._spec)
        given, spec = self._given, expect(decoded, Specification)
        check_specification(spec, given, floor=1)
        attempt = AttemptId(spec.round, spec.exchange_index, spec.attempt)
        given.journal.begin(spec.study, attempt)
        given.journal.uploaded(spec.study, attempt)  # what leaves in the clear is spent at once
        self._spec, self._expects = spec, Result
        buffer = Upload.frame(given.shape.wire_bytes)
        room = buffer[Upload.VECTOR_AT : Upload.VECTOR_AT + given.shape.wire_bytes]
        context = masks.MaskContext(spec.digest, given.broadcast_digest, given.shape)
        vector_digest = masks.write_masked(given.source, [], context, room)
        signature = given.identity.sign(labels.SIGN_UPLOAD, spec.digest, vector_digest)
        Upload.finish(buffer, bytes(32), vector_digest, signature)
        return buffer

    def _finish(self, result: Result, spec: Specification) -> Buffer:
        aggregator = self._given.roster.aggregator
        verify(aggregator, result.signature, labels.SIGN_RESULT, result.body(), who="aggregator")
        if result.spec_digest != spec.digest:
            raise Refusal.RESULT_MISMATCH.refuse()
        self.result = result
        return b""


class PlainServer:
    """Adds the vectors as they arrive."""

    def __init__(self, spec: Specification, roster: Roster, shape: VectorShape) -> None:
        self._spec, self._roster = spec, roster
        self._total = masks.Accumulator(shape)
        self._answered: set[SiteId] = set()  # also those whose upload was refused
        self._uploaded: set[SiteId] = set()
        self._finished = False
        self.spent = False
        self.disputes: tuple[tuple[SiteId, SiteId], ...] = ()  # sites send each other nothing

    @property
    def stage(self) -> str:
        """Plain protection has one step; it takes the name of the step it stands for."""
        return "done" if self._finished else "mask"

    def begin(self) -> Mapping[SiteId, Buffer]:
        """The specification to every site of the cohort."""
        return dict.fromkeys(self._spec.cohort, self._spec.encode())

    def receive(self, site: SiteId, reply: Buffer) -> None:
        """Add one vector."""
        if self._finished or site not in self._spec.cohort or site in self._answered:
            raise WrongState(f"site {site!r} was not asked, or answered twice")
        self._answered.add(site)
        upload = Upload.decode(reply)
        digest = masks.vector_digest(upload.vector)
        if digest != upload.vector_digest:
            raise MalformedMessage(f"the vector of site {site!r} does not match its signed digest")
        public = self._roster.public(site)
        verify(public, upload.signature, labels.SIGN_UPLOAD, self._spec.digest, digest, who=site)
        self._total.add(upload.vector)
        self._uploaded.add(site)
        self.spent = True

    def advance(self) -> Mapping[SiteId, Buffer]:
        """Finish; plain protection needs the same number of sites as the specification says."""
        if len(self._uploaded) < self._spec.threshold:
            raise RoundAborted(
                f"only {len(self._uploaded)} of {len(self._spec.cohort)} sites uploaded, "
                f"{self._spec.threshold} are needed.",
                remedy="wait for more sites",
            )
        self._finished = True
        return {}

    @property
    def survivors(self) -> tuple[SiteId, ...]:
        """Sites whose vector was added, in roster order."""
        return tuple(name for name in self._spec.cohort if name in self._uploaded)

    @property
    def sums(self) -> RingSums:
        """Ring integers of the sum."""
        return self._total.reduced()


class Plain:
    """No protection: the aggregator sees each site's quantised update."""

    site = PlainSite
    server = PlainServer


class Masked:
    """Secure aggregation by masks (``crypto/masked/client.py``, ``crypto/masked/server.py``)."""

    site = MaskedSite
    server = MaskedServer


class Encrypted:
    """Homomorphic encryption: an aggregator that cannot read the sum runs ``encrypted_round.py`` instead."""

    def site(self, given: SiteContribution) -> SiteSession:  # noqa: ARG002
        """Made by :class:`secfed.site.encrypted_session.EncryptedSession`, which holds the study key."""
        raise WrongState("encrypted attempts need the study key; see secfed.site.encrypted_session")

    def server(
        self,
        spec: Specification,  # noqa: ARG002
        roster: Roster,  # noqa: ARG002
        shape: VectorShape,  # noqa: ARG002
    ) -> OpenServerSession:
        """There is none: no server session could give the sum."""
        raise WrongState("an aggregator cannot read encrypted sums; see secfed.server.encrypted_round")


PROTECTIONS: Mapping[str, Protection] = {"plain": Plain(), "masked": Masked(), "encrypted": Encrypted()}


def protection(name: str) -> Protection:
    """Look a protection up by its study name.

    Raises:
        ConfigError: there is none of that name.
    """
    try:
        return PROTECTIONS[name]
    except KeyError:
        known = ", ".join(PROTECTIONS)
        raise ConfigError(
            f"protection.name: {name!r} is not available", remedy=f"use one of {known}"
        ) from None
