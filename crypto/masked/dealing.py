"""How a site deals its secrets to its peers: the same in the complete graph and in a sparse one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from secfed.crypto import labels, sealing, shamir
from secfed.crypto.attempt import SiteContribution
from secfed.crypto.masked.graph_messages import SeedEnvelope
from secfed.crypto.masked.key_derivation import envelope_context, outgoing_seed, share_digest
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Advert, Envelope, SelfMaskShare, Specification
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import ordered_subset, verified
from secfed.errors import MalformedMessage


@dataclass(frozen=True)
class Secrets:
    """What a site draws for one attempt and never uses in another."""

    mask_secret: bytes = field(repr=False)
    self_seed: bytes = field(repr=False)
    seal_key: sealing.SealKey = field(repr=False)


@dataclass(frozen=True)
class Peers:
    """Whom a site deals with in one attempt.

    Attributes:
        advertised: all sites that advertised keys, in roster order.
        neighbours: those that it shares masks with; never itself.
        holders: those among whom it shares its secrets; itself, too, in the complete graph.
        dealers: those of whose secrets it holds shares; never itself.
        threshold: holders who rebuild one of its secrets.
        sparse: whether the graph is a sparse one.
    """

    advertised: tuple[str, ...]
    neighbours: frozenset[str]
    holders: frozenset[str]
    dealers: frozenset[str]
    threshold: int
    sparse: bool = False

    @classmethod
    def everybody(cls, advertised: tuple[str, ...], site: str, threshold: int) -> Peers:
        """The complete graph."""
        others = frozenset(advertised) - {site}
        return cls(advertised, others, frozenset(advertised), others, threshold)

    def among(self, part: Iterable[str]) -> tuple[str, ...]:
        """These of the advertised sites, in roster order."""
        found = frozenset(part)
        return tuple(name for name in self.advertised if name in found)

    def holding(self, part: Iterable[str]) -> int:
        """How many of these hold shares of this site's secrets."""
        return len(self.holders.intersection(part))


@dataclass(frozen=True)
class Dealing:
    """What a site deals: envelopes with and without shares, and what it keeps of its own."""

    envelopes: tuple[Envelope, ...]
    seeds: tuple[SeedEnvelope, ...]
    own_share: SelfMaskShare | None = field(repr=False)  # None where it is no holder of its own secrets


class Listed(Protocol):
    """One line of what the server relays of the advertised set."""

    @property
    def site(self) -> str:
        """Who advertised."""
        ...


def check_advertised(lines: Iterable[Listed], spec: Specification) -> tuple[str, ...]:
    """The advertised set, once it is known to be an ordered part of the cohort.

    Raises:
        SecfedError: refusals 18 and 19.
    """
    names = tuple(line.site for line in lines)
    for name in names:
        if name not in spec.cohort:
            raise Refusal.ADVERT_OUTSIDER.refuse(name)
    if not ordered_subset(names, spec.cohort):
        raise Refusal.ADVERT_ORDER.refuse()
    return names


def check_adverts(adverts: Iterable[Advert], own: SiteContribution, spec_digest: bytes) -> None:
    """Check the signature of every advert, under the pinned key of its site.

    Raises:
        BadSignature: refusal 17.
    """
    for advert in adverts:
        public, label = own.roster.public(advert.site), labels.SIGN_ADVERT
        verified(advert, public, label, spec_digest, who=advert.site, refusal=Refusal.ADVERT_SIGNATURE)


def check_fresh(adverts: Iterable[Advert]) -> None:
    """Check that no key or commitment is there twice.

    Raises:
        InconsistentView: refusal 20.
    """
    advertised_by: dict[bytes, str] = {}
    for advert in adverts:
        for part in advert.fresh:
            if part in advertised_by:
                raise Refusal.DUPLICATE_KEY.refuse(f"by {advertised_by[part]} and by {advert.site}")
            advertised_by[part] = advert.site


@dataclass(frozen=True)
class Dealer:
    """One site's secrets in one attempt, and what its envelopes are bound to."""

    own: SiteContribution
    spec: Specification
    secrets: Secrets = field(repr=False)
    adverts_digest: bytes

    def deal(self, peers: Peers, adverts: Mapping[str, Advert]) -> Dealing:
        """Share both secrets among the holders, and seal a pair seed to every neighbour."""
        own, below = self.own, self.own.entropy.below
        point = {name: own.roster.position(name) + 1 for name in peers.among(peers.holders)}
        points = list(point.values())
        shares_r = shamir.split(self.secrets.mask_secret, peers.threshold, points, randbelow=below)
        shares_b = shamir.split(self.secrets.self_seed, peers.threshold, points, randbelow=below)
        envelopes, seeds = list[Envelope](), list[SeedEnvelope]()
        for name in peers.among(peers.neighbours):
            seed = self._seed_envelope(adverts[name])
            if name in peers.holders:
                at = point[name]
                envelopes.append(self._envelope(adverts[name], seed, shares_r[at], shares_b[at]))
            else:
                context = self.spec.digest, self.adverts_digest
                seeds.append(signed(seed, own.identity, seed.LABEL, *context))
        at_home = own.site in peers.holders
        own_share = SelfMaskShare(own.site, shares_b[point[own.site]]) if at_home else None
        return Dealing(tuple(envelopes), tuple(seeds), own_share)

    def _seed_envelope(self, peer: Advert) -> SeedEnvelope:
        own, spec_digest = self.own, self.spec.digest
        context = envelope_context(spec_digest, self.adverts_digest, own.site, peer.site)
        seed = outgoing_seed(self.secrets.mask_secret, spec_digest, own.site, peer.site)
        sealed = self._seal(peer.site, peer.mask_key, seed, labels.SEAL_PAIR_SEED, *context)
        return SeedEnvelope(own.site, peer.site, sealed)

    def _envelope(self, peer: Advert, seed: SeedEnvelope, share_r: bytes, share_b: bytes) -> Envelope:
        """The signed envelope for one holder."""
        own, spec_digest = self.own, self.spec.digest
        context = envelope_context(spec_digest, self.adverts_digest, own.site, peer.site)
        envelope = Envelope(
            sender=own.site,
            recipient=peer.site,
            sealed_seed=seed.sealed_seed,
            sealed_shares=self._seal(
                peer.site, peer.seal_key, share_r + share_b, labels.SEAL_SHARES, *context
            ),
            mask_secret_share_digest=share_digest(labels.MASK_SECRET_SHARE, context, share_r),
            self_mask_share_digest=share_digest(labels.SELF_MASK_SHARE, context, share_b),
        )
        return signed(envelope, own.identity, envelope.LABEL, spec_digest, self.adverts_digest)

    def _seal(self, peer: str, public: bytes, plaintext: bytes, label: bytes, *context: bytes) -> bytes:
        try:
            return self.own.entropy.seal(public, plaintext, label, *context)
        except MalformedMessage:
            raise Refusal.MALFORMED.refuse(f"{peer} advertises an invalid key") from None
