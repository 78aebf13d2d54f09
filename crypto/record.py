"""Records declare their fields once, with the place of each on the wire; one engine writes and reads them.

A record is a frozen dataclass whose annotations carry wire types, ``round: Annotated[int, uint(4)]``. Fields
are written in order, without names. Nested records and tuples of records need no wire type. A record with
a ``signature`` is signed over :meth:`Record.body`: everything that stands before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, get_args, get_origin, get_type_hints

from secfed.crypto.codec import Buffer, Reader, Writer
from secfed.errors import MalformedMessage

A = TypeVar("A")
B = TypeVar("B")

MAX_ITEMS = 1000  # in a tuple of records; a roster has no more sites


@dataclass(frozen=True)
class Wire(Generic[A]):
    """How one value is written and read."""

    write: Callable[[Writer, A], object]
    read: Callable[[Reader], A]


def uint(width_bytes: int) -> Wire[int]:
    """An unsigned integer, big-endian."""
    return Wire(lambda w, value: w.uint(value, width_bytes), lambda r: r.uint(width_bytes))


def fixed(size_bytes: int) -> Wire[bytes]:
    """Exactly so many bytes."""
    return Wire(lambda w, value: w.fixed(value, size_bytes), lambda r: r.fixed(size_bytes))


def blob(cap_bytes: int) -> Wire[bytes]:
    """A byte string with its 32-bit length."""
    return Wire(Writer.blob, lambda r: r.blob(cap_bytes))


def text(cap_bytes: int) -> Wire[str]:
    """A UTF-8 text with its 32-bit length in bytes."""
    return Wire(Writer.text, lambda r: r.text(cap_bytes))


def many(item: Wire[A], cap: int) -> Wire[tuple[A, ...]]:
    """A list with its 32-bit count."""
    return Wire(lambda w, items: w.many(items, item.write), lambda r: r.many(cap, item.read))


def pair(first: Wire[A], second: Wire[B]) -> Wire[tuple[A, B]]:
    """Two values."""

    def write(writer: Writer, value: tuple[A, B]) -> None:
        first.write(writer, value[0])
        second.write(writer, value[1])

    return Wire(write, lambda r: (first.read(r), second.read(r)))


def nested(kind: type[R]) -> Wire[R]:
    """Another record, without its header."""
    return Wire(lambda w, value: value.write(w), kind.read)


def whole(kind: type[R], cap_bytes: int) -> Wire[R]:
    """Another record with its header, as a byte string."""
    return Wire(lambda w, value: w.blob(value.encode()), lambda r: kind.decode(r.view(cap_bytes)))


def rest() -> Wire[Buffer]:
    """Everything up to the end, read without a copy."""
    return Wire(Writer.raw, Reader.rest)


def sized_rest(what: str) -> Wire[Buffer]:
    """A 64-bit length and everything up to the end, read without a copy."""

    def write(writer: Writer, value: Buffer) -> None:
        writer.uint(len(value), 8).raw(value)

    def read(reader: Reader) -> Buffer:
        size, view = reader.uint(8), reader.rest()
        if size != len(view):
            raise MalformedMessage(f"{what} of {len(view)} bytes where {size} were stated")
        return view

    return Wire(write, read)


@dataclass(frozen=True)
class Record:
    """Base of frozen dataclasses with a canonical encoding."""

    HEADER: ClassVar[bytes] = b""

    def encode(self) -> bytes:
        """Canonical bytes: header and fields."""
        writer = Writer().raw(self.HEADER)
        self.write(writer)
        return writer.done()

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read canonical bytes; anything else is malformed."""
        reader = Reader(data)
        if reader.fixed(len(cls.HEADER)) != cls.HEADER:
            raise MalformedMessage(f"this does not begin as a {cls.__name__} does")
        record = cls.read(reader)
        reader.end()
        return record

    def body(self) -> bytes:
        """What is signed: every field before the signature."""
        writer = Writer()
        for name, wire in takewhile(lambda field: field[0] != "signature", _wires(type(self))):
            wire.write(writer, getattr(self, name))
        return writer.done()

    def write(self, writer: Writer) -> None:
        """Append every field."""
        for name, wire in _wires(type(self)):
            wire.write(writer, getattr(self, name))

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Take every field off."""
        return cls(**{name: wire.read(reader) for name, wire in _wires(cls)})


R = TypeVar("R", bound=Record)


_known: dict[type[Record], tuple[tuple[str, Wire[Any]], ...]] = {}


def _wires(kind: type[Record]) -> tuple[tuple[str, Wire[Any]], ...]:
    if kind not in _known:
        hints = get_type_hints(kind, include_extras=True)
        _known[kind] = tuple((item.name, _wire_of(hints[item.name])) for item in fields(kind))
    return _known[kind]


def _wire_of(hint: Any) -> Wire[Any]:
    if get_origin(hint) is Annotated:
        return next(extra for extra in hint.__metadata__ if isinstance(extra, Wire))
    if get_origin(hint) is tuple:
        return many(nested(get_args(hint)[0]), MAX_ITEMS)
    return nested(hint)
