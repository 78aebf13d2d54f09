"""The messages that a sparse graph of masks adds to protocol ``secfed/v1``, or has in place of others.

    2   AdvertDigests        server -> site   who advertised, and a digest of each advert
    2a  Choice               site -> server   this site's holders, drawn at random, signed
    2b  Neighbourhood        server -> site   adverts of its neighbours, and the choices that fell on it
    3   NeighbourSharing     site -> server   an envelope per neighbour; with shares to holders only
        NeighbourDeliveries  server -> site   the envelopes addressed to this site
    6   ProvenUnmaskRequest  server -> site   also: for which sharing set its dealers signed their uploads

Everything else is as in the complete graph (``crypto/messages.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

from secfed.crypto import labels
from secfed.crypto.codec import digest
from secfed.crypto.identity import MAX_SITES
from secfed.crypto.message_base import U16, Digest, Message, Name, Names, Signature
from secfed.crypto.messages import SEALED_SEED_BYTES, Advert, Envelope, View
from secfed.crypto.record import Record, blob, fixed


@dataclass(frozen=True)
class AdvertDigest(Record):
    """One line of the advertised set."""

    site: Name
    digest: Digest


def advert_digest(advert: Advert) -> AdvertDigest:
    """The line of one advert."""
    return AdvertDigest(advert.site, digest(labels.ADVERT_DIGEST, advert.encode()))


@dataclass(frozen=True)
class AdvertDigests(Message):
    """Message 2 in a sparse graph: the advertised set, in roster order."""

    TYPE: ClassVar[int] = 20
    adverts: tuple[AdvertDigest, ...]

    @cached_property
    def digest(self) -> bytes:
        """Commits to who advertised which keys."""
        return digest(labels.ADVERTS_DIGEST, self.encode())


@dataclass(frozen=True)
class Choice(Message):
    """Who holds shares of one site's secrets, and how many of them rebuild one.

    ``holders`` has one bit for every advertised site, in roster order, the least significant one first.
    """

    TYPE: ClassVar[int] = 21
    site: Name
    holders: Annotated[bytes, blob(-(-MAX_SITES // 8))]
    threshold: U16
    signature: Signature = b""

    @classmethod
    def of(cls, site: str, holders: Collection[str], threshold: int, advertised: Sequence[str]) -> Choice:
        """A choice among these sites, unsigned."""
        bits = sum(1 << at for at, name in enumerate(advertised) if name in holders)
        return cls(site, bits.to_bytes(-(-len(advertised) // 8), "little"), threshold)

    def names(self, advertised: Sequence[str]) -> tuple[str, ...]:
        """The holders in roster order; nobody if this is no choice that the site can have made."""
        bits = int.from_bytes(self.holders, "little")
        found = tuple(name for at, name in enumerate(advertised) if bits >> at & 1)
        fits = len(self.holders) == -(-len(advertised) // 8) and not bits >> len(advertised)
        return found if fits and self.site not in found and 0 < self.threshold <= len(found) else ()


@dataclass(frozen=True)
class Neighbourhood(Message):
    """Adverts of a site's holders and of the sites that chose it, and the latter's choices."""

    TYPE: ClassVar[int] = 22
    adverts: tuple[Advert, ...]
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class SeedEnvelope(Record):
    """An envelope for a neighbour that is no holder of the sender's shares."""

    LABEL: ClassVar[bytes] = labels.SIGN_SEED_ENVELOPE  # of its signature
    sender: Name
    recipient: Name
    sealed_seed: Annotated[bytes, fixed(SEALED_SEED_BYTES)]
    signature: Signature = b""


@dataclass(frozen=True)
class NeighbourSharing(Message):
    """Message 3 in a sparse graph, upwards: envelopes for holders, and for all other neighbours."""

    TYPE: ClassVar[int] = 23
    envelopes: tuple[Envelope, ...]
    seeds: tuple[SeedEnvelope, ...]


@dataclass(frozen=True)
class NeighbourDeliveries(Message):
    """Message 3 in a sparse graph, downwards: the envelopes addressed to one site."""

    TYPE: ClassVar[int] = 24
    envelopes: tuple[Envelope, ...]
    seeds: tuple[SeedEnvelope, ...]


@dataclass(frozen=True)
class UploadProof(Record):
    """What a survivor signed when it uploaded, without the vector (see ``labels.SIGN_UPLOAD``)."""

    site: Name
    vector_digest: Digest
    signature: Signature


@dataclass(frozen=True)
class ProvenUnmaskRequest(Message):
    """Message 6 in a sparse graph, downwards: also a proof for every survivor whose shares are asked for."""

    TYPE: ClassVar[int] = 25
    dropped: Names
    views: tuple[View, ...]
    uploads: tuple[UploadProof, ...]


ALL: tuple[type[Message], ...] = (
    AdvertDigests,
    Choice,
    Neighbourhood,
    NeighbourSharing,
    NeighbourDeliveries,
    ProvenUnmaskRequest,
)
