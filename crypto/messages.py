"""The messages of protocol ``secfed/v1``: one frozen dataclass each, one canonical encoding each.

    0  Specification   server -> site   what is to be summed, signed by the aggregator
    1  Advert          site -> server   fresh keys and a commitment, signed
    2  Adverts         server -> site   everybody's adverts, relayed unchanged
    3  Sharing         site -> server   per peer: a sealed pair seed and sealed shares, signed
       Deliveries      server -> site   the envelopes addressed to this site
    4  Upload          site -> server   the masked vector, its digest signed
    5  Survivors       server -> site   whose vectors arrived
       View            site -> server   signature over (advertised set, sharing set, survivors)
    6  UnmaskRequest   server -> site   the dropped sites and t signed views
       Shares          site -> server   per peer *one* share: of the self mask or of the mask secret
    7  Result          server -> site   survivors and totals digest, signed by the aggregator

Every message starts with the protocol name and its type. Decoding allocates nothing larger than the
caps below before the lengths have been checked.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Self

from secfed.crypto import labels, sealing, shamir
from secfed.crypto.codec import Buffer, Reader, Writer, digest
from secfed.crypto.identity import MAX_NAME_BYTES, MAX_SITES, SIGNATURE_BYTES
from secfed.errors import MalformedMessage

DIGEST_BYTES = 32
SEALED_SEED_BYTES = 32 + sealing.OVERHEAD_BYTES
SEALED_SHARES_BYTES = 2 * shamir.SHARE_BYTES + sealing.OVERHEAD_BYTES
HEADER_BYTES = len(labels.PROTOCOL) + 1


@dataclass(frozen=True)
class Message:
    """Base of all messages."""

    TYPE: ClassVar[int]

    def encode(self) -> bytes:
        """Canonical bytes."""
        writer = Writer().fixed(labels.PROTOCOL, len(labels.PROTOCOL)).uint(self.TYPE, 1)
        self._write(writer)
        return writer.done()

    def _write(self, writer: Writer) -> None:
        raise NotImplementedError

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read canonical bytes of exactly this type.

        Raises:
            MalformedMessage: anything else.
        """
        if peek_type(data) != cls.TYPE:
            raise MalformedMessage(f"expected a message of type {cls.TYPE} ({cls.__name__})")
        reader = Reader(memoryview(data)[HEADER_BYTES:])
        message = cls._read(reader)
        reader.end()
        return message

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        raise NotImplementedError


def peek_type(data: Buffer) -> int:
    """Type of a message, after checking the protocol name.

    Raises:
        MalformedMessage: too short, or another protocol or version.
    """
    view = memoryview(data)
    if len(view) < HEADER_BYTES or bytes(view[: len(labels.PROTOCOL)]) != labels.PROTOCOL:
        raise MalformedMessage("not a secfed/v1 message")
    return view[len(labels.PROTOCOL)]


def _names(writer: Writer, names: tuple[str, ...]) -> Writer:
    return writer.many(names, lambda w, name: w.text(name))


def _read_name(reader: Reader) -> str:
    return reader.text(MAX_NAME_BYTES)


def _read_names(reader: Reader) -> tuple[str, ...]:
    return reader.many(MAX_SITES, _read_name)


@dataclass(frozen=True)
class Specification(Message):
    """Message 0: what one attempt sums, for whom, under which threshold.

    ``cohort`` is in roster order. The signature is the aggregator's, over :attr:`digest`.
    """

    TYPE: ClassVar[int] = 0
    study: str
    round: int
    exchange_index: int
    exchange: str
    attempt: int
    cohort: tuple[str, ...]
    threshold: int
    roster_digest: bytes
    layout_digest: bytes
    broadcast_digest: bytes
    signature: bytes = b""

    def body(self) -> bytes:
        """Everything but the signature."""
        writer = Writer().text(self.study).uint(self.round, 4)
        writer.uint(self.exchange_index, 2).text(self.exchange).uint(self.attempt, 4)
        _names(writer, self.cohort).uint(self.threshold, 2)
        writer.fixed(self.roster_digest, DIGEST_BYTES).fixed(self.layout_digest, DIGEST_BYTES)
        return writer.fixed(self.broadcast_digest, DIGEST_BYTES).done()

    @property
    def digest(self) -> bytes:
        """Commits to the whole attempt; part of every later signature and derivation."""
        return digest(labels.SPEC_DIGEST, self.body())

    def _write(self, writer: Writer) -> None:
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            study=_read_name(reader),
            round=reader.uint(4),
            exchange_index=reader.uint(2),
            exchange=_read_name(reader),
            attempt=reader.uint(4),
            cohort=_read_names(reader),
            threshold=reader.uint(2),
            roster_digest=reader.fixed(DIGEST_BYTES),
            layout_digest=reader.fixed(DIGEST_BYTES),
            broadcast_digest=reader.fixed(DIGEST_BYTES),
            signature=reader.fixed(SIGNATURE_BYTES),
        )


@dataclass(frozen=True)
class Advert(Message):
    """Message 1: one site's fresh keys for one attempt."""

    TYPE: ClassVar[int] = 1
    site: str
    mask_key: bytes
    seal_key: bytes
    commitment: bytes
    signature: bytes = b""

    def body(self) -> bytes:
        """Everything but the signature."""
        writer = Writer().text(self.site).fixed(self.mask_key, sealing.PUBLIC_BYTES)
        return writer.fixed(self.seal_key, sealing.PUBLIC_BYTES).fixed(self.commitment, DIGEST_BYTES).done()

    def _write(self, writer: Writer) -> None:
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            site=_read_name(reader),
            mask_key=reader.fixed(sealing.PUBLIC_BYTES),
            seal_key=reader.fixed(sealing.PUBLIC_BYTES),
            commitment=reader.fixed(DIGEST_BYTES),
            signature=reader.fixed(SIGNATURE_BYTES),
        )


@dataclass(frozen=True)
class Adverts(Message):
    """Message 2: the advertised set, in roster order."""

    TYPE: ClassVar[int] = 2
    adverts: tuple[Advert, ...]

    @property
    def digest(self) -> bytes:
        """Commits to who advertised which keys."""
        return digest(labels.ADVERTS_DIGEST, self.encode())

    def _write(self, writer: Writer) -> None:
        writer.many(self.adverts, lambda w, advert: advert._write(w))

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.many(MAX_SITES, Advert._read))


@dataclass(frozen=True)
class Envelope:
    """One peer's part of message 3: sealed for ``recipient``, signed by ``sender``."""

    sender: str
    recipient: str
    sealed_seed: bytes
    sealed_shares: bytes
    signature: bytes = b""

    def body(self) -> bytes:
        """Everything but the signature."""
        writer = Writer().text(self.sender).text(self.recipient)
        writer.fixed(self.sealed_seed, SEALED_SEED_BYTES)
        return writer.fixed(self.sealed_shares, SEALED_SHARES_BYTES).done()

    def write(self, writer: Writer) -> None:
        """Append to a message."""
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Take off a message."""
        return cls(
            sender=_read_name(reader),
            recipient=_read_name(reader),
            sealed_seed=reader.fixed(SEALED_SEED_BYTES),
            sealed_shares=reader.fixed(SEALED_SHARES_BYTES),
            signature=reader.fixed(SIGNATURE_BYTES),
        )


@dataclass(frozen=True)
class _Envelopes(Message):
    envelopes: tuple[Envelope, ...]

    def _write(self, writer: Writer) -> None:
        writer.many(self.envelopes, lambda w, envelope: envelope.write(w))

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.many(MAX_SITES, Envelope.read))


@dataclass(frozen=True)
class Sharing(_Envelopes):
    """Message 3, upwards: one envelope per peer of the advertised set."""

    TYPE: ClassVar[int] = 3


@dataclass(frozen=True)
class Deliveries(_Envelopes):
    """Message 3, downwards: the envelopes addressed to one site; its peers of the sharing set."""

    TYPE: ClassVar[int] = 4


@dataclass(frozen=True)
class Upload(Message):
    """Message 4: the masked vector.

    Laid out so that the vector starts 16 bytes into the buffer and is computed there in place: header
    (10 bytes), six zero bytes, vector, then a trailer of three fixed fields.
    """

    TYPE: ClassVar[int] = 5
    VECTOR_AT: ClassVar[int] = 16
    TRAILER_BYTES: ClassVar[int] = 2 * DIGEST_BYTES + SIGNATURE_BYTES
    sharing_digest: bytes
    vector_digest: bytes
    signature: bytes
    vector: memoryview = field(repr=False)

    @classmethod
    def frame(cls, vector_bytes: int) -> memoryview:
        """A zeroed buffer for one upload: fill ``[VECTOR_AT : VECTOR_AT + vector_bytes]``, then seal it.

        Fresh pages of the operating system are zero already, and are only made when they are written:
        clearing a large buffer first would cost as much as one mask. Huge pages cost fewer faults.
        """
        pages = mmap.mmap(-1, cls.VECTOR_AT + vector_bytes + cls.TRAILER_BYTES)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages
                pages.madvise(mmap.MADV_HUGEPAGE)
        buffer = memoryview(pages)
        buffer[:HEADER_BYTES] = labels.PROTOCOL + bytes([cls.TYPE])
        return buffer

    @classmethod
    def finish(
        cls, buffer: memoryview, sharing_digest: bytes, vector_digest: bytes, signature: bytes
    ) -> None:
        """Write the trailer of a framed buffer."""
        buffer[-cls.TRAILER_BYTES :] = sharing_digest + vector_digest + signature

    def encode(self) -> bytes:
        """Canonical bytes; a site uses :meth:`frame` and :meth:`finish` instead, which copy nothing."""
        buffer = self.frame(len(self.vector))
        buffer[self.VECTOR_AT : self.VECTOR_AT + len(self.vector)] = self.vector
        self.finish(buffer, self.sharing_digest, self.vector_digest, self.signature)
        return bytes(buffer)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read canonical bytes; the vector is a view into ``data``."""
        if peek_type(data) != cls.TYPE:
            raise MalformedMessage(f"expected a message of type {cls.TYPE} (Upload)")
        view = memoryview(data).cast("B").toreadonly()
        if len(view) < cls.VECTOR_AT + cls.TRAILER_BYTES or any(view[HEADER_BYTES : cls.VECTOR_AT]):
            raise MalformedMessage("upload is too short or its padding is not zero")
        trailer = bytes(view[-cls.TRAILER_BYTES :])
        return cls(
            sharing_digest=trailer[:DIGEST_BYTES],
            vector_digest=trailer[DIGEST_BYTES : 2 * DIGEST_BYTES],
            signature=trailer[2 * DIGEST_BYTES :],
            vector=view[cls.VECTOR_AT : -cls.TRAILER_BYTES],
        )


@dataclass(frozen=True)
class Survivors(Message):
    """Message 5, downwards: the sites whose masked vectors arrived, in roster order."""

    TYPE: ClassVar[int] = 6
    survivors: tuple[str, ...]

    def _write(self, writer: Writer) -> None:
        _names(writer, self.survivors)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(_read_names(reader))


@dataclass(frozen=True)
class View(Message):
    """Message 5, upwards: a signature over what this site was shown (see :func:`view_parts`)."""

    TYPE: ClassVar[int] = 7
    site: str
    signature: bytes

    def _write(self, writer: Writer) -> None:
        writer.text(self.site).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(_read_name(reader), reader.fixed(SIGNATURE_BYTES))


@dataclass(frozen=True)
class UnmaskRequest(Message):
    """Message 6, downwards: only the dropped sites; each site computes the survivors itself."""

    TYPE: ClassVar[int] = 8
    dropped: tuple[str, ...]
    views: tuple[View, ...]

    def _write(self, writer: Writer) -> None:
        _names(writer, self.dropped).many(self.views, lambda w, view: view._write(w))

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(_read_names(reader), reader.many(MAX_SITES, View._read))


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
    peer, kind = _read_name(reader), reader.uint(1)
    if kind not in _SHARE_KINDS:
        raise MalformedMessage(f"unknown kind of share: {kind}")
    return _SHARE_KINDS[kind](peer, reader.fixed(shamir.SHARE_BYTES))


@dataclass(frozen=True)
class Shares(Message):
    """Message 6, upwards: one share per peer of the sharing set, peers strictly ascending."""

    TYPE: ClassVar[int] = 9
    shares: tuple[PeerShare, ...] = field(repr=False)
    signature: bytes = b""

    def body(self) -> bytes:
        """Everything but the signature."""
        return Writer().many(self.shares, _write_share).done()

    def _write(self, writer: Writer) -> None:
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        shares = reader.many(MAX_SITES, _read_share)
        peers = [share.peer for share in shares]
        if any(a >= b for a, b in pairwise(peers)):
            raise MalformedMessage("shares are repeated or out of order")
        return cls(shares, reader.fixed(SIGNATURE_BYTES))


@dataclass(frozen=True)
class Result(Message):
    """Message 7: what the aggregator says it summed; chained into both transcripts."""

    TYPE: ClassVar[int] = 10
    spec_digest: bytes
    survivors: tuple[str, ...]
    totals_digest: bytes
    signature: bytes = b""

    def body(self) -> bytes:
        """Everything but the signature."""
        writer = Writer().fixed(self.spec_digest, DIGEST_BYTES)
        return _names(writer, self.survivors).fixed(self.totals_digest, DIGEST_BYTES).done()

    def _write(self, writer: Writer) -> None:
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            spec_digest=reader.fixed(DIGEST_BYTES),
            survivors=_read_names(reader),
            totals_digest=reader.fixed(DIGEST_BYTES),
            signature=reader.fixed(SIGNATURE_BYTES),
        )


def names_digest(label: bytes, names: tuple[str, ...]) -> bytes:
    """Digest of an ordered list of sites."""
    return digest(label, _names(Writer(), names).done())


def view_parts(
    spec_digest: bytes, adverts_digest: bytes, sharing: tuple[str, ...], survivors: tuple[str, ...]
) -> tuple[bytes, bytes, bytes, bytes]:
    """What a consistency signature covers: the attempt and the three sets this site was shown."""
    return (
        spec_digest,
        adverts_digest,
        _names(Writer(), sharing).done(),
        _names(Writer(), survivors).done(),
    )


ALL: tuple[type[Message], ...] = (
    Specification,
    Advert,
    Adverts,
    Sharing,
    Deliveries,
    Upload,
    Survivors,
    View,
    UnmaskRequest,
    Shares,
    Result,
)
