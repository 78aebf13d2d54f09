"""The states of the aggregator's session from the sharing set to the sum: nothing is undone from here on.

    mask -> consistency -> unmask -> done

Masked vectors are added as they arrive and not kept. What a site answers wrongly at the end is found by that
answer alone (``recovery.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster, verify
from secfed.crypto.masked import masks
from secfed.crypto.masked.graph_messages import ProvenUnmaskRequest, UploadProof
from secfed.crypto.masked.recovery import Dealt, check_shares, unmasking_streams
from secfed.crypto.messages import (
    Shares,
    Specification,
    Survivors,
    UnmaskRequest,
    Upload,
    View,
    names_digest,
    view_parts,
)
from secfed.crypto.specification import Signed
from secfed.errors import InconsistentView, MalformedMessage, RoundAborted, WrongState


@dataclass
class Attempt:
    """What all states of one attempt know."""

    spec: Specification
    roster: Roster
    context: masks.MaskContext
    total: masks.Accumulator
    disputes: tuple[tuple[str, str], ...] = ()  # (who complained, of whom)
    adverts_digest: bytes = b""  # once keys are advertised

    def check_signature(self, site: str, signature: bytes, label: bytes, *parts: Buffer) -> None:
        """Check a signature of one site over these parts."""
        verify(self.roster.public(site), signature, label, *parts, who=site)

    def check_signed(self, site: str, record: Signed, label: bytes, *context: Buffer) -> None:
        """Check the signature of a record of one site, in this attempt."""
        self.check_signature(site, record.signature, label, self.spec.digest, *context, record.body())

    def in_order(self, sites: Mapping[str, Any]) -> tuple[str, ...]:
        """These sites in roster order."""
        return tuple(name for name in self.spec.cohort if name in sites)

    def require(self, sites: Mapping[str, Any], what: str, *, revealed: str = "nothing was revealed") -> None:
        """Give the attempt up if fewer sites than the threshold did something."""
        if len(sites) < self.spec.threshold:
            raise RoundAborted(
                f"only {len(sites)} of {len(self.spec.cohort)} sites {what}, "
                f"{self.spec.threshold} are needed; {revealed}.",
                remedy="wait for more sites, or enrol more so that the threshold leaves room",
            )


class State(Protocol):
    """One step of the server: it takes replies, and is closed."""

    @property
    def stage(self) -> str:
        """Its name."""
        ...

    def receive(self, site: str, reply: Buffer) -> None:
        """Take one site's reply, or refuse it."""
        ...

    def close(self) -> tuple[State, Mapping[str, Buffer]]:
        """The next step and its requests."""
        ...


@dataclass
class Mask:
    """The sharing set is known; masked vectors are added up."""

    attempt: Attempt
    dealt: Dealt
    sharing: tuple[str, ...]
    stage: str = "mask"
    uploads: dict[str, UploadProof] = field(default_factory=dict)  # site -> what it signed

    def receive(self, site: str, reply: Buffer) -> None:
        """See :class:`State`."""
        upload = Upload.decode(reply)
        sharing_digest = names_digest(labels.SHARING_DIGEST, self.sharing)
        if upload.sharing_digest != sharing_digest:
            raise InconsistentView(f"site {site!r} masked for another sharing set")
        digest = masks.vector_digest(upload.vector)
        if digest != upload.vector_digest:
            raise MalformedMessage(f"the vector of site {site!r} does not match its signed digest")
        parts = self.attempt.spec.digest, self.dealt.adverts_digest, sharing_digest, digest
        self.attempt.check_signature(site, upload.signature, labels.SIGN_UPLOAD, *parts)
        self.attempt.total.add(upload.vector)
        self.uploads[site] = UploadProof(site, digest, upload.signature)

    def close(self) -> tuple[State, Mapping[str, Buffer]]:
        """See :class:`State`."""
        self.attempt.require(self.uploads, "uploaded")
        survivors = self.attempt.in_order(self.uploads)
        encoded = Survivors(survivors).encode()
        return Consistency(self, survivors), dict.fromkeys(survivors, encoded)


@dataclass
class Consistency:
    """The survivors are known; their signatures are collected."""

    masked: Mask
    survivors: tuple[str, ...]
    stage: str = "consistency"
    views: dict[str, View] = field(default_factory=dict)

    def receive(self, site: str, reply: Buffer) -> None:
        """See :class:`State`."""
        masked, attempt = self.masked, self.masked.attempt
        view = View.decode(reply)
        if view.site != site:
            raise InconsistentView(f"site {site!r} signed in another site's name")
        parts = view_parts(attempt.spec.digest, masked.dealt.adverts_digest, masked.sharing, self.survivors)
        attempt.check_signature(site, view.signature, labels.SIGN_VIEW, *parts)
        self.views[site] = view

    def close(self) -> tuple[State, Mapping[str, Buffer]]:
        """See :class:`State`."""
        attempt = self.masked.attempt
        attempt.require(self.views, "confirmed the survivors")
        signers = attempt.in_order(self.views)
        dropped = tuple(name for name in self.masked.sharing if name not in self.survivors)
        views = tuple(self.views[name] for name in signers)
        following = Unmask(self.masked, self.survivors, dropped)
        if self.masked.dealt.choices is None:
            return following, dict.fromkeys(signers, UnmaskRequest(dropped, views).encode())
        return following, {
            name: ProvenUnmaskRequest(dropped, views, self._proofs(name)).encode() for name in signers
        }

    def _proofs(self, holder: str) -> tuple[UploadProof, ...]:
        """What the survivors signed whose shares one site holds."""
        masked = self.masked
        return tuple(masked.uploads[name] for name in self.survivors if masked.dealt.holds(holder, name))


@dataclass
class Unmask:
    """Enough survivors signed; shares are collected."""

    masked: Mask
    survivors: tuple[str, ...]
    dropped: tuple[str, ...]
    stage: str = "unmask"
    shares: dict[str, dict[str, bytes]] = field(default_factory=dict)  # answering site -> peer -> share

    def receive(self, site: str, reply: Buffer) -> None:
        """See :class:`State`."""
        masked, attempt = self.masked, self.masked.attempt
        message = Shares.decode(reply)
        attempt.check_signed(site, message, labels.SIGN_UNMASK)
        expected = sorted(name for name in masked.sharing if masked.dealt.holds(site, name))
        if [share.peer for share in message.shares] != expected:
            raise InconsistentView(f"site {site!r} did not answer for exactly the sharing set")
        check_shares(site, message.shares, self.survivors, masked.dealt)
        self.shares[site] = {share.peer: share.share for share in message.shares}

    def close(self) -> tuple[State, Mapping[str, Buffer]]:
        """See :class:`State`."""
        dealt, attempt = self.masked.dealt, self.masked.attempt
        attempt.require(self.shares, "returned shares", revealed="the sum stays masked")
        streams = unmasking_streams(
            dealt, self.survivors, self.dropped, self.shares, threshold=attempt.spec.threshold
        )
        attempt.total.apply(streams, attempt.context)
        return Done(attempt, self.survivors), {}


@dataclass
class Done:
    """The sum is complete."""

    attempt: Attempt
    survivors: tuple[str, ...]
    stage: str = "done"

    def receive(self, site: str, reply: Buffer) -> None:  # noqa: ARG002
        """See :class:`State`."""
        raise WrongState(f"site {site!r} answered after the attempt was over")

    def close(self) -> tuple[State, Mapping[str, Buffer]]:
        """See :class:`State`."""
        raise WrongState("the attempt is over")
