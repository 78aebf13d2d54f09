"""The site's half of masked protection after the masked vector has left: which sum may be unmasked, once.

    AwaitSurvivors -> AwaitUnmask -> AwaitResult -> Finished

The states before these are in ``upload.py``; they hand on neither the site's mask secret nor its
self-mask seed. What the states below guard are shares of the peers' secrets, and the site's own share of its
self-mask seed. Shares leave once, for one survivor set that this site has signed and enough survivors have
confirmed, and for each peer it is the one share or the other.

The rules, each with its number in ``refusals.py``, are checked in the order in which they are written here.

Source: Bonawitz et al. 2017, with the hardening described in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from secfed.crypto import labels
from secfed.crypto.attempt import AttemptId, SiteContribution
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster, verify
from secfed.crypto.masked.state import ClientState, Closed
from secfed.crypto.message_base import signed
from secfed.crypto.messages import (
    MaskSecretShare,
    PeerShare,
    Result,
    SelfMaskShare,
    Shares,
    Specification,
    Survivors,
    UnmaskRequest,
    View,
    view_parts,
)
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import check_contributors, ordered_subset, verified
from secfed.errors import BadSignature


@dataclass(frozen=True)
class AwaitSurvivors:
    """The masked vector is out. Of the secrets, only the peers' shares are handed on to here.

    Security: where a state folder lets a site survive restarts, the seed from which the mask secret and the
    self-mask seed can be made again stays on its disk until the exchange is over (SECURITY.md, "The state
    folder of a site").
    """

    own: SiteContribution
    spec: Specification
    adverts_digest: bytes
    sharing: tuple[str, ...]
    held: Mapping[str, tuple[bytes, bytes]] = field(repr=False)
    own_share: SelfMaskShare = field(repr=False)
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
        check_contributors(survivors, own)
        parts = view_parts(spec.digest, self.adverts_digest, self.sharing, survivors)
        view = View(own.site, own.identity.sign(labels.SIGN_VIEW, *parts))
        return AwaitUnmask(self, survivors), view.encode()


@dataclass(frozen=True)
class AwaitUnmask:
    """A survivor set has been signed; shares for exactly this set may leave, once."""

    before: AwaitSurvivors
    survivors: tuple[str, ...]
    accepts: ClassVar = UnmaskRequest

    def handle(self, request: UnmaskRequest) -> tuple[ClientState, Buffer]:
        """Message 6 -> one share per peer."""
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
        shares: list[PeerShare] = []
        for peer in sorted(before.sharing):
            if peer == own.site:
                shares.append(before.own_share)
            elif peer in self.survivors:
                shares.append(SelfMaskShare(peer, before.held[peer][1]))
            else:
                shares.append(MaskSecretShare(peer, before.held[peer][0]))
        reply = signed(Shares(tuple(shares)), own.identity, labels.SIGN_UNMASK, spec.digest)
        return AwaitResult(own.roster, spec, self.survivors), reply.encode()


@dataclass(frozen=True)
class AwaitResult:
    """Shares are out; no secret of the attempt is left here (for a state folder see AwaitSurvivors)."""

    roster: Roster
    spec: Specification
    survivors: tuple[str, ...]
    accepts: ClassVar = Result

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
