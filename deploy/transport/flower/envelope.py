"""Envelopes: frames in the hands of a courier that nobody has to trust, such as Flower. Sans-I/O.

Whoever may submit an app to a Flower federation may hand a site any bytes. So every envelope is signed under
the identities of the pinned roster: a courier can lose, delay, repeat and read envelopes, but not write one.

The head: u8 kind, text site, blob header (``Header`` of ``messages.py``: study, request id, length and
SHA-256 of the frame), 64 bytes of signature over what stands before it; then the frame as it is. An answer
bears the request id of what it answers, which is random and new.

Security: envelopes are not encrypted. Who carries them sees what the aggregator sees: masked vectors, and the
model that is broadcast.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Annotated, Final

from secfed.crypto import labels
from secfed.crypto.codec import Buffer, Reader
from secfed.crypto.identity import MAX_NAME_BYTES, SIGNATURE_BYTES, Identity, verify
from secfed.crypto.record import Record, Wire, fixed, text
from secfed.deploy.transport.chunking import ChunkedFrame
from secfed.deploy.transport.messages import MAX_HEADER_BYTES, Header
from secfed.errors import MalformedMessage

OFFER, REQUEST, HERE, DECLINED, REPLY, REFUSED = 1, 2, 3, 4, 5, 6
ANSWERS_TO: Final = {OFFER: (HERE, DECLINED), REQUEST: (REPLY, REFUSED, DECLINED)}
MAX_HEAD_BYTES: Final = 1 + 4 + MAX_NAME_BYTES + 4 + MAX_HEADER_BYTES + SIGNATURE_BYTES


def _read_kind(reader: Reader) -> int:
    kind = reader.uint(1)
    if not OFFER <= kind <= REFUSED:
        raise MalformedMessage("an envelope of an unknown kind")
    return kind


_KIND: Final[Wire[int]] = Wire(lambda writer, kind: writer.uint(kind, 1), _read_kind)
_HEADER: Final[Wire[Header]] = Wire(
    lambda writer, header: writer.blob(header.encode()),
    lambda reader: Header.decode(reader.view(MAX_HEADER_BYTES)),
)


@dataclass(frozen=True)
class EnvelopeHeader(Record):
    """What an envelope says about itself; ``site`` is who is asked, or who answers, and empty in an offer."""

    kind: Annotated[int, _KIND]
    site: Annotated[str, text(MAX_NAME_BYTES)]
    header: Annotated[Header, _HEADER]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = bytes(SIGNATURE_BYTES)

    @classmethod
    def sign(cls, identity: Identity, kind: int, site: str, chunked: ChunkedFrame) -> EnvelopeHeader:
        """The head of a new envelope."""
        unsigned = cls(kind, site, chunked.header)
        return replace(unsigned, signature=identity.sign(labels.SIGN_LETTER, unsigned.body()))

    def check(self, public_bytes: bytes, who: str) -> None:
        """Check who wrote it."""
        verify(public_bytes, self.signature, labels.SIGN_LETTER, self.body(), who=who)

    def check_size(self, size_bytes: int, cap_bytes: int) -> None:
        """Check the length of a frame before it is read."""
        if size_bytes != self.header.total_bytes:
            raise MalformedMessage("an envelope's frame does not have the length that its head says")
        if size_bytes > cap_bytes:
            raise MalformedMessage(f"a frame of {size_bytes} bytes exceeds the study's cap of {cap_bytes}")

    def check_frame(self, frame: Buffer) -> None:
        """Check a frame that was read."""
        if hashlib.sha256(frame).digest() != self.header.sha256:
            raise MalformedMessage("an envelope's frame does not match its SHA-256")
