"""The site's half of masked protection: one class per state, each with one ``handle``.

    AwaitSpecification -> AwaitAdverts -> AwaitDeliveries -> AwaitSurvivors
        -> AwaitUnmask -> AwaitResult -> Finished

``handle`` checks the message, returns the reply and the next state; a wrong message is an error and the
session closes. The rules, each with its number in ``refusals.py``, are checked in the order in which
they are written here, and nothing leaves the site before all of a message's rules have passed.

This file holds the session and the states until the masked vector leaves: those that know the attempt's
secrets. ``masked_unmask.py`` goes on from there, with shares only. ``masked_state.py`` says what a state is.

Source: Bonawitz et al. 2017, with the hardening described in docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secfed.crypto import labels, masks, sealing, shamir, thresholds
from secfed.crypto.attempt import AttemptId, SiteContribution
from secfed.crypto.codec import Buffer, Reader, Writer
from secfed.crypto.derivations import commitment, envelope_context, mask_key, outgoing_seed, pair_stream
from secfed.crypto.masked_state import Closed, State, expect
from secfed.crypto.masked_unmask import AwaitResult, AwaitSurvivors, AwaitUnmask, Finished
from secfed.crypto.messages import (
    Advert,
    Adverts,
    Deliveries,
    Envelope,
    Message,
    Result,
    SelfMaskShare,
    Sharing,
    Specification,
    UnmaskRequest,
    Upload,
    names_digest,
    peek_type,
)
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import check_specification, ordered_subset, verified
from secfed.errors import MalformedMessage

# The whole session, whichever of the three files a state stands in.
__all__ = [
    "AwaitAdverts",
    "AwaitDeliveries",
    "AwaitResult",
    "AwaitSpecification",
    "AwaitSurvivors",
    "AwaitUnmask",
    "Closed",
    "Finished",
    "MaskedSite",
    "State",
]


@dataclass(frozen=True)
class AwaitSpecification:
    """Nothing has happened yet."""

    given: SiteContribution
    accepts: type[Message] = Specification

    def handle(self, message: Message) -> tuple[State, Buffer]:
        """Message 0 -> message 1."""
        spec = expect(message, Specification)
        given = self.given
        check_specification(spec, given, floor=thresholds.FLOOR)
        too_low = spec.threshold < max(given.limits.min_threshold, given.limits.min_cohort)
        if too_low or not thresholds.is_safe(spec.threshold, len(spec.cohort), given.colluders):
            raise Refusal.THRESHOLD_TOO_LOW.refuse(f"{spec.threshold} of {len(spec.cohort)}")
        # Durable before any secret of this attempt exists: an attempt is never run twice.
        given.journal.begin(spec.study, AttemptId(spec.round, spec.exchange_index, spec.attempt))
        secrets = _Secrets(
            mask_secret=given.entropy.token("mask secret"),
            self_seed=given.entropy.token("self-mask seed"),
            seal_key=given.entropy.seal_key(),
        )
        advert = Advert(
            site=given.site,
            mask_key=mask_key(secrets.mask_secret).public_bytes,
            seal_key=secrets.seal_key.public_bytes,
            commitment=commitment(secrets.self_seed),
        )
        signature = given.identity.sign(labels.SIGN_ADVERT, spec.digest, advert.body())
        advert = Advert(advert.site, advert.mask_key, advert.seal_key, advert.commitment, signature)
        return AwaitAdverts(given, spec, secrets, advert), advert.encode()


@dataclass(frozen=True)
class _Secrets:
    """Fresh for one attempt, never reused."""

    mask_secret: bytes = field(repr=False)
    self_seed: bytes = field(repr=False)
    seal_key: sealing.SealKey = field(repr=False)


@dataclass(frozen=True)
class AwaitAdverts:
    """Own keys are out; the others' are expected."""

    given: SiteContribution
    spec: Specification
    secrets: _Secrets = field(repr=False)
    advert: Advert
    accepts: type[Message] = Adverts

    def handle(self, message: Message) -> tuple[State, Buffer]:
        """Message 2 -> message 3."""
        relayed = expect(message, Adverts)
        given, spec = self.given, self.spec
        names = tuple(advert.site for advert in relayed.adverts)
        for name in names:
            if name not in spec.cohort:
                raise Refusal.ADVERT_OUTSIDER.refuse(name)
        if not ordered_subset(names, spec.cohort):
            raise Refusal.ADVERT_ORDER.refuse()
        for advert in relayed.adverts:
            verified(
                given.roster.public(advert.site),
                advert.signature,
                labels.SIGN_ADVERT,
                spec.digest,
                advert.body(),
                who=advert.site,
                refusal=Refusal.ADVERT_SIGNATURE,
            )
        if self.advert not in relayed.adverts:
            raise Refusal.OWN_ADVERT.refuse()
        fresh = [part for a in relayed.adverts for part in (a.mask_key, a.seal_key, a.commitment)]
        if len(set(fresh)) != len(fresh):
            raise Refusal.DUPLICATE_KEY.refuse()
        if len(names) < spec.threshold:
            raise Refusal.TOO_FEW_ADVERTS.refuse(f"{len(names)} of {spec.threshold}")
        adverts_digest = relayed.digest
        points = [given.roster.position(name) + 1 for name in names]
        below = given.entropy.below
        shares_r = shamir.split(self.secrets.mask_secret, spec.threshold, points, randbelow=below)
        shares_b = shamir.split(self.secrets.self_seed, spec.threshold, points, randbelow=below)
        envelopes = []
        for advert in relayed.adverts:
            if advert.site == given.site:
                continue
            context = envelope_context(spec.digest, adverts_digest, given.site, advert.site)
            point = given.roster.position(advert.site) + 1
            seed = outgoing_seed(self.secrets.mask_secret, spec.digest, given.site, advert.site)
            both = (
                Writer().fixed(shares_r[point], shamir.SHARE_BYTES).fixed(shares_b[point], shamir.SHARE_BYTES)
            )
            envelope = Envelope(
                sender=given.site,
                recipient=advert.site,
                sealed_seed=self._seal(advert.site, advert.mask_key, seed, labels.SEAL_PAIR_SEED, context),
                sealed_shares=self._seal(
                    advert.site, advert.seal_key, both.done(), labels.SEAL_SHARES, context
                ),
            )
            signature = given.identity.sign(
                labels.SIGN_ENVELOPE, spec.digest, adverts_digest, envelope.body()
            )
            envelopes.append(
                Envelope(
                    envelope.sender,
                    envelope.recipient,
                    envelope.sealed_seed,
                    envelope.sealed_shares,
                    signature,
                )
            )
        own_point = given.roster.position(given.site) + 1
        own_share = SelfMaskShare(given.site, shares_b[own_point])
        state = AwaitDeliveries(given, spec, self.secrets, names, adverts_digest, own_share)
        return state, Sharing(tuple(envelopes)).encode()

    def _seal(
        self, peer: str, public: bytes, plaintext: bytes, label: bytes, context: tuple[bytes, ...]
    ) -> bytes:
        try:
            return self.given.entropy.seal(public, plaintext, label, *context)
        except MalformedMessage:
            raise Refusal.MALFORMED.refuse(f"{peer} advertises an invalid key") from None


@dataclass(frozen=True)
class AwaitDeliveries:
    """Own envelopes are out; the peers' are expected."""

    given: SiteContribution
    spec: Specification
    secrets: _Secrets = field(repr=False)
    advertised: tuple[str, ...]
    adverts_digest: bytes
    own_share: SelfMaskShare = field(repr=False)
    accepts: type[Message] = Deliveries

    def handle(self, message: Message) -> tuple[State, Buffer]:
        """Message 3 (relayed) -> message 4."""
        delivered = expect(message, Deliveries)
        given, spec, me = self.given, self.spec, self.given.site
        senders = tuple(envelope.sender for envelope in delivered.envelopes)
        peers = tuple(name for name in self.advertised if name != me)
        addressed = all(envelope.recipient == me for envelope in delivered.envelopes)
        if not addressed or not ordered_subset(senders, peers):
            raise Refusal.ENVELOPE_STRAY.refuse()
        for envelope in delivered.envelopes:
            verified(
                given.roster.public(envelope.sender),
                envelope.signature,
                labels.SIGN_ENVELOPE,
                spec.digest,
                self.adverts_digest,
                envelope.body(),
                who=envelope.sender,
                refusal=Refusal.ENVELOPE_SIGNATURE,
            )
        sharing = tuple(name for name in self.advertised if name == me or name in senders)
        if len(sharing) < spec.threshold:
            raise Refusal.TOO_FEW_SHARING.refuse(f"{len(sharing)} of {spec.threshold}")
        key = mask_key(self.secrets.mask_secret)
        held: dict[str, tuple[bytes, bytes]] = {}
        streams = [masks.self_mask(self.secrets.self_seed, 1)]
        for envelope in delivered.envelopes:
            seed_in, held[envelope.sender] = self._open(envelope, key)
            seed_out = outgoing_seed(self.secrets.mask_secret, spec.digest, me, envelope.sender)
            position = given.roster.position
            streams.append(pair_stream(position(me), position(envelope.sender), seed_out, seed_in))
        context = masks.MaskContext(spec.digest, given.broadcast_digest, given.shape)
        buffer = Upload.frame(given.shape.wire_bytes)
        room = buffer[Upload.VECTOR_AT : Upload.VECTOR_AT + given.shape.wire_bytes]
        vector_digest = masks.write_masked(given.source, streams, context, room)
        sharing_digest = names_digest(labels.SHARING_DIGEST, sharing)
        signature = given.identity.sign(
            labels.SIGN_UPLOAD, spec.digest, self.adverts_digest, sharing_digest, vector_digest
        )
        Upload.finish(buffer, sharing_digest, vector_digest, signature)
        # Durable before the vector leaves: two sums of one update would differ by few sites.
        given.journal.uploaded(spec.study, AttemptId(spec.round, spec.exchange_index, spec.attempt))
        state = AwaitSurvivors(given, spec, self.adverts_digest, sharing, held, self.own_share)
        return state, buffer

    def _open(self, envelope: Envelope, key: sealing.SealKey) -> tuple[bytes, tuple[bytes, bytes]]:
        context = envelope_context(self.spec.digest, self.adverts_digest, envelope.sender, self.given.site)
        try:
            seed = key.open(envelope.sealed_seed, labels.SEAL_PAIR_SEED, *context)
            opened = self.secrets.seal_key.open(envelope.sealed_shares, labels.SEAL_SHARES, *context)
            reader = Reader(opened)
            shares = reader.fixed(shamir.SHARE_BYTES), reader.fixed(shamir.SHARE_BYTES)
            reader.end()
        except MalformedMessage:
            raise Refusal.ENVELOPE_SEALED.refuse(envelope.sender) from None
        return seed, shares


class MaskedSite:
    """One site's session for one attempt. Sans-I/O; see :class:`secfed.protection.SiteSession`."""

    def __init__(self, given: SiteContribution) -> None:
        self.state: State = AwaitSpecification(given)

    def handle(self, message: Buffer) -> Buffer:
        """Answer one message.

        Raises:
            SecfedError: the message is refused (see ``refusals.py``); the session is closed.
        """
        state, self.state = self.state, Closed()
        try:
            kind = peek_type(message)
            if state.accepts is None or kind != state.accepts.TYPE:
                if isinstance(state, AwaitResult) and kind == UnmaskRequest.TYPE:
                    raise Refusal.SECOND_UNMASK.refuse()
                raise Refusal.OUT_OF_ORDER.refuse(f"message type {kind}")
            decoded = state.accepts.decode(message)
        except MalformedMessage as error:
            raise Refusal.MALFORMED.refuse(error.message) from None
        self.state, reply = state.handle(decoded)
        return reply

    @property
    def released(self) -> tuple[str, ...] | None:
        """The survivors whose sum this site has helped to unmask, once its shares are ready to leave."""
        state = self.state
        return state.survivors if isinstance(state, AwaitResult) else None

    @property
    def result(self) -> Result | None:
        """The signed result, once the attempt is finished."""
        return self.state.result if isinstance(self.state, Finished) else None
