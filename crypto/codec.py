"""Canonical length-prefixed encoding: one value, one byte string, in both directions.

Every signed, hashed or sent structure goes through this file. Integers are big-endian and of fixed
width; byte strings and texts carry a 32-bit length; lists carry a 32-bit count. The decoder checks
every length against what is left *and* against the cap the caller declares before it allocates, and
refuses trailing bytes, so two different byte strings never decode to the same value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from secfed.errors import MalformedMessage

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview


class Writer:
    """Appends canonical values to a buffer."""

    def __init__(self) -> None:
        self._parts: list[Buffer] = []

    def uint(self, value: int, width_bytes: int) -> Writer:
        """Append an unsigned integer of ``width_bytes`` bytes, big-endian."""
        if value < 0 or value >> (8 * width_bytes):
            raise MalformedMessage(f"integer does not fit {width_bytes} bytes")
        self._parts.append(value.to_bytes(width_bytes, "big"))
        return self

    def fixed(self, value: Buffer, size_bytes: int) -> Writer:
        """Append exactly ``size_bytes`` bytes without a length."""
        data = bytes(value)
        if len(data) != size_bytes:
            raise MalformedMessage(f"field must be {size_bytes} bytes, not {len(data)}")
        self._parts.append(data)
        return self

    def raw(self, value: Buffer) -> Writer:
        """Append bytes without a length; they are copied by :meth:`done` only."""
        self._parts.append(value)
        return self

    def blob(self, value: Buffer) -> Writer:
        """Append a byte string with its 32-bit length."""
        data = bytes(value)
        self.uint(len(data), 4)
        self._parts.append(data)
        return self

    def text(self, value: str) -> Writer:
        """Append a text as UTF-8 with its 32-bit length in bytes."""
        try:
            return self.blob(value.encode("utf-8"))
        except UnicodeEncodeError:
            raise MalformedMessage("text cannot be encoded as UTF-8") from None

    def many(self, items: Sequence[T], write: Callable[[Writer, T], object]) -> Writer:
        """Append a 32-bit count and every item."""
        self.uint(len(items), 4)
        for item in items:
            write(self, item)
        return self

    def done(self) -> bytes:
        """Everything appended so far, as one byte string."""
        return b"".join(self._parts)


class Reader:
    """Takes canonical values off a buffer; anything else raises :class:`MalformedMessage`."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")
        self._at = 0

    def _take(self, size: int) -> memoryview:
        if size > len(self._view) - self._at:
            raise MalformedMessage("message ends before its declared length")
        start, self._at = self._at, self._at + size
        return self._view[start : self._at]

    def uint(self, width_bytes: int) -> int:
        """Take an unsigned integer of ``width_bytes`` bytes."""
        return int.from_bytes(self._take(width_bytes), "big")

    def fixed(self, size_bytes: int) -> bytes:
        """Take exactly ``size_bytes`` bytes."""
        return bytes(self._take(size_bytes))

    def blob(self, cap_bytes: int) -> bytes:
        """Take a byte string of at most ``cap_bytes`` bytes."""
        return bytes(self.view(cap_bytes))

    def view(self, cap_bytes: int) -> memoryview:
        """Like :meth:`blob`, without copying."""
        size = self.uint(4)
        if size > cap_bytes:
            raise MalformedMessage(f"field of {size} bytes exceeds its cap of {cap_bytes}")
        return self._take(size)

    def text(self, cap_bytes: int) -> str:
        """Take a UTF-8 text of at most ``cap_bytes`` bytes."""
        try:
            return str(self.view(cap_bytes), "utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage("text is not UTF-8") from None

    def many(self, cap: int, read: Callable[[Reader], T]) -> tuple[T, ...]:
        """Take a list of at most ``cap`` items."""
        count = self.uint(4)
        if count > cap:
            raise MalformedMessage(f"list of {count} items exceeds its cap of {cap}")
        return tuple(read(self) for _ in range(count))

    def rest(self) -> memoryview:
        """Everything that is left, without copying."""
        return self._take(len(self._view) - self._at)

    def end(self) -> None:
        """Refuse trailing bytes."""
        if self._at != len(self._view):
            raise MalformedMessage("trailing bytes after the message")


def labelled(label: bytes, *context: Buffer) -> bytes:
    """A label and its context, each with its length: the info string of derivations and envelopes."""
    writer = Writer()
    for part in (label, *context):
        writer.blob(part)
    return writer.done()


def digest(label: bytes, *parts: Buffer) -> bytes:
    """SHA-256 over the label and the parts, each with its length: 32 bytes.

    Security: the label separates domains and the lengths make the input injective.
    """
    state = hashlib.sha256()
    for part in (label, *parts):
        # Not len(): of a view of wider items that counts items, and two inputs could collide.
        state.update(memoryview(part).nbytes.to_bytes(8, "big"))
        state.update(part)
    return state.digest()
