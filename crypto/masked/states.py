"""The states of a site's masked session from the peers' envelopes to the signed result.

    AwaitDeliveries -> AwaitSharingSet -> AwaitSurvivors -> AwaitUnmask -> AwaitResult -> Finished
            |
            +-> Complained

In a sparse graph ``AwaitNeighbourDeliveries`` and ``AwaitProvenUnmask`` stand for two of them.

An envelope that is signed but not good can be its sender's doing only. The site says so *before* anything
that is masked leaves any site, so that the server can do without one of the two and no update is spent.
The answer depends on the envelopes alone, never on the update.

After the masked vector has left, no state holds the site's mask secret or its self-mask seed: only shares of
the peers' secrets, and the site's own share of its self-mask seed. Shares leave once, for one survivor set
that this site has signed and enough survivors have confirmed, and for each peer it is the one share or the
other.

The rules, each with its number in ``refusals.py``, are checked in the order in which they are written here.

Source: Bonawitz et al. 2017, with the hardening described in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from secfed.crypto import labels, sealing, shamir
from secfed.crypto.attempt import AttemptId, SiteContribution
from secfed.crypto.codec import Buffer, Reader
from secfed.crypto.identity import Roster, verify
from secfed.crypto.masked import masks
from secfed.crypto.masked.closing import Closing, closed_shape
from secfed.crypto.masked.dealing import Dealer, Peers, Secrets
from secfed.crypto.masked.graph_messages import NeighbourDeliveries, ProvenUnmaskRequest, SeedEnvelope
from secfed.crypto.masked.key_derivation import (
    envelope_context,
    mask_key,
    outgoing_seed,
    pair_stream,
    share_digest,
)
from secfed.crypto.message_base import signed
from secfed.crypto.messages import (
    Confirmation,
    Deliveries,
    Envelope,
    MaskSecretShare,
    Message,
    PeerShare,
    Result,
    SelfMaskShare,
    Shares,
    SharingSet,
    Specification,
    Survivors,
    UnmaskRequest,
    Upload,
    View,
    names_digest,
    view_parts,
)
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import check_contributors, ordered_subset, verified
from secfed.errors import BadSignature, MalformedMessage


class ClientState(Protocol):
    """One state: the type it accepts, and what it does with it."""

    @property
    def accepts(self) -> type[Message] | None:
        """The only message type this state takes."""
        ...

    def handle(self, message: Any, /) -> tuple[ClientState, Buffer]:
        """Check a message of that type; the next state and the reply."""
        ...


@dataclass(frozen=True)
class Closed:
    """A refusal ended the attempt; its secrets are no longer in memory."""

    accepts: ClassVar[type[Message] | None] = None

    def handle(self, message: Message, /) -> tuple[ClientState, Buffer]:  # noqa: ARG002
        """Nothing is accepted any more."""
        raise Refusal.OUT_OF_ORDER.refuse()


@dataclass(frozen=True)
class _Opened:
    """What one envelope held: the sender's pair seed and, for a holder, shares of both its secrets."""

    seed: bytes = field(repr=False)
    shares: tuple[bytes, bytes] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class AwaitDeliveries:
    """Own envelopes are out; the peers' are expected."""

    dealer: Dealer
    peers: Peers
    own_share: SelfMaskShare | None = field(repr=False)
    accepts: ClassVar[type[Message]] = Deliveries

    @property
    def secrets(self) -> Secrets:
        """What this site drew for the attempt."""
        return self.dealer.secrets

    def handle(self, delivered: Deliveries) -> tuple[ClientState, Buffer]:
        """Message 3 (relayed) -> a confirmation, or a complaint."""
        return self._confirm(delivered.envelopes, ())

    def _confirm(
        self, envelopes: tuple[Envelope, ...], seeds: tuple[SeedEnvelope, ...]
    ) -> tuple[ClientState, Buffer]:
        """Check what came from dealers, and from neighbours that deal this site nothing."""
        own, spec, peers, me = self.dealer.own, self.dealer.spec, self.peers, self.dealer.own.site
        every: tuple[Envelope | SeedEnvelope, ...] = (*envelopes, *seeds)
        addressed = all(envelope.recipient == me for envelope in every)
        dealers, others = peers.among(peers.dealers), peers.among(peers.neighbours - peers.dealers)
        in_order = ordered_subset([envelope.sender for envelope in envelopes], dealers)
        if not addressed or not in_order or not ordered_subset([seed.sender for seed in seeds], others):
            raise Refusal.ENVELOPE_STRAY.refuse()
        context = spec.digest, self.dealer.adverts_digest
        for envelope in every:
            public, refusal = own.roster.public(envelope.sender), Refusal.ENVELOPE_SIGNATURE
            parts = envelope.LABEL, *context
            verified(envelope, public, *parts, who=envelope.sender, refusal=refusal)
        senders = peers.among(envelope.sender for envelope in every)
        if peers.holding((*senders, me)) < peers.threshold:
            raise Refusal.TOO_FEW_SHARING.refuse(f"{peers.holding((*senders, me))} of {peers.threshold}")
        key = mask_key(self.secrets.mask_secret)
        found = {envelope.sender: self._open(envelope, key) for envelope in every}
        good = {sender: opened for sender, opened in found.items() if opened is not None}
        confirmation = Confirmation(me, tuple(name for name in senders if name not in good))
        reply = signed(confirmation, own.identity, labels.SIGN_CONFIRMATION, *context).encode()
        if confirmation.complaints:
            return Complained(confirmation.complaints), reply
        return AwaitSharingSet(self, good), reply

    def _open(self, envelope: Envelope | SeedEnvelope, key: sealing.SealKey) -> _Opened | None:
        """What an envelope holds; None if it does not hold what it should."""
        spec_digest, me = self.dealer.spec.digest, self.dealer.own.site
        context = envelope_context(spec_digest, self.dealer.adverts_digest, envelope.sender, me)
        try:
            seed = key.open(envelope.sealed_seed, labels.SEAL_PAIR_SEED, *context)
            if isinstance(envelope, SeedEnvelope):
                return _Opened(seed)
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
class AwaitNeighbourDeliveries(AwaitDeliveries):
    """As :class:`AwaitDeliveries`, in a sparse graph: most neighbours deal this site nothing, or it them."""

    accepts: ClassVar[type[Message]] = NeighbourDeliveries

    def handle(self, delivered: NeighbourDeliveries) -> tuple[ClientState, Buffer]:  # type: ignore[override]
        """Message 3 (relayed) -> a confirmation, or a complaint."""
        return self._confirm(delivered.envelopes, delivered.seeds)


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
        dealer, peers, me = before.dealer, before.peers, before.dealer.own.site
        own, spec = dealer.own, dealer.spec
        # Of neighbours only those whose envelope is here; of other sites there is none.
        candidates = peers.among(frozenset(peers.advertised) - (peers.neighbours - self.opened.keys()))
        if me not in sharing or not ordered_subset(sharing, candidates):
            raise Refusal.ENVELOPE_STRAY.refuse("sharing set")
        if len(sharing) < spec.threshold:
            raise Refusal.TOO_FEW_SHARING.refuse(f"{len(sharing)} of {spec.threshold}")
        if peers.holding(sharing) < peers.threshold:
            raise Refusal.TOO_FEW_SHARING.refuse(f"{peers.holding(sharing)} of {peers.threshold} holders")
        masking = tuple(name for name in sharing if name in peers.neighbours)
        position = own.roster.position
        streams = [masks.self_mask(before.secrets.self_seed, 1)]
        for peer in masking:
            seed_out = outgoing_seed(before.secrets.mask_secret, spec.digest, me, peer)
            streams.append(pair_stream(position(me), position(peer), seed_out, self.opened[peer].seed))
        source, shape = own.source, own.shape
        if own.group_key is not None:
            closing = Closing(own.group_key, spec.digest, dealer.adverts_digest)
            streams.append(closing.stream(me, 1))
            source, shape = closing.tagged(source, shape), closed_shape(shape)
        context = masks.MaskContext(spec.digest, own.broadcast_digest, shape, own.cipher)
        buffer = Upload.frame(shape.wire_bytes)
        room = buffer[Upload.VECTOR_AT : Upload.VECTOR_AT + shape.wire_bytes]
        vector_digest = masks.write_masked(source, streams, context, room)
        sharing_digest = names_digest(labels.SHARING_DIGEST, sharing)
        parts = spec.digest, dealer.adverts_digest, sharing_digest, vector_digest
        signature = own.identity.sign(labels.SIGN_UPLOAD, *parts)
        Upload.finish(buffer, sharing_digest, vector_digest, signature)
        # Durable before the vector leaves: two sums of one update would differ by few sites.
        own.journal.uploaded(spec.study, AttemptId(spec.round, spec.exchange_index, spec.attempt))
        opened = ((peer, self.opened[peer].shares) for peer in masking)
        held = {peer: shares for peer, shares in opened if shares is not None}
        return AwaitSurvivors(
            dealer.own, spec, peers, dealer.adverts_digest, sharing, held, before.own_share
        ), buffer


@dataclass(frozen=True)
class AwaitSurvivors:
    """The masked vector is out. Of the secrets, only the peers' shares are handed on to here.

    Security: where a state folder lets a site survive restarts, the seed from which the mask secret and the
    self-mask seed can be made again stays on its disk until the exchange is over (SECURITY.md, "The state
    folder of a site").
    """

    own: SiteContribution
    spec: Specification
    peers: Peers
    adverts_digest: bytes
    sharing: tuple[str, ...]
    held: Mapping[str, tuple[bytes, bytes]] = field(repr=False)
    own_share: SelfMaskShare | None = field(repr=False)
    accepts: ClassVar = Survivors

    def handle(self, message: Survivors) -> tuple[ClientState, Buffer]:
        """Message 5 -> a signed view."""
        own, spec, survivors = self.own, self.spec, message.survivors
        if not ordered_subset(survivors, self.sharing):
            raise Refusal.SURVIVORS_OUTSIDE.refuse()
        if own.site not in survivors:
            raise Refusal.SURVIVORS_WITHOUT_SELF.refuse()
        if len(survivors) < max(spec.threshold, own.limits.min_cohort):
            raise Refusal.TOO_FEW_SURVIVORS.refuse(f"{len(survivors)} of {spec.threshold}")
        # A sparse graph may have survivors that share no mask with this sum, which is over t sites at least.
        strangers = len(survivors) - spec.threshold if self.peers.sparse else 0
        check_contributors(survivors, own, strangers=strangers)
        parts = view_parts(spec.digest, self.adverts_digest, self.sharing, survivors)
        view = View(own.site, own.identity.sign(labels.SIGN_VIEW, *parts))
        following = AwaitProvenUnmask if self.peers.sparse else AwaitUnmask
        return following(self, survivors), view.encode()


@dataclass(frozen=True)
class AwaitUnmask:
    """A survivor set has been signed; shares for exactly this set may leave, once."""

    before: AwaitSurvivors
    survivors: tuple[str, ...]
    accepts: ClassVar[type[Message]] = UnmaskRequest

    def handle(self, request: UnmaskRequest | ProvenUnmaskRequest) -> tuple[ClientState, Buffer]:
        """Message 6 -> one share per peer whose shares this site holds."""
        before = self.before
        own, spec = before.own, before.spec
        signers = tuple(view.site for view in request.views)
        if not ordered_subset(signers, self.survivors):
            raise Refusal.VIEW_OUTSIDER.refuse()
        parts = view_parts(spec.digest, before.adverts_digest, before.sharing, self.survivors)
        for view in request.views:
            public = own.roster.public(view.site)
            try:
                verify(public, view.signature, labels.SIGN_VIEW, *parts, who=view.site)
            except BadSignature:
                raise Refusal.VIEW_SIGNATURE.refuse(view.site) from None
        if len(signers) < spec.threshold:
            raise Refusal.TOO_FEW_VIEWS.refuse(f"{len(signers)} of {spec.threshold}")
        complement = tuple(name for name in before.sharing if name not in self.survivors)
        if request.dropped != complement:
            raise Refusal.DROPPED_MISMATCH.refuse()
        # Durable before the shares leave: after this line the update is never contributed again.
        own.journal.unmasked(spec.study, AttemptId(spec.round, spec.exchange_index, spec.attempt))
        shares: list[PeerShare] = [] if before.own_share is None else [before.own_share]
        for peer, (of_mask_secret, of_self_mask) in before.held.items():
            if peer in self.survivors:
                shares.append(SelfMaskShare(peer, of_self_mask))
            else:
                shares.append(MaskSecretShare(peer, of_mask_secret))
        shares.sort(key=lambda share: share.peer)
        reply = signed(Shares(tuple(shares)), own.identity, labels.SIGN_UNMASK, spec.digest)
        expected = Result if own.group_key is None else None
        return AwaitResult(own.roster, spec, self.survivors, expected), reply.encode()


@dataclass(frozen=True)
class AwaitProvenUnmask(AwaitUnmask):
    """As :class:`AwaitUnmask`, in a sparse graph: a share is owed only to a sum in which its dealer is bound.

    A dealer that was shown another sharing set may have masked towards none of its holders. Their shares of
    its self-mask seed would lay its vector open, so that each holder sees first what the dealer signed.
    """

    accepts: ClassVar[type[Message]] = ProvenUnmaskRequest

    def handle(self, request: UnmaskRequest | ProvenUnmaskRequest) -> tuple[ClientState, Buffer]:
        """Message 6 with proofs -> one share per peer whose shares this site holds."""
        before = self.before
        dealers = tuple(name for name in self.survivors if name in before.held)
        proofs = request.uploads if isinstance(request, ProvenUnmaskRequest) else ()
        if tuple(proof.site for proof in proofs) != dealers:
            raise Refusal.UPLOAD_UNPROVEN.refuse()
        sharing_digest = names_digest(labels.SHARING_DIGEST, before.sharing)
        for proof in proofs:
            public = before.own.roster.public(proof.site)
            parts = before.spec.digest, before.adverts_digest, sharing_digest, proof.vector_digest
            try:
                verify(public, proof.signature, labels.SIGN_UPLOAD, *parts, who=proof.site)
            except BadSignature:
                raise Refusal.UPLOAD_UNPROVEN.refuse(proof.site) from None
        return super().handle(request)


@dataclass(frozen=True)
class AwaitResult:
    """Shares are out; no secret of the attempt is left here (for a state folder see AwaitSurvivors)."""

    roster: Roster
    spec: Specification
    survivors: tuple[str, ...]
    accepts: type[Message] | None = Result  # a closed sum comes outside the attempt

    def handle(self, result: Result) -> tuple[ClientState, Buffer]:
        """Message 7 -> nothing."""
        public, refusal = self.roster.aggregator, Refusal.RESULT_SIGNATURE
        verified(result, public, labels.SIGN_RESULT, who="aggregator", refusal=refusal)
        if result.spec_digest != self.spec.digest or result.survivors != self.survivors:
            raise Refusal.RESULT_MISMATCH.refuse()
        return Finished(result), b""


@dataclass(frozen=True)
class Finished(Closed):
    """The attempt is complete."""

    result: Result
