"""The messages of ``secfed_link.proto``, written and read by hand.

A message is at most a handful of fields of two kinds, numbers and byte strings, so this is shorter than
generated code and the library below it. It is also stricter than protobuf: fields come in order, each at
most once, none that is unknown, numbers in their shortest form, every length capped before it is used.
Zero and empty fields are left out, as proto3 does; what is written here is what protobuf would write.

Source: Protocol Buffers encoding, https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

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
MAX_KIND_BYTES: Final = 60
MAX_REASON_BYTES: Final = 1000
MAX_HEADER_BYTES: Final = 512

ACCEPTED, REPEATED, OVER = 1, 2, 3  # outcomes of a receipt

_NUMBER, _BYTES = 0, 2  # wire types
_MAX_NUMBER_BYTES = 10


@dataclass(frozen=True)
class HelloRequest:
    """A site says it is there, or only looks; with an empty study it asks for the settings."""

    study: str = ""
    software: str = ""
    looks: bool = False

    def encode(self) -> bytes:
        """Wire bytes."""
        said = _bytes(1, self.study.encode()) + _bytes(2, self.software.encode())
        return said + _number(3, int(self.looks))

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read wire bytes.

        Raises:
            MalformedMessage: anything else.
        """
        fields = _Fields(data)
        study, software = fields.text(1, MAX_STUDY_BYTES), fields.text(2, MAX_SOFTWARE_BYTES)
        message = cls(study, software, fields.flag(3))
        fields.end()
        return message


@dataclass(frozen=True)
class HelloReply:
    """What is served: the study, its settings (when asked for), the cap on replies, whether it is over.

    ``roster`` and ``plan`` come with the settings; see :mod:`secfed.deploy.admission.offered`. ``waits``,
    ``done`` and ``of`` are those of :class:`secfed.deploy.transport.progress.Waits`.
    """

    study: str
    settings: bytes
    max_answer_bytes: int
    finished: bool = False
    waits: int = 0
    done: int = 0
    of: int = 0
    roster: bytes = b""
    plan: bytes = b""

    def encode(self) -> bytes:
        """Wire bytes."""
        facts = _bytes(1, self.study.encode()) + _bytes(2, self.settings)
        facts += _number(3, self.max_answer_bytes) + _number(4, int(self.finished))
        facts += _number(5, self.waits) + _number(6, self.done) + _number(7, self.of)
        return facts + _bytes(8, self.roster) + _bytes(9, self.plan)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read wire bytes.

        Raises:
            MalformedMessage: anything else.
        """
        fields = _Fields(data)
        settings_cap = MAX_SETTINGS_BYTES
        study, settings = fields.text(1, MAX_STUDY_BYTES), bytes(fields.data(2, settings_cap))
        cap, finished = fields.number(3), fields.flag(4)
        waits, done, of = fields.number(5), fields.number(6), fields.number(7)
        roster, plan = bytes(fields.data(8, SHA256_BYTES)), bytes(fields.data(9, SHA256_BYTES))
        message = cls(study, settings, cap, finished, waits, done, of, roster, plan)
        fields.end()
        if any(len(digest) not in (0, SHA256_BYTES) for digest in (roster, plan)):
            raise MalformedMessage("a digest of the offer has another length")
        if not Waits(message.waits, message.done, message.of).valid:
            raise MalformedMessage("what is waited for cannot be")
        return message


@dataclass(frozen=True)
class NextRequest:
    """A site asks for its next request."""

    study: str

    def encode(self) -> bytes:
        """Wire bytes."""
        return _bytes(1, self.study.encode())

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read wire bytes.

        Raises:
            MalformedMessage: anything else.
        """
        fields = _Fields(data)
        message = cls(fields.text(1, MAX_STUDY_BYTES))
        fields.end()
        return message


@dataclass(frozen=True)
class Header:
    """The first part of a frame."""

    study: str
    request_id: bytes
    total_bytes: int
    sha256: bytes

    def encode(self) -> bytes:
        """Wire bytes."""
        start = _bytes(1, self.study.encode()) + _bytes(2, self.request_id)
        return start + _number(3, self.total_bytes) + _bytes(4, self.sha256)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read wire bytes.

        Raises:
            MalformedMessage: anything else.
        """
        fields = _Fields(data)
        study, request_id = fields.text(1, MAX_STUDY_BYTES), bytes(fields.data(2, REQUEST_ID_BYTES))
        message = cls(study, request_id, fields.number(3), bytes(fields.data(4, SHA256_BYTES)))
        fields.end()
        if len(message.request_id) != REQUEST_ID_BYTES or len(message.sha256) != SHA256_BYTES:
            raise MalformedMessage("a header's request id or hash has another length")
        return message


@dataclass(frozen=True)
class Part:
    """A frame's header, or a piece of its data; exactly one of the two is given."""

    header: Header | None = None
    data: Buffer | None = field(default=None, repr=False)

    def encode(self) -> bytes:
        """Wire bytes."""
        if self.header is not None:
            return _bytes(1, self.header.encode())
        return _bytes(2, self.data or b"")

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read wire bytes; the data is a view into them.

        Raises:
            MalformedMessage: anything else, an empty piece among it.
        """
        fields = _Fields(data)
        header, piece = fields.data(1, MAX_HEADER_BYTES), fields.data(2, PART_BYTES)
        fields.end()
        if bool(header) == bool(piece):
            raise MalformedMessage("a part is either a header or data")
        return cls(header=Header.decode(header)) if header else cls(data=piece)


@dataclass(frozen=True)
class RefusalMessage:
    """A site will not answer a request (or, without an id, serve the study): a code and its fixed text."""

    study: str
    request_id: bytes
    kind: str
    reason: str

    def encode(self) -> bytes:
        """Wire bytes."""
        start = _bytes(1, self.study.encode()) + _bytes(2, self.request_id)
        return start + _bytes(3, self.kind.encode()) + _bytes(4, self.reason.encode())

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read wire bytes.

        Raises:
            MalformedMessage: anything else.
        """
        fields = _Fields(data)
        study, request_id = fields.text(1, MAX_STUDY_BYTES), bytes(fields.data(2, REQUEST_ID_BYTES))
        message = cls(study, request_id, fields.text(3, MAX_KIND_BYTES), fields.text(4, MAX_REASON_BYTES))
        fields.end()
        if len(request_id) not in (0, REQUEST_ID_BYTES):
            raise MalformedMessage("a refusal's request id has another length")
        return message


@dataclass(frozen=True)
class Receipt:
    """What became of a reply or refusal."""

    outcome: int

    def encode(self) -> bytes:
        """Wire bytes."""
        return _number(1, self.outcome)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read wire bytes.

        Raises:
            MalformedMessage: anything else.
        """
        fields = _Fields(data)
        message = cls(fields.number(1))
        fields.end()
        if message.outcome not in (ACCEPTED, REPEATED, OVER):
            raise MalformedMessage("unknown outcome of a receipt")
        return message


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _NUMBER) + _varint(value) if value else b""


def _bytes(number: int, value: Buffer) -> bytes:
    # One join: a part's data is copied once.
    return b"".join((_varint(number << 3 | _BYTES), _varint(len(value)), value)) if len(value) else b""


class _Fields:
    """Takes a message's fields in order; a field that is left out is zero or empty."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")
        self._at = 0

    def text(self, number: int, cap_bytes: int) -> str:
        try:
            return str(self.data(number, cap_bytes), "utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage("text is not UTF-8") from None

    def data(self, number: int, cap_bytes: int) -> memoryview:
        if not self._begins(number, _BYTES):
            return memoryview(b"")
        size = self._varint()
        if not 0 < size <= cap_bytes:
            raise MalformedMessage(f"field {number} has {size} bytes; 1 to {cap_bytes} are permitted")
        if size > len(self._view) - self._at:
            raise MalformedMessage("message ends before its declared length")
        self._at += size
        return self._view[self._at - size : self._at]

    def number(self, number: int) -> int:
        if not self._begins(number, _NUMBER):
            return 0
        value = self._varint()
        if value == 0:
            raise MalformedMessage("a zero is written out")
        return value

    def flag(self, number: int) -> bool:
        value = self.number(number)
        if value > 1:
            raise MalformedMessage("a yes or no is neither")
        return bool(value)

    def end(self) -> None:
        if self._at != len(self._view):
            raise MalformedMessage("a field that is unknown, repeated or out of order")

    def _begins(self, number: int, wire_type: int) -> bool:
        if self._at == len(self._view) or self._view[self._at] != number << 3 | wire_type:
            return False
        self._at += 1
        return True

    def _varint(self) -> int:
        value = 0
        for index in range(_MAX_NUMBER_BYTES):
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
