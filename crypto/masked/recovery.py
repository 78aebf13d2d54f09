"""How the server takes the masks off a sum: it checks every returned share, then rebuilds each secret once.

Every share comes back beside the digest that its dealer signed and its holder confirmed. A share that does
not fit the digest is the holder's doing: its answer is refused, and everybody else's is used as it is. So
there is one interpolation per secret, however many sites lie. If shares that fit all digests do not give the
secret, their dealer dealt them so.

Source: Bonawitz et al. 2017; Shamir 1979. Digests of shares make sharing robust against false answers as in
Rabin and Ben-Or 1989, where information checking does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from secfed.crypto import labels, sealing, shamir
from secfed.crypto.identity import Roster
from secfed.crypto.masked import masks
from secfed.crypto.masked.graph_messages import Choice, SeedEnvelope
from secfed.crypto.masked.key_derivation import (
    commitment,
    envelope_context,
    mask_key,
    outgoing_seed,
    pair_stream,
    share_digest,
)
from secfed.crypto.messages import Advert, Envelope, MaskSecretShare, PeerShare, SelfMaskShare
from secfed.errors import InconsistentView, MalformedMessage, RangeError, RoundAborted

_REMEDY = "ask that site; the updates of this sum are spent, the next round starts afresh"


@dataclass(frozen=True)
class Dealt:
    """What was advertised and dealt in one attempt; ``envelopes`` by sender, then by recipient.

    ``choices`` are those of a sparse graph; None in the complete one, where everybody holds shares of all.
    """

    roster: Roster
    spec_digest: bytes
    adverts: Mapping[str, Advert]
    adverts_digest: bytes
    envelopes: dict[str, Mapping[str, Envelope | SeedEnvelope]] = field(default_factory=dict)
    choices: Mapping[str, Choice] | None = None

    def context(self, sender: str, recipient: str) -> tuple[bytes, ...]:
        """What the envelope between two sites is bound to."""
        return envelope_context(self.spec_digest, self.adverts_digest, sender, recipient)

    @cached_property
    def _holders(self) -> Mapping[str, frozenset[str]]:
        advertised = [name for name in self.roster.sites if name in self.adverts]
        chosen = (self.choices or {}).items()
        return {name: frozenset(choice.names(advertised)) for name, choice in chosen}

    def recoverable(self, present: tuple[str, ...]) -> tuple[str, ...]:
        """The most of these of whom each has enough holders among them; all, in the complete graph."""
        if self.choices is None:
            return present
        left = set(present)
        spare = {
            dealer: len(self._holders[dealer] & left) - self.choices[dealer].threshold for dealer in present
        }
        lost = [dealer for dealer in present if spare[dealer] < 0]
        while lost:
            gone = lost.pop()
            left.remove(gone)
            for dealer in left:
                if gone in self._holders[dealer]:
                    spare[dealer] -= 1
                    if spare[dealer] == -1:
                        lost.append(dealer)
        return tuple(site for site in present if site in left)

    def holds(self, holder: str, dealer: str) -> bool:
        """Whether one site holds shares of another's secrets, or of its own."""
        return self.choices is None or holder in self._holders.get(dealer, ())

    def adjacent(self, one: str, other: str) -> bool:
        """Whether two sites share masks."""
        return one != other and (self.holds(one, other) or self.holds(other, one))

    def stated(self, dealer: str, holder: str) -> Envelope:
        """The envelope in which a holder was dealt its shares."""
        envelope = self.envelopes[dealer][holder]
        if isinstance(envelope, SeedEnvelope):
            raise InconsistentView(f"site {dealer!r} dealt no shares to site {holder!r}")
        return envelope


def check_shares(site: str, shares: Sequence[PeerShare], survivors: Sequence[str], dealt: Dealt) -> None:
    """Check the kind of every share that a site returned, and that it is the one it was dealt.

    Nobody else dealt a site's share of its own secret: where it is needed, the rebuilt secret tells.

    Raises:
        InconsistentView: the site does not follow the protocol.
    """
    for share in shares:
        if not isinstance(share, SelfMaskShare if share.peer in survivors else MaskSecretShare):
            raise InconsistentView(f"site {site!r} returned a share of the wrong kind")
        if share.peer == site:
            continue
        envelope = dealt.stated(share.peer, site)
        kind, stated = (
            (labels.SELF_MASK_SHARE, envelope.self_mask_share_digest)
            if isinstance(share, SelfMaskShare)
            else (labels.MASK_SECRET_SHARE, envelope.mask_secret_share_digest)
        )
        if share_digest(kind, dealt.context(share.peer, site), share.share) != stated:
            raise InconsistentView(f"site {site!r} returned another share than it was dealt and confirmed")


def unmasking_streams(
    dealt: Dealt,
    survivors: Sequence[str],
    dropped: Sequence[str],
    shares: Mapping[str, Mapping[str, bytes]],
    *,
    threshold: int,
) -> list[masks.MaskStream]:
    """What has to be applied to the sum over the survivors so that no mask is left.

    ``threshold`` is that of every dealer in the complete graph; in a sparse one each has its own.

    Raises:
        RoundAborted: a site dealt shares that do not give its secret, or too few holders of one answered; the
            dealer or the silent holders are named.
    """
    position = dealt.roster.position

    def rebuild(name: str) -> bytes:
        needed = threshold if dealt.choices is None else dealt.choices[name].threshold
        answered = [site for site in shares if name in shares[site]]
        if len(answered) < needed:
            silent = [
                site for site in (*survivors, *dropped) if dealt.holds(site, name) and site not in shares
            ]
            raise RoundAborted(
                f"{', '.join(sorted(silent, key=position))} returned no usable shares: of those of one site "
                f"{len(answered)} are left, {needed} are needed; the sum stays masked.",
                remedy="ask those sites; the updates of this sum are spent, the next round starts afresh",
            )
        # Its own share last: it is the only one that no signed digest vouches for.
        holders = sorted(answered, key=lambda site: (site == name, position(site)))[:needed]
        points = {position(site) + 1: shares[site][name] for site in holders}
        try:
            return shamir.combine(points, needed)
        except RangeError:
            raise _inconsistent(name) from None

    streams = []
    for name in survivors:
        seed = rebuild(name)
        if commitment(seed) != dealt.adverts[name].commitment:
            raise _inconsistent(name)
        streams.append(masks.self_mask(seed, -1))
    for name in dropped:
        secret = rebuild(name)
        key = mask_key(secret)
        if key.public_bytes != dealt.adverts[name].mask_key:
            raise _inconsistent(name)
        peers = [survivor for survivor in survivors if dealt.adjacent(name, survivor)]
        streams.extend(_pair_masks(name, secret, key, peers, dealt))
    return streams


def _inconsistent(name: str) -> RoundAborted:
    return RoundAborted(
        f"site {name!r} dealt or returned shares that do not give its secret; the sum stays masked.",
        remedy=_REMEDY,
    )


def _pair_masks(
    dropped: str, secret: bytes, key: sealing.SealKey, survivors: Sequence[str], dealt: Dealt
) -> Iterator[masks.MaskStream]:
    """The masks that survivors share with a dropped site, so that they can be taken off the sum.

    Every survivor added +-mask(survivor, dropped); applying the *dropped* site's side of each pair
    cancels it.
    """
    position = dealt.roster.position
    for survivor in survivors:
        sealed = dealt.envelopes[survivor][dropped].sealed_seed
        try:
            seed_in = key.open(sealed, labels.SEAL_PAIR_SEED, *dealt.context(survivor, dropped))
        except MalformedMessage:
            # An honest recipient would have complained, and an honest sender's envelope opens.
            raise RoundAborted(
                f"site {survivor!r} sealed no pair seed for the dropped site {dropped!r}; the sum cannot "
                "be unmasked.",
                remedy=_REMEDY,
            ) from None
        seed_out = outgoing_seed(secret, dealt.spec_digest, dropped, survivor)
        yield pair_stream(position(dropped), position(survivor), seed_out, seed_in)
