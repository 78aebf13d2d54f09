"""The site's half of masked protection from the peers' envelopes to the masked vector.

    AwaitDeliveries -> AwaitSharingSet -> AwaitSurvivors
            |
            +-> Complained

An envelope that is signed but not good can be its sender's doing only. The site says so *before* anything
that is masked leaves any site, so that the server can do without one of the two and no update is spent.
The answer depends on the envelopes alone, never on the update.

The rules, each with its number in ``refusals.py``, are checked in the order in which they are written here.

Source: Bonawitz et al. 2017, with the hardening described in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from secfed.crypto import labels, sealing, shamir
from secfed.crypto.attempt import AttemptId, SiteContribution
from secfed.crypto.codec import Buffer, Reader
from secfed.crypto.masked import masks
from secfed.crypto.masked.key_derivation import (
    envelope_context,
    mask_key,
    outgoing_seed,
    pair_stream,
    share_digest,
)
from secfed.crypto.masked.state import ClientState, Secrets
from secfed.crypto.masked.unmask import AwaitSurvivors
from secfed.crypto.message_base import signed
from secfed.crypto.messages import (
    Confirmation,
    Deliveries,
    Envelope,
    SelfMaskShare,
    SharingSet,
    Specification,
    Upload,
    names_digest,
)
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import ordered_subset, verified
from secfed.errors import MalformedMessage


@dataclass(frozen=True)
class _Opened:
    """What one envelope held: the sender's pair seed and shares of both its secrets."""

    seed: bytes = field(repr=False)
    shares: tuple[bytes, bytes] = field(repr=False)


@dataclass(frozen=True)
class AwaitDeliveries:
    """Own envelopes are out; the peers' are expected."""

    own: SiteContribution
    spec: Specification
    secrets: Secrets = field(repr=False)
    advertised: tuple[str, ...]
    adverts_digest: bytes
    own_share: SelfMaskShare = field(repr=False)
    accepts: ClassVar = Deliveries

    def handle(self, delivered: Deliveries) -> tuple[ClientState, Buffer]:
        """Message 3 (relayed) -> a confirmation, or a complaint."""
        own, spec, me = self.own, self.spec, self.own.site
        senders = tuple(envelope.sender for envelope in delivered.envelopes)
        peers = tuple(name for name in self.advertised if name != me)
        addressed = all(envelope.recipient == me for envelope in delivered.envelopes)
        if not addressed or not ordered_subset(senders, peers):
            raise Refusal.ENVELOPE_STRAY.refuse()
        context = spec.digest, self.adverts_digest
        for envelope in delivered.envelopes:
            public, refusal = own.roster.public(envelope.sender), Refusal.ENVELOPE_SIGNATURE
            parts = labels.SIGN_ENVELOPE, *context
            verified(envelope, public, *parts, who=envelope.sender, refusal=refusal)
        if len(senders) + 1 < spec.threshold:
            raise Refusal.TOO_FEW_SHARING.refuse(f"{len(senders) + 1} of {spec.threshold}")
        key = mask_key(self.secrets.mask_secret)
        found = {envelope.sender: self._open(envelope, key) for envelope in delivered.envelopes}
        good = {sender: opened for sender, opened in found.items() if opened is not None}
        confirmation = Confirmation(me, tuple(name for name in senders if name not in good))
        reply = signed(confirmation, own.identity, labels.SIGN_CONFIRMATION, *context).encode()
        if confirmation.complaints:
            return Complained(confirmation.complaints), reply
        return AwaitSharingSet(self, good), reply

    def _open(self, envelope: Envelope, key: sealing.SealKey) -> _Opened | None:
        """What an envelope holds; None if it does not hold what it should."""
        context = envelope_context(self.spec.digest, self.adverts_digest, envelope.sender, self.own.site)
        try:
            seed = key.open(envelope.sealed_seed, labels.SEAL_PAIR_SEED, *context)
            reader = Reader(self.secrets.seal_key.open(envelope.sealed_shares, labels.SEAL_SHARES, *context))
            of_mask_secret, of_self_mask = reader.fixed(shamir.SHARE_BYTES), reader.fixed(shamir.SHARE_BYTES)
            reader.end()
        except MalformedMessage:
            return None
        stated = envelope.mask_secret_share_digest, envelope.self_mask_share_digest
        held = (
            share_digest(labels.MASK_SECRET_SHARE, context, of_mask_secret),
            share_digest(labels.SELF_MASK_SHARE, context, of_self_mask),
        )
        return _Opened(seed, (of_mask_secret, of_self_mask)) if held == stated else None


@dataclass(frozen=True)
class Complained:
    """This site named peers whose envelopes are no good: it uploads nothing in this attempt."""

    accused: tuple[str, ...]
    accepts: ClassVar = SharingSet

    def handle(self, message: SharingSet) -> tuple[ClientState, Buffer]:  # noqa: ARG002
        """Nothing is accepted any more."""
        raise Refusal.ENVELOPE_SEALED.refuse(", ".join(self.accused))


@dataclass(frozen=True)
class AwaitSharingSet:
    """All envelopes are good; who else confirmed is expected."""

    before: AwaitDeliveries
    opened: Mapping[str, _Opened] = field(repr=False)
    accepts: ClassVar = SharingSet

    def handle(self, message: SharingSet) -> tuple[ClientState, Buffer]:
        """Message 4, downwards -> the masked vector."""
        before, sharing = self.before, message.sharing
        own, spec, me = before.own, before.spec, before.own.site
        candidates = tuple(name for name in before.advertised if name == me or name in self.opened)
        if me not in sharing or not ordered_subset(sharing, candidates):
            raise Refusal.ENVELOPE_STRAY.refuse("sharing set")
        if len(sharing) < spec.threshold:
            raise Refusal.TOO_FEW_SHARING.refuse(f"{len(sharing)} of {spec.threshold}")
        peers = tuple(name for name in sharing if name != me)
        position = own.roster.position
        streams = [masks.self_mask(before.secrets.self_seed, 1)]
        for peer in peers:
            seed_out = outgoing_seed(before.secrets.mask_secret, spec.digest, me, peer)
            streams.append(pair_stream(position(me), position(peer), seed_out, self.opened[peer].seed))
        context = masks.MaskContext(spec.digest, own.broadcast_digest, own.shape)
        buffer = Upload.frame(own.shape.wire_bytes)
        room = buffer[Upload.VECTOR_AT : Upload.VECTOR_AT + own.shape.wire_bytes]
        vector_digest = masks.write_masked(own.source, streams, context, room)
        sharing_digest = names_digest(labels.SHARING_DIGEST, sharing)
        parts = spec.digest, before.adverts_digest, sharing_digest, vector_digest
        signature = own.identity.sign(labels.SIGN_UPLOAD, *parts)
        Upload.finish(buffer, sharing_digest, vector_digest, signature)
        # Durable before the vector leaves: two sums of one update would differ by few sites.
        own.journal.uploaded(spec.study, AttemptId(spec.round, spec.exchange_index, spec.attempt))
        held = {peer: self.opened[peer].shares for peer in peers}
        return AwaitSurvivors(own, spec, before.adverts_digest, sharing, held, before.own_share), buffer
