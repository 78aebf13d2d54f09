"""The site's half of masked protection: one class per state, each with one ``handle``.

    AwaitSpecification -> AwaitAdverts -> AwaitDeliveries -> AwaitSharingSet -> AwaitSurvivors
        -> AwaitUnmask -> AwaitResult -> Finished

In a sparse graph (``graph.py``) two states of ``choosing.py`` stand in the place of ``AwaitAdverts``, and
``AwaitNeighbourDeliveries`` and ``AwaitProvenUnmask`` in the places of two others.

``handle`` checks the message, returns the reply and the next state; a wrong message is an error and the
session closes. The rules, each with its number in ``refusals.py``, are checked in the order in which
they are written here, and nothing leaves the site before all of a message's rules have passed.

This file holds the session and the states in which secrets are drawn and shared (``dealing.py`` shares them);
``states.py`` holds the others.

Source: Bonawitz et al. 2017, with the hardening described in docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from secfed.crypto import labels, thresholds
from secfed.crypto.attempt import AttemptId, SiteContribution
from secfed.crypto.codec import Buffer
from secfed.crypto.masked.choosing import AwaitAdvertDigests
from secfed.crypto.masked.dealing import (
    Dealer,
    Peers,
    Secrets,
    check_advertised,
    check_adverts,
    check_fresh,
)
from secfed.crypto.masked.graph import ATTEMPTS, SparseGraph
from secfed.crypto.masked.graph_messages import ProvenUnmaskRequest
from secfed.crypto.masked.key_derivation import commitment, mask_key
from secfed.crypto.masked.states import (
    AwaitDeliveries,
    AwaitResult,
    AwaitUnmask,
    ClientState,
    Closed,
    Complained,
    Finished,
)
from secfed.crypto.message_base import signed
from secfed.crypto.messages import (
    Advert,
    Adverts,
    Result,
    Sharing,
    Specification,
    UnmaskRequest,
    peek_type,
)
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import check_specification, decode_as
from secfed.errors import WrongState

_UNMASKING = (UnmaskRequest.TYPE, ProvenUnmaskRequest.TYPE)


@dataclass(frozen=True)
class AwaitSpecification:
    """Nothing has happened yet."""

    own: SiteContribution
    graph: SparseGraph | None = None  # None: the complete one
    accepts: ClassVar = Specification

    def handle(self, spec: Specification) -> tuple[ClientState, Buffer]:
        """Message 0 -> message 1."""
        own = self.own
        check_specification(spec, own, floor=thresholds.FLOOR)
        too_low = spec.threshold < max(own.limits.min_threshold, own.limits.min_cohort)
        if too_low or not thresholds.is_safe(spec.threshold, len(spec.cohort), own.colluders):
            raise Refusal.THRESHOLD_TOO_LOW.refuse(f"{spec.threshold} of {len(spec.cohort)}")
        if self.graph is not None and spec.attempt >= ATTEMPTS:
            raise Refusal.TOO_MANY_ATTEMPTS.refuse(f"attempt {spec.attempt}")
        # Durable before any secret of this attempt exists: an attempt is never run twice.
        own.journal.begin(spec.study, AttemptId(spec.round, spec.exchange_index, spec.attempt))
        secrets = Secrets(
            mask_secret=own.entropy.token("mask secret"),
            self_seed=own.entropy.token("self-mask seed"),
            seal_key=own.entropy.seal_key(),
        )
        advert = Advert(
            site=own.site,
            mask_key=mask_key(secrets.mask_secret).public_bytes,
            seal_key=secrets.seal_key.public_bytes,
            commitment=commitment(secrets.self_seed),
        )
        advert = signed(advert, own.identity, labels.SIGN_ADVERT, spec.digest)
        if self.graph is not None:
            return AwaitAdvertDigests(own, spec, secrets, advert, self.graph), advert.encode()
        return AwaitAdverts(own, spec, secrets, advert), advert.encode()


@dataclass(frozen=True)
class AwaitAdverts:
    """Own keys are out; the others' are expected."""

    own: SiteContribution
    spec: Specification
    secrets: Secrets = field(repr=False)
    advert: Advert
    accepts: ClassVar = Adverts

    def handle(self, relayed: Adverts) -> tuple[ClientState, Buffer]:
        """Message 2 -> message 3."""
        own, spec = self.own, self.spec
        names = check_advertised(relayed.adverts, spec)
        check_adverts(relayed.adverts, own, spec.digest)
        if self.advert not in relayed.adverts:
            raise Refusal.OWN_ADVERT.refuse()
        check_fresh(relayed.adverts)
        if len(names) < spec.threshold:
            raise Refusal.TOO_FEW_ADVERTS.refuse(f"{len(names)} of {spec.threshold}")
        peers = Peers.everybody(names, own.site, spec.threshold)
        dealer = Dealer(own, spec, self.secrets, relayed.digest)
        dealt = dealer.deal(peers, {advert.site: advert for advert in relayed.adverts})
        return AwaitDeliveries(dealer, peers, dealt.own_share), Sharing(dealt.envelopes).encode()


class MaskedSite:
    """One site's session for one attempt. Sans-I/O; see :class:`secfed.protection.interface.SiteSession`."""

    def __init__(self, own: SiteContribution, graph: SparseGraph | None = None) -> None:
        self.state: ClientState = AwaitSpecification(own, graph)

    def handle(self, message: Buffer) -> Buffer:
        """Answer one message; a refusal (``refusals.py``) closes the session."""
        state, self.state = self.state, Closed()
        try:
            decoded = decode_as(state.accepts, message)
        except WrongState:
            if isinstance(state, AwaitResult) and peek_type(message) in _UNMASKING:
                raise Refusal.SECOND_UNMASK.refuse() from None
            raise
        self.state, reply = state.handle(decoded)
        return reply

    @property
    def released(self) -> tuple[str, ...] | None:
        """The survivors whose sum this site has helped to unmask, once its shares are ready to leave."""
        state = self.state
        return state.survivors if isinstance(state, AwaitResult) else None

    @property
    def view(self) -> tuple[str, ...] | None:
        """The survivors that this site has signed; None before."""
        state = self.state
        return state.survivors if isinstance(state, AwaitUnmask | AwaitResult) else None

    @property
    def complaints(self) -> tuple[str, ...]:
        """The senders of envelopes that are no good, once the complaint is ready to leave."""
        return self.state.accused if isinstance(self.state, Complained) else ()

    @property
    def result(self) -> Result | None:
        """The signed result, once the attempt is finished."""
        return self.state.result if isinstance(self.state, Finished) else None
