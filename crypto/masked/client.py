"""The site's half of masked protection: one class per state, each with one ``handle``.

    AwaitSpecification -> AwaitAdverts -> AwaitDeliveries -> AwaitSharingSet -> AwaitSurvivors
        -> AwaitUnmask -> AwaitResult -> Finished

``handle`` checks the message, returns the reply and the next state; a wrong message is an error and the
session closes. The rules, each with its number in ``refusals.py``, are checked in the order in which
they are written here, and nothing leaves the site before all of a message's rules have passed.

This file holds the session and the states in which secrets are drawn and shared; ``states.py`` the others.

Source: Bonawitz et al. 2017, with the hardening described in docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from secfed.crypto import labels, shamir, thresholds
from secfed.crypto.attempt import AttemptId, SiteContribution
from secfed.crypto.codec import Buffer
from secfed.crypto.masked.key_derivation import (
    commitment,
    envelope_context,
    mask_key,
    outgoing_seed,
    share_digest,
)
from secfed.crypto.masked.states import (
    AwaitDeliveries,
    AwaitResult,
    AwaitUnmask,
    ClientState,
    Closed,
    Complained,
    Finished,
    Secrets,
)
from secfed.crypto.message_base import signed
from secfed.crypto.messages import (
    Advert,
    Adverts,
    Envelope,
    Result,
    SelfMaskShare,
    Sharing,
    Specification,
    UnmaskRequest,
    peek_type,
)
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import check_specification, decode_as, ordered_subset, verified
from secfed.errors import MalformedMessage, WrongState


@dataclass(frozen=True)
class AwaitSpecification:
    """Nothing has happened yet."""

    own: SiteContribution
    accepts: ClassVar = Specification

    def handle(self, spec: Specification) -> tuple[ClientState, Buffer]:
        """Message 0 -> message 1."""
        own = self.own
        check_specification(spec, own, floor=thresholds.FLOOR)
        too_low = spec.threshold < max(own.limits.min_threshold, own.limits.min_cohort)
        if too_low or not thresholds.is_safe(spec.threshold, len(spec.cohort), own.colluders):
            raise Refusal.THRESHOLD_TOO_LOW.refuse(f"{spec.threshold} of {len(spec.cohort)}")
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
        names = tuple(advert.site for advert in relayed.adverts)
        for name in names:
            if name not in spec.cohort:
                raise Refusal.ADVERT_OUTSIDER.refuse(name)
        if not ordered_subset(names, spec.cohort):
            raise Refusal.ADVERT_ORDER.refuse()
        for advert in relayed.adverts:
            public, label = own.roster.public(advert.site), labels.SIGN_ADVERT
            verified(advert, public, label, spec.digest, who=advert.site, refusal=Refusal.ADVERT_SIGNATURE)
        if self.advert not in relayed.adverts:
            raise Refusal.OWN_ADVERT.refuse()
        advertised_by: dict[bytes, str] = {}
        for advert in relayed.adverts:
            for part in advert.fresh:
                if part in advertised_by:
                    raise Refusal.DUPLICATE_KEY.refuse(f"by {advertised_by[part]} and by {advert.site}")
                advertised_by[part] = advert.site
        if len(names) < spec.threshold:
            raise Refusal.TOO_FEW_ADVERTS.refuse(f"{len(names)} of {spec.threshold}")
        adverts_digest = relayed.digest
        point = {name: own.roster.position(name) + 1 for name in names}
        points = list(point.values())
        below = own.entropy.below
        shares_r = shamir.split(self.secrets.mask_secret, spec.threshold, points, randbelow=below)
        shares_b = shamir.split(self.secrets.self_seed, spec.threshold, points, randbelow=below)
        envelopes = tuple(
            self._envelope(peer, adverts_digest, shares_r[point[peer.site]], shares_b[point[peer.site]])
            for peer in relayed.adverts
            if peer.site != own.site
        )
        own_share = SelfMaskShare(own.site, shares_b[point[own.site]])
        state = AwaitDeliveries(own, spec, self.secrets, names, adverts_digest, own_share)
        return state, Sharing(envelopes).encode()

    def _envelope(self, peer: Advert, adverts_digest: bytes, share_r: bytes, share_b: bytes) -> Envelope:
        """The signed envelope for one peer."""
        own, spec_digest = self.own, self.spec.digest
        context = envelope_context(spec_digest, adverts_digest, own.site, peer.site)
        seed = outgoing_seed(self.secrets.mask_secret, spec_digest, own.site, peer.site)
        seal = own.entropy.seal
        try:
            envelope = Envelope(
                sender=own.site,
                recipient=peer.site,
                sealed_seed=seal(peer.mask_key, seed, labels.SEAL_PAIR_SEED, *context),
                sealed_shares=seal(peer.seal_key, share_r + share_b, labels.SEAL_SHARES, *context),
                mask_secret_share_digest=share_digest(labels.MASK_SECRET_SHARE, context, share_r),
                self_mask_share_digest=share_digest(labels.SELF_MASK_SHARE, context, share_b),
            )
        except MalformedMessage:
            raise Refusal.MALFORMED.refuse(f"{peer.site} advertises an invalid key") from None
        return signed(envelope, own.identity, labels.SIGN_ENVELOPE, spec_digest, adverts_digest)


class MaskedSite:
    """One site's session for one attempt. Sans-I/O; see :class:`secfed.protection.interface.SiteSession`."""

    def __init__(self, own: SiteContribution) -> None:
        self.state: ClientState = AwaitSpecification(own)

    def handle(self, message: Buffer) -> Buffer:
        """Answer one message; a refusal (``refusals.py``) closes the session."""
        state, self.state = self.state, Closed()
        try:
            decoded = decode_as(state.accepts, message)
        except WrongState:
            if isinstance(state, AwaitResult) and peek_type(message) == UnmaskRequest.TYPE:
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
