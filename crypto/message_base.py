"""What all messages share: the header, decoding that insists on it, and names of sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from secfed.crypto import labels
from secfed.crypto.codec import Buffer, Reader, Writer
from secfed.crypto.identity import MAX_NAME_BYTES, MAX_SITES
from secfed.errors import MalformedMessage

DIGEST_BYTES = 32
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


def write_names(writer: Writer, names: tuple[str, ...]) -> Writer:
    """Append names of sites to a message."""
    return writer.many(names, lambda w, name: w.text(name))


def read_name(reader: Reader) -> str:
    """Take a name off a message."""
    return reader.text(MAX_NAME_BYTES)


def read_names(reader: Reader) -> tuple[str, ...]:
    """Take names of sites off a message."""
    return reader.many(MAX_SITES, read_name)
