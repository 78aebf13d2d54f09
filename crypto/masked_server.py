"""The aggregator's half of masked protection: it relays, adds, and asks for exactly one set of shares.

    advertise -> share -> mask -> consistency -> unmask -> done

Each state takes one reply per site and knows how to close its step. A reply that is wrong is an error
for that site only: the caller counts the site as dropped and goes on. Masked vectors are added as they
arrive and not kept. What the server can learn is the sum over the survivors; everything a server could
try instead is refused by the sites (``masked_site.py`` and ``masked_unmask.py``), so this file carries no
trust.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations, islice
from typing import Any, Protocol

from numpy.typing import NDArray

from secfed.crypto import labels, masks, sealing, shamir
from secfed.crypto.codec import Buffer
from secfed.crypto.derivations import commitment, envelope_context, mask_key, outgoing_seed, pair_stream
from secfed.crypto.identity import Roster, verify
from secfed.crypto.lanes import VectorShape
from secfed.crypto.messages import (
    Advert,
    Adverts,
    Deliveries,
    Envelope,
    MaskSecretShare,
    SelfMaskShare,
    Shares,
    Sharing,
    Specification,
    Survivors,
    UnmaskRequest,
    Upload,
    View,
    names_digest,
    view_parts,
)
from secfed.errors import InconsistentView, MalformedMessage, RangeError, RoundAborted, WrongState

_MAX_SUBSETS = 500  # share subsets tried before a secret counts as lost (a site dealt or returned bad shares)


@dataclass
class _Attempt:
    """What all states of one attempt know."""

    spec: Specification
    roster: Roster
    context: masks.MaskContext
    total: masks.Accumulator

    def check_signature(self, site: str, signature: bytes, label: bytes, *parts: Buffer) -> None:
        verify(self.roster.public(site), signature, label, *parts, who=site)

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
        spec = self.attempt.spec
        self.attempt.check_signature(site, advert.signature, labels.SIGN_ADVERT, spec.digest, advert.body())
        for public in (advert.mask_key, advert.seal_key):
            # A trial: a key that cannot be sealed to would make every peer refuse, not only drop this site.
            sealing.seal(public, b"", labels.SEAL_PAIR_SEED)
        self.adverts[site] = advert

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        self.attempt.require(self.adverts, "advertised keys")
        names = self.attempt.in_order(self.adverts)
        message = Adverts(tuple(self.adverts[name] for name in names))
        encoded = message.encode()
        return _Share(self.attempt, self.adverts, message.digest), dict.fromkeys(names, encoded)


@dataclass
class _Share:
    attempt: _Attempt
    adverts: dict[str, Advert]
    adverts_digest: bytes
    stage: str = "share"
    envelopes: dict[str, dict[str, Envelope]] = field(default_factory=dict)  # sender -> recipient -> envelope

    def receive(self, site: str, reply: Buffer) -> None:
        spec = self.attempt.spec
        sharing = Sharing.decode(reply)
        expected = [name for name in self.attempt.in_order(self.adverts) if name != site]
        if [envelope.recipient for envelope in sharing.envelopes] != expected:
            raise InconsistentView(f"site {site!r} did not share with exactly the advertised peers")
        for envelope in sharing.envelopes:
            if envelope.sender != site:
                raise InconsistentView(f"site {site!r} shared in another site's name")
            self.attempt.check_signature(
                site,
                envelope.signature,
                labels.SIGN_ENVELOPE,
                spec.digest,
                self.adverts_digest,
                envelope.body(),
            )
        self.envelopes[site] = {envelope.recipient: envelope for envelope in sharing.envelopes}

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        self.attempt.require(self.envelopes, "shared secrets")
        sharing = self.attempt.in_order(self.envelopes)
        requests = {
            name: Deliveries(tuple(self.envelopes[peer][name] for peer in sharing if peer != name)).encode()
            for name in sharing
        }
        state = _Mask(self.attempt, self.adverts, self.adverts_digest, self.envelopes, sharing)
        return state, requests


@dataclass
class _Mask:
    attempt: _Attempt
    adverts: dict[str, Advert]
    adverts_digest: bytes
    envelopes: dict[str, dict[str, Envelope]]
    sharing: tuple[str, ...]
    stage: str = "mask"
    uploads: dict[str, bytes] = field(default_factory=dict)  # site -> digest of its masked vector

    def receive(self, site: str, reply: Buffer) -> None:
        spec = self.attempt.spec
        upload = Upload.decode(reply)
        sharing_digest = names_digest(labels.SHARING_DIGEST, self.sharing)
        if upload.sharing_digest != sharing_digest:
            raise InconsistentView(f"site {site!r} masked for another sharing set")
        digest = masks.vector_digest(upload.vector)
        if digest != upload.vector_digest:
            raise MalformedMessage(f"the vector of site {site!r} does not match its signed digest")
        self.attempt.check_signature(
            site,
            upload.signature,
            labels.SIGN_UPLOAD,
            spec.digest,
            self.adverts_digest,
            sharing_digest,
            digest,
        )
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
        parts = view_parts(attempt.spec.digest, masked.adverts_digest, masked.sharing, self.survivors)
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
        attempt = self.masked.attempt
        message = Shares.decode(reply)
        attempt.check_signature(
            site, message.signature, labels.SIGN_UNMASK, attempt.spec.digest, message.body()
        )
        if [share.peer for share in message.shares] != sorted(self.masked.sharing):
            raise InconsistentView(f"site {site!r} did not answer for exactly the sharing set")
        for share in message.shares:
            kind = SelfMaskShare if share.peer in self.survivors else MaskSecretShare
            if not isinstance(share, kind):
                raise InconsistentView(f"site {site!r} returned a share of the wrong kind")
        self.shares[site] = {share.peer: share.share for share in message.shares}

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        attempt = self.masked.attempt
        attempt.require(self.shares, "returned shares", revealed="the sum stays masked")
        streams = []
        for name in self.survivors:
            seed = self._recover(name, self._is_self_seed)
            streams.append(masks.self_mask(seed, -1))
        for name in self.dropped:
            secret = self._recover(name, self._is_mask_secret)
            streams.extend(self._pair_masks(name, secret))
        attempt.total.apply(streams, attempt.context)
        return _Done(self.survivors), {}

    def _recover(self, name: str, check: Any) -> bytes:
        """Rebuild one secret; what was advertised tells a right one from a wrong one."""
        threshold = self.masked.attempt.spec.threshold
        position = self.masked.attempt.roster.position
        held = {position(site) + 1: shares[name] for site, shares in self.shares.items()}
        for points in _subsets(sorted(held), threshold):
            try:
                secret = shamir.combine({point: held[point] for point in points}, threshold)
            except RangeError:
                continue
            if check(name, secret):
                return secret
        raise RoundAborted(
            f"the shares of site {name!r} do not rebuild its secret; the sum stays masked.",
            remedy="a site dealt or returned wrong shares; the next round starts afresh",
        )

    def _is_self_seed(self, name: str, secret: bytes) -> bool:
        return commitment(secret) == self.masked.adverts[name].commitment

    def _is_mask_secret(self, name: str, secret: bytes) -> bool:
        return mask_key(secret).public_bytes == self.masked.adverts[name].mask_key

    def _pair_masks(self, dropped: str, secret: bytes) -> list[masks.MaskStream]:
        """The masks that survivors share with a dropped site, so that they can be taken off the sum.

        Every survivor added +-mask(survivor, dropped); applying the *dropped* site's side of each pair
        cancels it.
        """
        attempt, adverts_digest = self.masked.attempt, self.masked.adverts_digest
        spec_digest, position = attempt.spec.digest, attempt.roster.position
        key: sealing.SealKey = mask_key(secret)
        streams = []
        for survivor in self.survivors:
            envelope = self.masked.envelopes[survivor][dropped]
            context = envelope_context(spec_digest, adverts_digest, survivor, dropped)
            try:
                seed_in = key.open(envelope.sealed_seed, labels.SEAL_PAIR_SEED, *context)
            except MalformedMessage:
                raise RoundAborted(
                    f"site {survivor!r} sealed no pair seed for the dropped site {dropped!r}; the sum cannot "
                    "be unmasked.",
                    remedy=f"ask site {survivor!r} why; the next round starts afresh",
                ) from None
            seed_out = outgoing_seed(secret, spec_digest, dropped, survivor)
            streams.append(pair_stream(position(dropped), position(survivor), seed_out, seed_in))
        return streams


@dataclass
class _Done:
    survivors: tuple[str, ...]
    stage: str = "done"

    def receive(self, site: str, reply: Buffer) -> None:  # noqa: ARG002
        raise WrongState(f"site {site!r} answered after the attempt was over")

    def close(self) -> tuple[_State, Mapping[str, Buffer]]:
        raise WrongState("the attempt is over")


def _subsets(points: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """Windows around the circle first: every point is left out by one, so a bad share costs little."""
    windows = (tuple((points + points)[at : at + size]) for at in range(len(points)))
    return chain(windows, islice(combinations(points, size), _MAX_SUBSETS))


class MaskedServer:
    """The aggregator's session for one attempt. Sans-I/O; see :class:`secfed.protection.ServerSession`.

    Args:
        spec: the signed specification.
        roster: the consortium's roster.
        shape: runs and digest of the layout.
    """

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
        """Take one reply to the current requests.

        Raises:
            ProtocolError: the reply is refused; the site counts as dropped.
        """
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
    def survivors(self) -> tuple[str, ...]:
        """Sites whose summand is in the sum."""
        if not isinstance(self._state, _Done):
            raise WrongState("the sum is not complete yet")
        return self._state.survivors

    @property
    def sums(self) -> tuple[NDArray[Any], ...]:
        """Ring integers of the sum, one array per run."""
        if not isinstance(self._state, _Done):
            raise WrongState("the sum is not complete yet")
        return self._attempt.total.reduced()
