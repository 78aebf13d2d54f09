"""The two states that a sparse graph has in the place of ``AwaitAdverts``.

    AwaitAdvertDigests -> AwaitNeighbourhood -> AwaitNeighbourDeliveries

A site draws its holders *after* it has been shown who advertised which keys, all of it in one digest that
enters every later signature: neither the server nor its colluders can choose keys or sites to suit a draw.
Each site draws its own holders from its own randomness, so that no other party decides who holds its shares.
How many it draws follows from the size of the advertised set and from what this site insists on
(``graph.py``).

Source: Bell et al. 2020, with choices after commitment and verified adverts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from secfed.crypto import labels
from secfed.crypto.attempt import SiteContribution
from secfed.crypto.codec import Buffer
from secfed.crypto.masked.dealing import (
    Dealer,
    Peers,
    Secrets,
    check_advertised,
    check_adverts,
    check_fresh,
)
from secfed.crypto.masked.graph import SparseGraph, draw
from secfed.crypto.masked.graph_messages import (
    AdvertDigests,
    Choice,
    Neighbourhood,
    NeighbourSharing,
    advert_digest,
)
from secfed.crypto.masked.states import AwaitNeighbourDeliveries, ClientState
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Advert, Specification
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import ordered_subset, verified


@dataclass(frozen=True)
class AwaitAdvertDigests:
    """Own keys are out; who else advertised is expected."""

    own: SiteContribution
    spec: Specification
    secrets: Secrets = field(repr=False)
    advert: Advert
    graph: SparseGraph
    accepts: ClassVar = AdvertDigests

    def handle(self, listed: AdvertDigests) -> tuple[ClientState, Buffer]:
        """Message 2, digests only -> this site's choice."""
        own, spec = self.own, self.spec
        names = check_advertised(listed.adverts, spec)
        if advert_digest(self.advert) not in listed.adverts:
            raise Refusal.OWN_ADVERT.refuse()
        if len(names) < spec.threshold:
            raise Refusal.TOO_FEW_ADVERTS.refuse(f"{len(names)} of {spec.threshold}")
        # No survivor set is smaller than the threshold, which is at least this site's own minimum (R9). Sets
        # are counted over the roster: a server may run cohorts of one exchange side by side.
        enrolled = len(own.roster.sites)
        wanted = self.graph.holders(enrolled, spec.threshold, own.colluders, len(names))
        others = [name for name in names if name != own.site]
        # Drawn only now: who could be drawn, and with which keys, is fixed and will be signed.
        holders = draw(others, wanted.count, own.entropy.below)
        choice = Choice.of(own.site, holders, wanted.threshold, names)
        choice = signed(choice, own.identity, labels.SIGN_CHOICE, spec.digest, listed.digest)
        dealer = Dealer(own, spec, self.secrets, listed.digest)
        return AwaitNeighbourhood(dealer, self.advert, listed, holders, wanted.threshold), choice.encode()


@dataclass(frozen=True)
class AwaitNeighbourhood:
    """Own holders are drawn; their keys, and who drew this site, are expected."""

    dealer: Dealer
    advert: Advert
    listed: AdvertDigests
    holders: frozenset[str]
    threshold: int
    accepts: ClassVar = Neighbourhood

    def handle(self, message: Neighbourhood) -> tuple[ClientState, Buffer]:
        """Message 2b -> message 3."""
        dealer, own, spec = self.dealer, self.dealer.own, self.dealer.spec
        names = tuple(line.site for line in self.listed.adverts)
        dealers = tuple(choice.site for choice in message.choices)
        if not ordered_subset(dealers, names) or own.site in dealers:
            raise Refusal.NEIGHBOURHOOD.refuse("choices")
        for choice in message.choices:
            public, refusal = own.roster.public(choice.site), Refusal.CHOICE_SIGNATURE
            parts = labels.SIGN_CHOICE, spec.digest, dealer.adverts_digest
            verified(choice, public, *parts, who=choice.site, refusal=refusal)
            if own.site not in choice.names(names):
                raise Refusal.NEIGHBOURHOOD.refuse(f"the choice of {choice.site}")
        neighbours = self.holders | frozenset(dealers)
        expected = tuple(line for line in self.listed.adverts if line.site in neighbours)
        if tuple(advert_digest(advert) for advert in message.adverts) != expected:
            raise Refusal.NEIGHBOURHOOD.refuse("adverts")
        check_adverts(message.adverts, own, spec.digest)
        check_fresh((self.advert, *message.adverts))
        peers = Peers(names, neighbours, self.holders, frozenset(dealers), self.threshold, sparse=True)
        dealt = dealer.deal(peers, {advert.site: advert for advert in message.adverts})
        state = AwaitNeighbourDeliveries(dealer, peers, dealt.own_share)
        return state, NeighbourSharing(dealt.envelopes, dealt.seeds).encode()
