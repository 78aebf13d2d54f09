"""Streams of ChaCha20 or AES-256, added to or subtracted from lanes: the hot loop of masked protection.

Source: RFC 8439 (ChaCha20); NIST SP 800-38A, 6.5 (counter mode); masks as pseudo-random one-time pads in
Bonawitz et al. 2017.

Nonce: every key is derived by HKDF over an attempt's fresh secrets *and* the name of the one stream it
makes, which names its cipher, too. So a key makes exactly one stream in its life, and serves one cipher.
A stream is read in segments of 1 MiB, in any order. Those of ChaCha20 follow each other under a zero nonce
and one block counter, which ends a stream after 2^38 bytes. AES-256 in counter mode has the segment's number
in the upper 96 bits of the counter block, and below them 2 for the first block of a segment, 3 for the next
and so on. No (key, counter block) repeats either way.

Security: one keystream in the clear reveals the lanes it covers. Keys never leave this process.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from secfed.crypto import labels
from secfed.crypto.codec import Buffer, labelled

KEY_BYTES: Final = 32
SEGMENT_BYTES: Final = 1 << 20
_WORD = np.dtype("<u4")
_BLOCK_BYTES: Final = 64  # of ChaCha20
_NONCE: Final = bytes(12)  # of RFC 8439; before it the 32-bit block counter


class StreamCipher(StrEnum):
    """What a mask stream is made with, by its name in a study."""

    CHACHA20 = "chacha20"
    AES_256_CTR = "aes-256-ctr"


def derive(secret: bytes, label: bytes, *context: Buffer, size_bytes: int = KEY_BYTES) -> bytes:
    """HKDF-SHA-256 (RFC 5869) of a secret for one purpose; info is label and context with their lengths."""
    return HKDF(SHA256(), size_bytes, salt=None, info=labelled(label, *context)).derive(secret)


class Keystream:
    """One stream of ChaCha20, read front to back from the beginning of a segment."""

    def __init__(self, stream_key: bytes, segment: int = 0) -> None:
        """OverflowError where the block counter does not reach."""
        counter = (segment * SEGMENT_BYTES // _BLOCK_BYTES).to_bytes(4, "little")
        self._encryptor = Cipher(ChaCha20(stream_key, counter + _NONCE), mode=None).encryptor()

    def into(self, zeros: Buffer, out: bytearray | memoryview) -> None:
        """Write the next ``len(zeros)`` keystream bytes to ``out``; ``zeros`` must be zero bytes."""
        self._encryptor.update_into(zeros, out)


class AesSegment(Keystream):
    """One segment of a stream of AES-256 in counter mode.

    GCM encrypts in exactly this mode, from counter block nonce || 2 on, and OpenSSL has it vectorised where
    plain counter mode is not: twice as fast as that with VAES. Its tag is never asked for.
    """

    def __init__(self, stream_key: bytes, segment: int = 0) -> None:
        self._encryptor = Cipher(AES256(stream_key), GCM(segment.to_bytes(12, "big"))).encryptor()


@dataclass(frozen=True)
class StreamKey:
    """The key of one stream, and the cipher that it is for."""

    stream_key: bytes = field(repr=False)
    cipher: StreamCipher = StreamCipher.CHACHA20

    def segment(self, index: int) -> Keystream:
        """The stream from byte ``index * SEGMENT_BYTES`` on, to be read to the end of that segment."""
        of = Keystream if self.cipher is StreamCipher.CHACHA20 else AesSegment
        return of(self.stream_key, index)


class Workspace:
    """Reusable scratch for one thread: zero bytes, and room for one chunk of keystream."""

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self._zeros = memoryview(bytes(chunk_bytes))
        self._room = bytearray(chunk_bytes)
        self._view = memoryview(self._room)

    def words(self, stream: Keystream, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The next ``count`` words of a stream, valid until the next call: [count] of ``dtype``."""
        size = count * dtype.itemsize
        stream.into(self._zeros[:size], self._view[:size])
        return np.frombuffer(self._room, dtype=dtype, count=count)


class RoundingStream:
    """Uniform words for stochastic rounding, from a ChaCha20 stream under a secret key.

    The stream of words does not depend on how many are asked for at a time.
    """

    def __init__(self, stream_key: bytes | None = None) -> None:
        """``stream_key`` None draws a fresh key.

        A given one is the secret key of one exchange, so that a site repeats its words after a restart; one
        that others know is for simulation and test vectors only.
        """
        self._stream = Keystream(stream_key if stream_key is not None else secrets.token_bytes(KEY_BYTES))
        self._workspace = Workspace(0)

    def words(self, count: int) -> NDArray[np.uint32]:
        """The next ``count`` words, valid until the next call: [count] uint32."""
        if 4 * count > self._workspace.chunk_bytes:
            self._workspace = Workspace(4 * count)
        return self._workspace.words(self._stream, count, _WORD)


def rounding_stream_for_simulation(seed: int, *context: str) -> RoundingStream:
    """A reproducible rounding stream. Simulation only: whoever knows the seed can undo the rounding."""
    secret = seed.to_bytes(32, "big", signed=True)
    return RoundingStream(derive(secret, labels.DERIVE_ROUNDING, *(part.encode() for part in context)))
