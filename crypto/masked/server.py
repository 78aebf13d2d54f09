"""The aggregator's half of masked protection: it relays, adds, and asks for exactly one set of shares.

    advertise -> share -> confirm -> mask -> consistency -> unmask -> done

Each state takes one reply per site and knows how to close its step. A reply that is wrong is an error
for that site only: the caller counts the site as dropped and goes on. What a site can do wrong towards
its *peers* shows before anything that is masked leaves a site: as a complaint, which ends the attempt, and
of which the server says between whom it stands (``disputes.py`` says what follows from it). What a site
answers wrongly at the end is found by that answer alone (``recovery.py``). Masked vectors are added
as they arrive and not kept. What the server can learn is the sum over the survivors; everything a server
could try instead is refused by the sites (``client.py`` and the files it names), so this file carries
no trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from secfed.crypto import labels, sealing
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster, verify
from secfed.crypto.lanes import VectorShape
from secfed.crypto.masked import masks
from secfed.crypto.masked.recovery import Dealt, check_shares, unmasking_streams
from secfed.crypto.messages import (
    Advert,
    Adverts,
    Confirmation,
    Deliveries,
    Shares,
    Sharing,
    SharingSet,
    Specification,
    Survivors,
    UnmaskRequest,
    Upload,
    View,
    names_digest,
    view_parts,
)
from secfed.crypto.specification import Signed, ordered_subset
from secfed.errors import InconsistentView, MalformedMessage, RoundAborted, WrongState


@dataclass
class _Attempt:
    """What all states of one attempt know."""

    spec: Specification
    roster: Roster
    context: masks.MaskContext
    total: masks.Accumulator
    disputes: tuple[tuple[str, str], ...] = ()  # (who complained, of whom)
    adverts_digest: bytes = b""  # once keys are advertised

    def check_signature(self, site: str, signature: bytes, label: bytes, *parts: Buffer) -> None:
        verify(self.roster.public(site), signature, label, *parts, who=site)

    def check_signed(self, site: str, record: Signed, label: bytes, *context: Buffer) -> None:
        self.check_signature(site, record.signature, label, self.spec.digest, *context, record.body())

    def in_order(self, sites: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(name for name in self.spec.cohort if name in sites)

    def require(self, sites: Mapping[str, Any], what: str, *, revealed: str = "nothing was revealed") -> None:
        if len(sites) < self.spec.threshold:
            raise RoundAborted(
                f"only {len(sites)} of {len(self.spec.cohort)} sites {what}, "
                f"{self.spec.threshold} are needed; {revealed}.",
                remedy="wait for more sites, or enrol more so that the threshold leaves room",
            )


class _State(Protocol):
    @property
    def stage(self) -> str: ...

    def receive(self, site: str, reply: Buffer) -> None: ...

    def close(self) -> tuple[_State, Mapping[str, Buffer]]: ...


@dataclass
class _Advertise:
    attempt: _Attempt
    stage: str = "advertise"
    adverts: dict[str, Advert] = field(default_factory=dict)

    def receive(self, site: str, reply: Buffer) -> None:
        advert = Advert.decode(reply)
        if advert.site != site:
            raise InconsistentView(f"site {site!r} advertised in another site's name")
        self.attempt.check_signed(site, advert, labels.SIGN_ADVERT)
        for public in (advert.mask_key, advert.seal_key):
            # A trial: a key that cannot be sealed to would make every peer refuse, not only drop this site.
            sealing.seal(public, b"", labels.SEAL_PAIR_SEED)
        self._check_fresh(advert)
        self.adverts[site] = advert

    def _check_fresh(self, advert: Advert) -> None:
        """Take no key twice: every peer would refuse (20), and the attempt would die of one site.

        Whoever comes second is dropped. Only who reads an honest site's advert before the server has it could
        come first with a copy, and who sits there can hold that site's messages back as well.
        """
        if len(set(advert.fresh)) < len(advert.fresh):
            raise InconsistentView(f"site {advert.site!r} advertised one key for two purposes")
        for other in self.adverts.values():
            if not set(advert.fresh).isdisjoint(other.fresh):
                raise InconsistentView(
                    f"site {advert.site!r} advertised a key or commitment that site {other.site!r} had "
                    "advertised before"
                )

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        self.attempt.require(self.adverts, "advertised keys")
        names = self.attempt.in_order(self.adverts)
        message = Adverts(tuple(self.adverts[name] for name in names))
        encoded = message.encode()
        self.attempt.adverts_digest = message.digest
        dealt = Dealt(self.attempt.roster, self.attempt.spec.digest, self.adverts, message.digest)
        return _Share(self.attempt, dealt), dict.fromkeys(names, encoded)


@dataclass
class _Share:
    attempt: _Attempt
    dealt: Dealt
    stage: str = "share"

    def receive(self, site: str, reply: Buffer) -> None:
        sharing = Sharing.decode(reply)
        expected = [name for name in self.attempt.in_order(self.dealt.adverts) if name != site]
        if [envelope.recipient for envelope in sharing.envelopes] != expected:
            raise InconsistentView(f"site {site!r} did not share with exactly the advertised peers")
        for envelope in sharing.envelopes:
            if envelope.sender != site:
                raise InconsistentView(f"site {site!r} shared in another site's name")
            self.attempt.check_signed(site, envelope, labels.SIGN_ENVELOPE, self.dealt.adverts_digest)
        self.dealt.envelopes[site] = {envelope.recipient: envelope for envelope in sharing.envelopes}

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        envelopes = self.dealt.envelopes
        self.attempt.require(envelopes, "shared secrets")
        dealers = self.attempt.in_order(envelopes)
        requests = {
            name: Deliveries(tuple(envelopes[peer][name] for peer in dealers if peer != name)).encode()
            for name in dealers
        }
        return _Confirm(self.attempt, self.dealt, dealers), requests


@dataclass
class _Confirm:
    attempt: _Attempt
    dealt: Dealt
    dealers: tuple[str, ...]
    stage: str = "confirm"
    complaints: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def receive(self, site: str, reply: Buffer) -> None:
        confirmation = Confirmation.decode(reply)
        if confirmation.site != site:
            raise InconsistentView(f"site {site!r} confirmed in another site's name")
        self.attempt.check_signed(site, confirmation, labels.SIGN_CONFIRMATION, self.dealt.adverts_digest)
        senders = tuple(name for name in self.dealers if name != site)
        if not ordered_subset(confirmation.complaints, senders):
            raise InconsistentView(f"site {site!r} complained of a site that sent it nothing")
        self.complaints[site] = confirmation.complaints

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        answered = self.attempt.in_order(self.complaints)
        self.attempt.disputes = tuple((one, other) for one in answered for other in self.complaints[one])
        if self.attempt.disputes:
            # Before the first upload: no update is spent, and another attempt can do without the culprit.
            raise RoundAborted(
                "; ".join(f"{one} cannot use the envelope of {other}" for one, other in self.attempt.disputes)
                + "; nothing was revealed.",
                remedy="one of the two does not follow the protocol; ask both",
            )
        self.attempt.require(self.complaints, "confirmed their envelopes")
        encoded = SharingSet(answered).encode()
        return _Mask(self.attempt, self.dealt, answered), dict.fromkeys(answered, encoded)


@dataclass
class _Mask:
    attempt: _Attempt
    dealt: Dealt
    sharing: tuple[str, ...]
    stage: str = "mask"
    uploads: dict[str, bytes] = field(default_factory=dict)  # site -> digest of its masked vector

    def receive(self, site: str, reply: Buffer) -> None:
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
        self.uploads[site] = digest

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        self.attempt.require(self.uploads, "uploaded")
        survivors = self.attempt.in_order(self.uploads)
        encoded = Survivors(survivors).encode()
        return _Consistency(self, survivors), dict.fromkeys(survivors, encoded)


@dataclass
class _Consistency:
    masked: _Mask
    survivors: tuple[str, ...]
    stage: str = "consistency"
    views: dict[str, View] = field(default_factory=dict)

    def receive(self, site: str, reply: Buffer) -> None:
        masked, attempt = self.masked, self.masked.attempt
        view = View.decode(reply)
        if view.site != site:
            raise InconsistentView(f"site {site!r} signed in another site's name")
        parts = view_parts(attempt.spec.digest, masked.dealt.adverts_digest, masked.sharing, self.survivors)
        attempt.check_signature(site, view.signature, labels.SIGN_VIEW, *parts)
        self.views[site] = view

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        attempt = self.masked.attempt
        attempt.require(self.views, "confirmed the survivors")
        signers = attempt.in_order(self.views)
        dropped = tuple(name for name in self.masked.sharing if name not in self.survivors)
        encoded = UnmaskRequest(dropped, tuple(self.views[name] for name in signers)).encode()
        return _Unmask(self.masked, self.survivors, dropped), dict.fromkeys(signers, encoded)


@dataclass
class _Unmask:
    masked: _Mask
    survivors: tuple[str, ...]
    dropped: tuple[str, ...]
    stage: str = "unmask"
    shares: dict[str, dict[str, bytes]] = field(default_factory=dict)  # answering site -> peer -> share

    def receive(self, site: str, reply: Buffer) -> None:
        masked, attempt = self.masked, self.masked.attempt
        message = Shares.decode(reply)
        attempt.check_signed(site, message, labels.SIGN_UNMASK)
        if [share.peer for share in message.shares] != sorted(masked.sharing):
            raise InconsistentView(f"site {site!r} did not answer for exactly the sharing set")
        check_shares(site, message.shares, self.survivors, masked.dealt)
        self.shares[site] = {share.peer: share.share for share in message.shares}

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        dealt, attempt = self.masked.dealt, self.masked.attempt
        attempt.require(self.shares, "returned shares", revealed="the sum stays masked")
        streams = unmasking_streams(
            dealt, self.survivors, self.dropped, self.shares, threshold=attempt.spec.threshold
        )
        attempt.total.apply(streams, attempt.context)
        return _Done(attempt, self.survivors), {}


@dataclass
class _Done:
    attempt: _Attempt
    survivors: tuple[str, ...]
    stage: str = "done"

    def receive(self, site: str, reply: Buffer) -> None:  # noqa: ARG002
        raise WrongState(f"site {site!r} answered after the attempt was over")

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        raise WrongState("the attempt is over")


class MaskedServer:
    """The aggregator's session for one attempt. Sans-I/O."""

    def __init__(self, spec: Specification, roster: Roster, shape: VectorShape) -> None:
        context = masks.MaskContext(spec.digest, spec.broadcast_digest, shape)
        self._attempt = _Attempt(spec, roster, context, masks.Accumulator(shape))
        self._state: _State = _Advertise(self._attempt)
        self._asked: tuple[str, ...] = ()
        self._answered: set[str] = set()
        self.spent = False  # once true, the sites' updates are spent

    def begin(self) -> Mapping[str, Buffer]:
        """Message 0 to every site of the cohort."""
        encoded = self._attempt.spec.encode()
        self._asked = self._attempt.spec.cohort
        return dict.fromkeys(self._asked, encoded)

    def receive(self, site: str, reply: Buffer) -> None:
        """Take one reply to the current requests; a site whose reply is refused counts as dropped."""
        if site not in self._asked or site in self._answered:
            raise WrongState(f"site {site!r} was not asked, or answered twice")
        self._answered.add(site)
        self._state.receive(site, reply)

    def advance(self) -> Mapping[str, Buffer]:
        """Close the current step; the next requests, empty when done.

        Raises:
            RoundAborted: fewer sites than the threshold are left.
        """
        self._state, requests = self._state.close()
        self._asked, self._answered = tuple(requests), set()
        if isinstance(self._state, _Mask):
            self.spent = True
        return requests

    @property
    def stage(self) -> str:
        """Name of the current step."""
        return self._state.stage

    @property
    def disputes(self) -> tuple[tuple[str, str], ...]:
        """Complaints that ended the attempt: (who complained, of whom). One of each two is at fault."""
        return self._attempt.disputes

    @property
    def _done(self) -> _Done:
        if not isinstance(self._state, _Done):
            raise WrongState("the sum is not complete yet")
        return self._state

    @property
    def survivors(self) -> tuple[str, ...]:
        """Sites whose summand is in the sum."""
        return self._done.survivors

    @property
    def shape(self) -> VectorShape:
        """Of what is summed."""
        return self._attempt.context.shape

    @property
    def adverts_digest(self) -> bytes:
        """What the streams that close a sum are bound to, beside the specification."""
        return self._done.attempt.adverts_digest

    @property
    def sums(self) -> tuple[NDArray[Any], ...]:
        """Ring integers of the sum, one array per run."""
        return self._done.attempt.total.reduced()
