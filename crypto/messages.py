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

Every message starts with the protocol name and its type. Decoding allocates nothing larger than the
caps below before the lengths have been checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from secfed.crypto import labels, sealing
from secfed.crypto.codec import Buffer, Reader, Writer, digest
from secfed.crypto.identity import MAX_SITES, SIGNATURE_BYTES
from secfed.crypto.message_base import (
    DIGEST_BYTES,
    HEADER_BYTES,
    Message,
    peek_type,
    read_name,
    read_names,
    write_names,
)
from secfed.crypto.peer_shares import MaskSecretShare, PeerShare, SelfMaskShare, Shares
from secfed.crypto.sharing_messages import (
    SEALED_SEED_BYTES,
    SEALED_SHARES_BYTES,
    Confirmation,
    Deliveries,
    Envelope,
    Sharing,
    SharingSet,
)
from secfed.crypto.upload import Upload
from secfed.errors import MalformedMessage


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
        write_names(writer, self.cohort).uint(self.threshold, 2)
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
            study=read_name(reader),
            round=reader.uint(4),
            exchange_index=reader.uint(2),
            exchange=read_name(reader),
            attempt=reader.uint(4),
            cohort=read_names(reader),
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

    @property
    def fresh(self) -> tuple[bytes, bytes, bytes]:
        """What no two adverts of an attempt, and no two fields of one, may have in common."""
        return self.mask_key, self.seal_key, self.commitment

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
            site=read_name(reader),
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
class Survivors(Message):
    """Message 5, downwards: the sites whose masked vectors arrived, in roster order."""

    TYPE: ClassVar[int] = 6
    survivors: tuple[str, ...]

    def _write(self, writer: Writer) -> None:
        write_names(writer, self.survivors)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(read_names(reader))


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
        return cls(read_name(reader), reader.fixed(SIGNATURE_BYTES))


@dataclass(frozen=True)
class UnmaskRequest(Message):
    """Message 6, downwards: only the dropped sites; each site computes the survivors itself."""

    TYPE: ClassVar[int] = 8
    dropped: tuple[str, ...]
    views: tuple[View, ...]

    def _write(self, writer: Writer) -> None:
        write_names(writer, self.dropped).many(self.views, lambda w, view: view._write(w))

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(read_names(reader), reader.many(MAX_SITES, View._read))


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
        return write_names(writer, self.survivors).fixed(self.totals_digest, DIGEST_BYTES).done()

    def _write(self, writer: Writer) -> None:
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            spec_digest=reader.fixed(DIGEST_BYTES),
            survivors=read_names(reader),
            totals_digest=reader.fixed(DIGEST_BYTES),
            signature=reader.fixed(SIGNATURE_BYTES),
        )


@dataclass(frozen=True)
class FinalModel(Message):
    """Message 8: the finished model, for every site of a study; outside any attempt.

    ``model`` is the file as it is to be written; ``model_digest`` is its SHA-256, so that the signature, the
    transcripts and ``sha256sum`` speak of one thing.
    """

    TYPE: ClassVar[int] = 17
    study: str
    roster_digest: bytes
    round: int
    sums: int
    model_digest: bytes
    signature: bytes = b""
    model: Buffer = field(default=b"", repr=False)

    def body(self) -> bytes:
        """Everything before the signature."""
        writer = Writer().text(self.study).fixed(self.roster_digest, DIGEST_BYTES)
        return writer.uint(self.round, 4).uint(self.sums, 4).fixed(self.model_digest, DIGEST_BYTES).done()

    def _write(self, writer: Writer) -> None:
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)
        writer.uint(len(self.model), 8).fixed(self.model, len(self.model))

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        message = cls(
            study=read_name(reader),
            roster_digest=reader.fixed(DIGEST_BYTES),
            round=reader.uint(4),
            sums=reader.uint(4),
            model_digest=reader.fixed(DIGEST_BYTES),
            signature=reader.fixed(SIGNATURE_BYTES),
        )
        size, rest = reader.uint(8), reader.rest()
        if size != len(rest):
            raise MalformedMessage(f"a model of {len(rest)} bytes where {size} were stated")
        return replace(message, model=rest)


def names_digest(label: bytes, names: tuple[str, ...]) -> bytes:
    """Digest of an ordered list of sites."""
    return digest(label, write_names(Writer(), names).done())


def view_parts(
    spec_digest: bytes, adverts_digest: bytes, sharing: tuple[str, ...], survivors: tuple[str, ...]
) -> tuple[bytes, bytes, bytes, bytes]:
    """What a consistency signature covers: the attempt and the three sets this site was shown."""
    return (
        spec_digest,
        adverts_digest,
        write_names(Writer(), sharing).done(),
        write_names(Writer(), survivors).done(),
    )


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

__all__ = [
    "ALL",
    "DIGEST_BYTES",
    "HEADER_BYTES",
    "SEALED_SEED_BYTES",
    "SEALED_SHARES_BYTES",
    "Advert",
    "Adverts",
    "Confirmation",
    "Deliveries",
    "Envelope",
    "FinalModel",
    "MaskSecretShare",
    "Message",
    "PeerShare",
    "Result",
    "SelfMaskShare",
    "Shares",
    "Sharing",
    "SharingSet",
    "Specification",
    "Survivors",
    "UnmaskRequest",
    "Upload",
    "View",
    "names_digest",
    "peek_type",
    "view_parts",
]
