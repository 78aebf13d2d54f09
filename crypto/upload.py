"""Message 4, the masked (or plain, or encrypted) vector: laid out to be written without a copy."""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Self

from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import SIGNATURE_BYTES
from secfed.crypto.message_base import DIGEST_BYTES, HEADER_BYTES, Message, peek_type
from secfed.errors import MalformedMessage, RoundAborted


@dataclass(frozen=True)
class Upload(Message):
    """Message 4: the masked vector.

    Laid out so that the vector starts 16 bytes into the buffer and is written there part by part: header
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

        Raises:
            RoundAborted: there is not enough memory.
        """
        try:
            pages = mmap.mmap(-1, cls.VECTOR_AT + vector_bytes + cls.TRAILER_BYTES)
        except OSError:
            raise RoundAborted(
                f"no memory for an upload of {vector_bytes} bytes",
                remedy="check the memory limit of the site's service",
            ) from None
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
