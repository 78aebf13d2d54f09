"""Messages of sums that sites open (docs/protocol.md, 12 and 13), beside those of ``messages.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from secfed.crypto import labels, sealing
from secfed.crypto.codec import Buffer, digest
from secfed.crypto.encrypted.tags import NONCE_BYTES, TAG_BYTES
from secfed.crypto.identity import MAX_SITES
from secfed.crypto.message_base import U32, Digest, Message, Name, Signature
from secfed.crypto.messages import Result, Specification
from secfed.crypto.record import Record, blob, fixed, sized_rest, whole
from secfed.errors import MalformedMessage

MAX_KEY_BYTES = 1 << 22  # a public key of the largest ring is about 0.2 MB
MAX_SEALED_KEY_BYTES = 1 << 20
MAX_SPEC_BYTES = 1 << 20

_PublicKey = Annotated[bytes, blob(MAX_KEY_BYTES)]


@dataclass(frozen=True)
class KeyHello(Message):
    """Message 11. ``seal_key`` is empty when the site already holds the study key."""

    TYPE: ClassVar[int] = 11
    site: Name
    seal_key: Annotated[bytes, blob(sealing.PUBLIC_BYTES)]
    signature: Signature = b""

    @property
    def holds_key(self) -> bool:
        """Whether this site needs no package."""
        return not self.seal_key


@dataclass(frozen=True)
class KeyRequest(Message):
    """Message 12. Without hellos it asks any site for its own hello."""

    TYPE: ClassVar[int] = 12
    hellos: tuple[KeyHello, ...]


@dataclass(frozen=True)
class KeyPackage(Record):
    """The study key for one site; signed by the holder together with the public key's digest."""

    recipient: Name
    sealed_key: Annotated[bytes, blob(MAX_SEALED_KEY_BYTES)]
    signature: Signature = b""


@dataclass(frozen=True)
class KeyPackages(Message):
    """Message 13."""

    TYPE: ClassVar[int] = 13
    public_key: _PublicKey = field(repr=False)
    packages: tuple[KeyPackage, ...]


@dataclass(frozen=True)
class KeyDelivery(Message):
    """Message 14."""

    TYPE: ClassVar[int] = 14
    public_key: _PublicKey = field(repr=False)
    package: KeyPackage


@dataclass(frozen=True)
class Summed(Message):
    """Message 15: everything a site needs to take one sum into its state, also long afterwards.

    ``nonces`` are those of the survivors' uploads in the order of the result, ``tag`` is the sum of their
    tags (``tags.py``).
    """

    TYPE: ClassVar[int] = 15
    spec: Annotated[Specification, whole(Specification, MAX_SPEC_BYTES)]
    result: Annotated[Result, whole(Result, MAX_SPEC_BYTES)]
    nonces: Annotated[bytes, blob(NONCE_BYTES * MAX_SITES)]
    tag: Annotated[bytes, fixed(TAG_BYTES)]
    ciphertext: Annotated[Buffer, sized_rest("a ciphertext")] = field(repr=False)

    @property
    def totals_digest(self) -> bytes:
        """What the result must name."""
        return totals_digest(self.spec.layout_digest, self.nonces, self.tag, self.ciphertext)

    def each_nonce(self) -> list[bytes]:
        """One nonce per survivor; more or fewer are malformed."""
        if len(self.nonces) != NONCE_BYTES * len(self.result.survivors):
            raise MalformedMessage("a sum without one nonce for every survivor")
        return [self.nonces[at : at + NONCE_BYTES] for at in range(0, len(self.nonces), NONCE_BYTES)]


@dataclass(frozen=True)
class ClosedSum(Message):
    """Message 26: as :class:`Summed` where sums are closed; ``adverts_digest`` is the attempt's.

    ``vector`` is the survivors' lanes and tags in sum, under their closing streams, as uploads lie on the
    wire.
    """

    TYPE: ClassVar[int] = 26
    spec: Annotated[Specification, whole(Specification, MAX_SPEC_BYTES)]
    result: Annotated[Result, whole(Result, MAX_SPEC_BYTES)]
    adverts_digest: Digest
    vector: Annotated[Buffer, sized_rest("a closed sum")] = field(repr=False)

    @property
    def totals_digest(self) -> bytes:
        """What the result must name."""
        return closed_digest(self.spec.layout_digest, self.adverts_digest, self.vector)


AnySum = Summed | ClosedSum


@dataclass(frozen=True)
class StateView(Message):
    """Message 16: after how many sums this site has which state."""

    TYPE: ClassVar[int] = 16
    site: Name
    sums: U32
    state_digest: Digest
    signature: Signature = b""


def totals_digest(layout_digest: bytes, nonces: bytes, tag: bytes, ciphertext: Buffer) -> bytes:
    """What the aggregator's result says about a sum that it cannot read: 32 bytes."""
    return digest(labels.TOTALS_DIGEST, layout_digest, nonces, tag, ciphertext)


def closed_digest(layout_digest: bytes, adverts_digest: bytes, vector: Buffer) -> bytes:
    """As :func:`totals_digest`, of a closed sum."""
    return digest(labels.TOTALS_DIGEST, layout_digest, adverts_digest, vector)


ALL: tuple[type[Message], ...] = (
    KeyHello,
    KeyRequest,
    KeyPackages,
    KeyDelivery,
    Summed,
    StateView,
    ClosedSum,
)
