"""The messages of protocol ``secfed/v1``: one frozen dataclass each, one canonical encoding each.

    0  Specification   server -> site   what is to be summed, signed by the aggregator
    1  Advert          site -> server   fresh keys and a commitment, signed
    2  Adverts         server -> site   everybody's adverts, relayed unchanged
    3  Sharing         site -> server   per peer: a sealed pair seed and sealed shares, signed
       Deliveries      server -> site   the envelopes addressed to this site
       Confirmation    site -> server   every envelope is good, or whose is not
    4  SharingSet      server -> site   the sites that confirmed, and mask towards each other
       Upload          site -> server   the masked vector, its digest signed
    5  Survivors       server -> site   whose vectors arrived
       View            site -> server   signature over (advertised set, sharing set, survivors)
    6  UnmaskRequest   server -> site   the dropped sites and t signed views
       Shares          site -> server   per peer *one* share: of the self mask or of the mask secret
    7  Result          server -> site   survivors and totals digest, signed by the aggregator
    8  FinalModel      server -> site   the finished model, its digest signed by the aggregator

Decoding allocates nothing larger than the caps of the fields before the lengths have been checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, Self

from secfed.crypto import labels, sealing, shamir
from secfed.crypto.codec import Buffer, Reader, Writer, digest
from secfed.crypto.identity import MAX_NAME_BYTES, MAX_SITES
from secfed.crypto.message_base import DIGEST_BYTES as DIGEST_BYTES
from secfed.crypto.message_base import U16, U32, Digest, Name, Names, Signature, encode_names
from secfed.crypto.message_base import Message as Message
from secfed.crypto.message_base import names_digest as names_digest
from secfed.crypto.message_base import peek_type as peek_type
from secfed.crypto.record import Record, Wire, fixed, many, sized_rest
from secfed.crypto.upload import Upload as Upload
from secfed.errors import MalformedMessage

SEALED_SEED_BYTES = 32 + sealing.OVERHEAD_BYTES
SEALED_SHARES_BYTES = 2 * shamir.SHARE_BYTES + sealing.OVERHEAD_BYTES


@dataclass(frozen=True)
class Specification(Message):
    """Message 0: what one attempt sums, for whom, under which threshold.

    ``cohort`` is in roster order. The signature is the aggregator's, over :attr:`digest`.
    """

    TYPE: ClassVar[int] = 0
    study: Name
    round: U32
    exchange_index: U16
    exchange: Name
    attempt: U32
    cohort: Names
    threshold: U16
    roster_digest: Digest
    layout_digest: Digest
    broadcast_digest: Digest
    signature: Signature = b""

    @cached_property
    def digest(self) -> bytes:
        """Commits to the whole attempt; part of every later signature and derivation."""
        return digest(labels.SPEC_DIGEST, self.body())


@dataclass(frozen=True)
class Advert(Message):
    """Message 1: one site's fresh keys for one attempt."""

    TYPE: ClassVar[int] = 1
    site: Name
    mask_key: Annotated[bytes, fixed(sealing.PUBLIC_BYTES)]
    seal_key: Annotated[bytes, fixed(sealing.PUBLIC_BYTES)]
    commitment: Digest
    signature: Signature = b""

    @property
    def fresh(self) -> tuple[bytes, bytes, bytes]:
        """What no two adverts of an attempt, and no two fields of one, may have in common."""
        return self.mask_key, self.seal_key, self.commitment


@dataclass(frozen=True)
class Adverts(Message):
    """Message 2: the advertised set, in roster order."""

    TYPE: ClassVar[int] = 2
    adverts: tuple[Advert, ...]

    @cached_property
    def digest(self) -> bytes:
        """Commits to who advertised which keys."""
        return digest(labels.ADVERTS_DIGEST, self.encode())


@dataclass(frozen=True)
class Envelope(Record):
    """One peer's part of message 3: sealed for ``recipient``, signed by ``sender``.

    Beside what is sealed stands a digest of each of the two shares inside. The recipient compares what it
    opens before it confirms, and the server what it gets back at the unmasking: whoever returns another share
    than it was dealt is found by that share alone. Shares are uniform in a field of 2^256 elements, so a
    digest hides them without a salt.
    """

    LABEL: ClassVar[bytes] = labels.SIGN_ENVELOPE  # of its signature
    sender: Name
    recipient: Name
    sealed_seed: Annotated[bytes, fixed(SEALED_SEED_BYTES)]
    sealed_shares: Annotated[bytes, fixed(SEALED_SHARES_BYTES)]
    mask_secret_share_digest: Digest
    self_mask_share_digest: Digest
    signature: Signature = b""


@dataclass(frozen=True)
class Sharing(Message):
    """Message 3, upwards: one envelope per peer of the advertised set."""

    TYPE: ClassVar[int] = 3
    envelopes: tuple[Envelope, ...]


@dataclass(frozen=True)
class Deliveries(Message):
    """Message 3, downwards: the envelopes addressed to one site."""

    TYPE: ClassVar[int] = 4
    envelopes: tuple[Envelope, ...]


@dataclass(frozen=True)
class Confirmation(Message):
    """Message 3, answered: every envelope is good, or whose is not.

    ``complaints`` names the senders whose envelope cannot be opened, or does not hold the shares whose
    digests stand on it, in roster order. A site that names anybody takes no further part in the attempt.
    """

    TYPE: ClassVar[int] = 18
    site: Name
    complaints: Names
    signature: Signature = b""


@dataclass(frozen=True)
class SharingSet(Message):
    """Message 4, downwards: the sites that confirmed, in roster order; each masks towards exactly these."""

    TYPE: ClassVar[int] = 19
    sharing: Names


@dataclass(frozen=True)
class Survivors(Message):
    """Message 5, downwards: the sites whose masked vectors arrived, in roster order."""

    TYPE: ClassVar[int] = 6
    survivors: Names


@dataclass(frozen=True)
class View(Message):
    """Message 5, upwards: a signature over what this site was shown (see :func:`view_parts`)."""

    TYPE: ClassVar[int] = 7
    site: Name
    signature: Signature


@dataclass(frozen=True)
class UnmaskRequest(Message):
    """Message 6, downwards: only the dropped sites; each site computes the survivors itself."""

    TYPE: ClassVar[int] = 8
    dropped: Names
    views: tuple[View, ...]


@dataclass(frozen=True)
class SelfMaskShare:
    """A share of a survivor's self-mask seed."""

    KIND: ClassVar[int] = 1
    peer: str
    share: bytes = field(repr=False)


@dataclass(frozen=True)
class MaskSecretShare:
    """A share of a dropped site's mask secret."""

    KIND: ClassVar[int] = 2
    peer: str
    share: bytes = field(repr=False)


# One or the other: giving out both shares of one peer cannot be expressed.
PeerShare = SelfMaskShare | MaskSecretShare
_SHARE_KINDS: dict[int, Callable[[str, bytes], PeerShare]] = {1: SelfMaskShare, 2: MaskSecretShare}


def _write_share(writer: Writer, share: PeerShare) -> None:
    writer.text(share.peer).uint(share.KIND, 1).fixed(share.share, shamir.SHARE_BYTES)


def _read_share(reader: Reader) -> PeerShare:
    peer, kind = reader.text(MAX_NAME_BYTES), reader.uint(1)
    if kind not in _SHARE_KINDS:
        raise MalformedMessage(f"unknown kind of share: {kind}")
    return _SHARE_KINDS[kind](peer, reader.fixed(shamir.SHARE_BYTES))


@dataclass(frozen=True)
class Shares(Message):
    """Message 6, upwards: one share per peer of the sharing set, peers strictly ascending."""

    TYPE: ClassVar[int] = 9
    shares: Annotated[tuple[PeerShare, ...], many(Wire(_write_share, _read_share), MAX_SITES)] = field(
        repr=False
    )
    signature: Signature = b""

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Take the fields off; peers must be in order."""
        message = super().read(reader)
        if any(a.peer >= b.peer for a, b in pairwise(message.shares)):
            raise MalformedMessage("shares are repeated or out of order")
        return message


@dataclass(frozen=True)
class Result(Message):
    """Message 7: what the aggregator says it summed; chained into both transcripts."""

    TYPE: ClassVar[int] = 10
    spec_digest: Digest
    survivors: Names
    totals_digest: Digest
    signature: Signature = b""


@dataclass(frozen=True)
class FinalModel(Message):
    """Message 8: the finished model, for every site of a study; outside any attempt.

    ``model`` is the file as it is to be written; ``model_digest`` is its SHA-256, so that the signature, the
    transcripts and ``sha256sum`` speak of one thing.
    """

    TYPE: ClassVar[int] = 17
    study: Name
    roster_digest: Digest
    round: U32
    sums: U32
    model_digest: Digest
    signature: Signature = b""
    model: Annotated[Buffer, sized_rest("a model")] = field(default=b"", repr=False)


def view_parts(
    spec_digest: bytes, adverts_digest: bytes, sharing: tuple[str, ...], survivors: tuple[str, ...]
) -> tuple[bytes, bytes, bytes, bytes]:
    """What a consistency signature covers: the attempt and the three sets this site was shown."""
    return spec_digest, adverts_digest, encode_names(sharing), encode_names(survivors)


ALL: tuple[type[Message], ...] = (
    Specification,
    Advert,
    Adverts,
    Sharing,
    Deliveries,
    Confirmation,
    SharingSet,
    Upload,
    Survivors,
    View,
    UnmaskRequest,
    Shares,
    Result,
    FinalModel,
)
