"""Messages 3 and 4, downwards: secrets are shared, and the shares confirmed, before anything is masked.

Each envelope carries, beside what is sealed, a digest of each of the two shares inside. Sender, recipient
and server see the same signed digests: the recipient compares what it opens before it confirms, and the
server compares what it gets back at the unmasking. So whoever returns another share than it was dealt is
found by that share alone, and nobody else comes under suspicion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from secfed.crypto import sealing, shamir
from secfed.crypto.codec import Reader, Writer
from secfed.crypto.identity import MAX_SITES, SIGNATURE_BYTES
from secfed.crypto.message_base import DIGEST_BYTES, Message, read_name, read_names, write_names

SEALED_SEED_BYTES = 32 + sealing.OVERHEAD_BYTES
SEALED_SHARES_BYTES = 2 * shamir.SHARE_BYTES + sealing.OVERHEAD_BYTES


@dataclass(frozen=True)
class Envelope:
    """One peer's part of message 3: sealed for ``recipient``, signed by ``sender``.

    The digests are those of :func:`secfed.crypto.masked.key_derivation.share_digest`; shares are uniform in a
    field of 2^256 elements, so a digest hides them without a salt.
    """

    sender: str
    recipient: str
    sealed_seed: bytes
    sealed_shares: bytes
    mask_secret_share_digest: bytes
    self_mask_share_digest: bytes
    signature: bytes = b""

    def body(self) -> bytes:
        """Everything but the signature."""
        writer = Writer().text(self.sender).text(self.recipient)
        writer.fixed(self.sealed_seed, SEALED_SEED_BYTES).fixed(self.sealed_shares, SEALED_SHARES_BYTES)
        writer.fixed(self.mask_secret_share_digest, DIGEST_BYTES)
        return writer.fixed(self.self_mask_share_digest, DIGEST_BYTES).done()

    def write(self, writer: Writer) -> None:
        """Append to a message."""
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Take off a message."""
        return cls(
            sender=read_name(reader),
            recipient=read_name(reader),
            sealed_seed=reader.fixed(SEALED_SEED_BYTES),
            sealed_shares=reader.fixed(SEALED_SHARES_BYTES),
            mask_secret_share_digest=reader.fixed(DIGEST_BYTES),
            self_mask_share_digest=reader.fixed(DIGEST_BYTES),
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
    """Message 3, downwards: the envelopes addressed to one site."""

    TYPE: ClassVar[int] = 4


@dataclass(frozen=True)
class Confirmation(Message):
    """Message 3, answered: every envelope is good, or whose is not.

    ``complaints`` names the senders whose envelope cannot be opened, or does not hold the shares whose
    digests stand on it, in roster order. A site that names anybody takes no further part in the attempt.
    """

    TYPE: ClassVar[int] = 18
    site: str
    complaints: tuple[str, ...]
    signature: bytes = b""

    def body(self) -> bytes:
        """Everything but the signature."""
        return write_names(Writer().text(self.site), self.complaints).done()

    def _write(self, writer: Writer) -> None:
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(read_name(reader), read_names(reader), reader.fixed(SIGNATURE_BYTES))


@dataclass(frozen=True)
class SharingSet(Message):
    """Message 4, downwards: the sites that confirmed, in roster order; each masks towards exactly these."""

    TYPE: ClassVar[int] = 19
    sharing: tuple[str, ...]

    def _write(self, writer: Writer) -> None:
        write_names(writer, self.sharing)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(read_names(reader))
