"""Messages of encrypted protection, beside the specification, upload and result of ``messages.py``.

11  KeyHello      site -> server   "I have the study key", or a fresh key to seal it to; signed
12  KeyRequest    server -> holder hellos of the sites that have no study key
13  KeyPackages   holder -> server the public key, and the secret key sealed to each of those sites
14  KeyDelivery   server -> site   one site's package
15  Summed        server -> site   specification, result, and the ciphertext of the sum with its tag
16  StateView     site -> server   digest of the site's state, signed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from secfed.crypto import labels, sealing
from secfed.crypto.codec import Buffer, Reader, Writer, digest
from secfed.crypto.encrypted.tags import NONCE_BYTES, TAG_BYTES
from secfed.crypto.identity import MAX_NAME_BYTES, MAX_SITES, SIGNATURE_BYTES
from secfed.crypto.messages import DIGEST_BYTES, Message, Result, Specification
from secfed.errors import MalformedMessage

MAX_KEY_BYTES = 1 << 22  # a public key of the largest ring is about 0.2 MB
MAX_SEALED_KEY_BYTES = 1 << 20
MAX_SPEC_BYTES = 1 << 20


@dataclass(frozen=True)
class KeyHello(Message):
    """Message 11. ``seal_key`` is empty when the site already holds the study key."""

    TYPE: ClassVar[int] = 11
    site: str
    seal_key: bytes
    signature: bytes = b""

    @property
    def holds_key(self) -> bool:
        """Whether this site needs no package."""
        return not self.seal_key

    def body(self) -> bytes:
        """Everything but the signature."""
        return Writer().text(self.site).blob(self.seal_key).done()

    def _write(self, writer: Writer) -> None:
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        site, key = reader.text(MAX_NAME_BYTES), reader.blob(sealing.PUBLIC_BYTES)
        return cls(site, key, reader.fixed(SIGNATURE_BYTES))


@dataclass(frozen=True)
class KeyRequest(Message):
    """Message 12. Without hellos it asks any site for its own hello."""

    TYPE: ClassVar[int] = 12
    hellos: tuple[KeyHello, ...]

    def _write(self, writer: Writer) -> None:
        writer.many(self.hellos, lambda w, hello: hello._write(w))

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.many(MAX_SITES, KeyHello._read))


@dataclass(frozen=True)
class KeyPackage:
    """The study key for one site; signed by the holder together with the public key's digest."""

    recipient: str
    sealed_key: bytes
    signature: bytes = b""

    def body(self) -> bytes:
        """Everything but the signature."""
        return Writer().text(self.recipient).blob(self.sealed_key).done()

    def write(self, writer: Writer) -> None:
        """Append to a message."""
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Take off a message."""
        recipient, sealed = reader.text(MAX_NAME_BYTES), reader.blob(MAX_SEALED_KEY_BYTES)
        return cls(recipient, sealed, reader.fixed(SIGNATURE_BYTES))


@dataclass(frozen=True)
class KeyPackages(Message):
    """Message 13."""

    TYPE: ClassVar[int] = 13
    public_key: bytes = field(repr=False)
    packages: tuple[KeyPackage, ...]

    def _write(self, writer: Writer) -> None:
        writer.blob(self.public_key).many(self.packages, lambda w, package: package.write(w))

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.blob(MAX_KEY_BYTES), reader.many(MAX_SITES, KeyPackage.read))


@dataclass(frozen=True)
class KeyDelivery(Message):
    """Message 14."""

    TYPE: ClassVar[int] = 14
    public_key: bytes = field(repr=False)
    package: KeyPackage

    def _write(self, writer: Writer) -> None:
        writer.blob(self.public_key)
        self.package.write(writer)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.blob(MAX_KEY_BYTES), KeyPackage.read(reader))


@dataclass(frozen=True)
class Summed(Message):
    """Message 15: everything a site needs to take one sum into its state, also long afterwards.

    ``nonces`` are those of the survivors' uploads in the order of the result, ``tag`` is the sum of their
    tags (``tags.py``).
    """

    TYPE: ClassVar[int] = 15
    spec: Specification
    result: Result
    nonces: bytes
    tag: bytes
    ciphertext: bytes = field(repr=False)

    @property
    def totals_digest(self) -> bytes:
        """What the result must name."""
        return totals_digest(self.spec.layout_digest, self.nonces, self.tag, self.ciphertext)

    def each_nonce(self) -> list[bytes]:
        """One nonce per survivor.

        Raises:
            MalformedMessage: there are more or fewer.
        """
        if len(self.nonces) != NONCE_BYTES * len(self.result.survivors):
            raise MalformedMessage("a sum without one nonce for every survivor")
        return [self.nonces[at : at + NONCE_BYTES] for at in range(0, len(self.nonces), NONCE_BYTES)]

    def _write(self, writer: Writer) -> None:
        writer.blob(self.spec.encode()).blob(self.result.encode())
        writer.blob(self.nonces).fixed(self.tag, TAG_BYTES)
        writer.uint(len(self.ciphertext), 8).fixed(self.ciphertext, len(self.ciphertext))

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        spec = Specification.decode(reader.view(MAX_SPEC_BYTES))
        result = Result.decode(reader.view(MAX_SPEC_BYTES))
        nonces, tag = reader.blob(NONCE_BYTES * MAX_SITES), reader.fixed(TAG_BYTES)
        size, rest = reader.uint(8), reader.rest()
        if size != len(rest):
            raise MalformedMessage(f"a ciphertext of {len(rest)} bytes where {size} were stated")
        return cls(spec, result, nonces, tag, bytes(rest))


@dataclass(frozen=True)
class StateView(Message):
    """Message 16: after how many sums this site has which state."""

    TYPE: ClassVar[int] = 16
    site: str
    sums: int
    state_digest: bytes
    signature: bytes = b""

    def body(self) -> bytes:
        """Everything but the signature."""
        return Writer().text(self.site).uint(self.sums, 4).fixed(self.state_digest, DIGEST_BYTES).done()

    def _write(self, writer: Writer) -> None:
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        site, sums = reader.text(MAX_NAME_BYTES), reader.uint(4)
        return cls(site, sums, reader.fixed(DIGEST_BYTES), reader.fixed(SIGNATURE_BYTES))


def totals_digest(layout_digest: bytes, nonces: bytes, tag: bytes, ciphertext: Buffer) -> bytes:
    """What the aggregator's result says about a sum that it cannot read: 32 bytes."""
    return digest(labels.TOTALS_DIGEST, layout_digest, nonces, tag, ciphertext)


ALL: tuple[type[Message], ...] = (KeyHello, KeyRequest, KeyPackages, KeyDelivery, Summed, StateView)
