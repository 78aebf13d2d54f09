"""What all messages share: the header, decoding that insists on it, and the wire types of their fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

from secfed.crypto import labels
from secfed.crypto.codec import Buffer, Writer, digest
from secfed.crypto.identity import MAX_NAME_BYTES, MAX_SITES, SIGNATURE_BYTES, Identity
from secfed.crypto.record import R, Record, fixed, many, text, uint
from secfed.errors import MalformedMessage

DIGEST_BYTES = 32
HEADER_BYTES = len(labels.PROTOCOL) + 1

_NAMES = many(text(MAX_NAME_BYTES), MAX_SITES)

U16 = Annotated[int, uint(2)]
U32 = Annotated[int, uint(4)]
Digest = Annotated[bytes, fixed(DIGEST_BYTES)]
Signature = Annotated[bytes, fixed(SIGNATURE_BYTES)]
Name = Annotated[str, text(MAX_NAME_BYTES)]
Names = Annotated[tuple[str, ...], _NAMES]


@dataclass(frozen=True)
class Message(Record):
    """Base of all messages: the protocol name and a type, then the fields."""

    TYPE: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls.HEADER = labels.PROTOCOL + bytes([cls.TYPE]) if hasattr(cls, "TYPE") else b""

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read canonical bytes of exactly this type; anything else is malformed."""
        if peek_type(data) != cls.TYPE:
            raise MalformedMessage(f"expected a message of type {cls.TYPE} ({cls.__name__})")
        return super().decode(data)


def signed(record: R, identity: Identity, label: bytes, *context: Buffer) -> R:
    """The record with its signature, over the context and :meth:`~secfed.crypto.record.Record.body`."""
    fields = {"signature": identity.sign(label, *context, record.body())}
    return replace(record, **fields)


def peek_type(data: Buffer) -> int:
    """Type of a message of this protocol version; anything else is malformed."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES or bytes(view[: len(labels.PROTOCOL)]) != labels.PROTOCOL:
        raise MalformedMessage("not a secfed/v1 message")
    return view[len(labels.PROTOCOL)]


def encode_names(names: tuple[str, ...]) -> bytes:
    """An ordered list of sites, as messages hold it."""
    writer = Writer()
    _NAMES.write(writer, names)
    return writer.done()


def names_digest(label: bytes, names: tuple[str, ...]) -> bytes:
    """Digest of an ordered list of sites."""
    return digest(label, encode_names(names))
