"""The messages of ``messages.proto``: each is its fields, in order, with a cap on every length.

The bytes are those that protobuf would write. What is read is stricter than protobuf: fields come in order,
each at most once, none that is unknown, numbers in their shortest form, every length capped before it is
used. Zero and empty fields are left out, as proto3 does.

Source: Protocol Buffers encoding, https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Self, get_type_hints

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.progress import Waits
from secfed.errors import MalformedMessage

PART_BYTES: Final = 1 << 20  # data in one part; every part but a frame's last is full
MAX_MESSAGE_BYTES: Final = PART_BYTES + 64  # a part and its framing: the longest message of the link
REQUEST_ID_BYTES: Final = 16
SHA256_BYTES: Final = 32
MAX_STUDY_BYTES: Final = 300
MAX_SOFTWARE_BYTES: Final = 100
MAX_SETTINGS_BYTES: Final = 1 << 18
ANOTHER_STUDY: Final = "another study is served"  # begins what a hospital is told whose study lost its turn
MAX_KIND_BYTES: Final = 60
MAX_REASON_BYTES: Final = 1000
MAX_HEADER_BYTES: Final = 512

ACCEPTED, REPEATED, OVER = 1, 2, 3  # outcomes of a receipt

_VARINT, _BYTES = 0, 2  # wire types
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True)
class _Kind:
    """How a field travels: ``pack`` makes a number or bytes of its value, ``unpack`` the reverse."""

    wire_type: int
    cap_bytes: int = 0
    sizes: Collection[int] = ()  # permitted lengths, where not every length up to the cap is
    pack: Callable[[Any], Any] = lambda value: value
    unpack: Callable[[Any], Any] = lambda value: value


def _text(cap_bytes: int) -> _Kind:
    return _Kind(_BYTES, cap_bytes, pack=str.encode, unpack=_utf8)


def _data(cap_bytes: int, *sizes: int) -> _Kind:
    return _Kind(_BYTES, cap_bytes, sizes, unpack=bytes)


def _utf8(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise MalformedMessage("text is not UTF-8") from None


def _flag(value: int) -> bool:
    if value > 1:
        raise MalformedMessage("a flag is neither 0 nor 1")
    return bool(value)


_Number = Annotated[int, _Kind(_VARINT)]
_Flag = Annotated[bool, _Kind(_VARINT, pack=int, unpack=_flag)]
_Study = Annotated[str, _text(MAX_STUDY_BYTES)]
_Digest = Annotated[bytes, _data(SHA256_BYTES, 0, SHA256_BYTES)]


class LinkMessage:
    """Base of dataclasses whose fields are wire fields, numbered from 1; annotations say how each travels."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def encode(self) -> bytes:
        """Wire bytes."""
        parts: list[Buffer] = []
        for number, (name, kind) in enumerate(_wire_fields(type(self)), 1):
            value = getattr(self, name)
            packed: Any = b"" if value is None else kind.pack(value)
            if kind.wire_type == _VARINT and packed:
                parts += (_varint(number << 3 | _VARINT), _varint(packed))
            elif kind.wire_type == _BYTES and len(packed):
                parts += (_varint(number << 3 | _BYTES), _varint(len(packed)), packed)
        return b"".join(parts)  # one join: a part's data is copied once

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read wire bytes; anything but what :meth:`encode` writes raises ``MalformedMessage``."""
        reader = _Reader(data)
        message = cls(*[reader.field(number, kind) for number, (_, kind) in enumerate(_wire_fields(cls), 1)])
        reader.end()
        message.check()
        return message

    def check(self) -> None:
        """Refuse values that cannot be, with ``MalformedMessage``."""


_known: dict[type[LinkMessage], list[tuple[str, _Kind]]] = {}


def _wire_fields(message: type[LinkMessage]) -> list[tuple[str, _Kind]]:
    if message not in _known:
        hints = get_type_hints(message, include_extras=True)
        _known[message] = [(name, hints[name].__metadata__[0]) for name in message.__dataclass_fields__]
    return _known[message]


@dataclass(frozen=True)
class HelloRequest(LinkMessage):
    """A site says it is there, or only looks; with an empty study it asks for the settings."""

    study: _Study = ""
    software: Annotated[str, _text(MAX_SOFTWARE_BYTES)] = ""
    looks: _Flag = False


@dataclass(frozen=True)
class HelloReply(LinkMessage):
    """What is served: the study, its settings (when asked for), the cap on replies, whether it is over.

    ``roster`` and ``plan`` come with the settings; see :mod:`secfed.deploy.admission.offered`. ``waits``,
    ``done`` and ``of`` are those of :class:`secfed.deploy.transport.progress.Waits`.
    """

    study: _Study
    settings: Annotated[bytes, _data(MAX_SETTINGS_BYTES)]
    max_answer_bytes: _Number
    finished: _Flag = False
    waits: _Number = 0
    done: _Number = 0
    of: _Number = 0
    roster: _Digest = b""
    plan: _Digest = b""

    def check(self) -> None:
        """Refuse a number of answers that cannot be."""
        if not Waits(self.waits, self.done, self.of).valid:
            raise MalformedMessage("what is waited for cannot be")


@dataclass(frozen=True)
class NextRequest(LinkMessage):
    """A site asks for its next request."""

    study: _Study


@dataclass(frozen=True)
class Header(LinkMessage):
    """The first part of a frame."""

    study: _Study
    request_id: Annotated[bytes, _data(REQUEST_ID_BYTES, REQUEST_ID_BYTES)]
    total_bytes: _Number
    sha256: Annotated[bytes, _data(SHA256_BYTES, SHA256_BYTES)]


_HEADER: Final = _Kind(
    _BYTES, MAX_HEADER_BYTES, pack=Header.encode, unpack=lambda view: Header.decode(view) if view else None
)


@dataclass(frozen=True)
class Part(LinkMessage):
    """A frame's header, or a non-empty piece of its data (a view of what was read); one of the two."""

    header: Annotated[Header | None, _HEADER] = None
    data: Annotated[Buffer | None, _Kind(_BYTES, PART_BYTES, unpack=lambda view: view or None)] = field(
        default=None, repr=False
    )

    def check(self) -> None:
        """Refuse both and neither."""
        if (self.header is None) == (self.data is None):
            raise MalformedMessage("a part is either a header or data")


@dataclass(frozen=True)
class RefusalMessage(LinkMessage):
    """A site will not answer a request (or, without an id, serve the study): a code and its fixed text."""

    study: _Study
    request_id: Annotated[bytes, _data(REQUEST_ID_BYTES, 0, REQUEST_ID_BYTES)]
    kind: Annotated[str, _text(MAX_KIND_BYTES)]
    reason: Annotated[str, _text(MAX_REASON_BYTES)]


@dataclass(frozen=True)
class Receipt(LinkMessage):
    """What became of a reply or refusal."""

    outcome: _Number

    def check(self) -> None:
        """Refuse an unknown outcome."""
        if self.outcome not in (ACCEPTED, REPEATED, OVER):
            raise MalformedMessage("unknown outcome of a receipt")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Reader:
    """Takes a message's fields in order; a field that is left out is zero or empty."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")
        self._at = 0

    def field(self, number: int, kind: _Kind) -> Any:
        is_there = self._at < len(self._view) and self._view[self._at] == number << 3 | kind.wire_type
        self._at += is_there
        if kind.wire_type == _VARINT:
            value = self._varint() if is_there else 0
            if is_there and value == 0:
                raise MalformedMessage("a zero is written out")
            return kind.unpack(value)
        view = self._bytes(number, kind.cap_bytes) if is_there else memoryview(b"")
        if kind.sizes and len(view) not in kind.sizes:
            raise MalformedMessage(f"field {number} has {len(view)} bytes, which is not its length")
        return kind.unpack(view)

    def end(self) -> None:
        if self._at != len(self._view):
            raise MalformedMessage("a field that is unknown, repeated or out of order")

    def _bytes(self, number: int, cap_bytes: int) -> memoryview:
        size = self._varint()
        if not 0 < size <= cap_bytes:
            raise MalformedMessage(f"field {number} has {size} bytes; 1 to {cap_bytes} are permitted")
        if size > len(self._view) - self._at:
            raise MalformedMessage("message ends before its declared length")
        self._at += size
        return self._view[self._at - size : self._at]

    def _varint(self) -> int:
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            if self._at == len(self._view):
                raise MalformedMessage("message ends inside a number")
            byte = self._view[self._at]
            self._at += 1
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if (byte == 0 and index) or value >> 64:
                    raise MalformedMessage("a number is longer than it need be, or too large")
                return value
        raise MalformedMessage("a number is longer than 64 bits")
