"""HPKE envelopes under X-Wing (ML-KEM-768 + X25519): confidential as long as either half holds.

Suite: KEM MLKEM768-X25519, KDF HKDF-SHA-256, AEAD ChaCha20-Poly1305, base mode, single shot.
Source: RFC 9180 (HPKE); draft-connolly-cfrg-xwing-kem (X-Wing); FIPS 203 (ML-KEM).

Security: HPKE base mode does not authenticate the sender. Every envelope of this protocol is signed by
its sender's identity key next to it; callers verify that signature before opening.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from secfed.crypto.codec import Buffer, labelled
from secfed.errors import MalformedMessage

SECRET_BYTES = 32
MLKEM_PUBLIC_BYTES = 1184
PUBLIC_BYTES = MLKEM_PUBLIC_BYTES + 32
MLKEM_SEED_BYTES = 64
OVERHEAD_BYTES = 1088 + 32 + 16  # ML-KEM ciphertext, X25519 share, AEAD tag

_SUITE = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)


@dataclass(frozen=True)
class SealKey:
    """A private X-Wing key, built from its two seeds so that a recovered secret can rebuild it."""

    _mlkem: MLKEM768PrivateKey = field(repr=False)
    _x25519: X25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls) -> SealKey:
        """A fresh key from the operating system's generator."""
        return cls.from_seeds(secrets.token_bytes(MLKEM_SEED_BYTES), secrets.token_bytes(32))

    @classmethod
    def from_seeds(cls, mlkem_seed: bytes, x25519_seed: bytes) -> SealKey:
        """The key of a 64-byte ML-KEM seed (d, z of FIPS 203) and a 32-byte X25519 private key."""
        mlkem = MLKEM768PrivateKey.from_seed_bytes(mlkem_seed)
        return cls(mlkem, X25519PrivateKey.from_private_bytes(x25519_seed))

    @cached_property
    def public_bytes(self) -> bytes:
        """1216 bytes: the ML-KEM-768 public key, then the X25519 public key."""
        return self._mlkem.public_key().public_bytes_raw() + self._x25519.public_key().public_bytes_raw()

    def open(self, sealed: Buffer, label: bytes, *context: Buffer) -> bytes:
        """Open an envelope made by :func:`seal` for this key, label and context.

        Raises:
            MalformedMessage: it was made for another key, label or context, or was altered.
        """
        private = hpke.MLKEM768X25519PrivateKey(self._mlkem, self._x25519)
        try:
            return _SUITE.decrypt(sealed, private, info=labelled(label, *context))
        except (InvalidTag, ValueError):
            raise MalformedMessage("a sealed envelope cannot be opened") from None


def seal(public_bytes: bytes, plaintext: bytes, label: bytes, *context: Buffer) -> bytes:
    """Seal ``plaintext`` to a public key: ``len(plaintext) + OVERHEAD_BYTES`` bytes, randomised.

    Raises:
        MalformedMessage: the public key is not a valid X-Wing key.
    """
    if len(public_bytes) != PUBLIC_BYTES:
        raise MalformedMessage(f"a seal key must be {PUBLIC_BYTES} bytes")
    try:
        public = hpke.MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(public_bytes[:MLKEM_PUBLIC_BYTES]),
            X25519PublicKey.from_public_bytes(public_bytes[MLKEM_PUBLIC_BYTES:]),
        )
        return _SUITE.encrypt(plaintext, public, info=labelled(label, *context))
    except ValueError:
        raise MalformedMessage("a seal key is not a valid X-Wing public key") from None
