"""ChaCha20 streams, added to or subtracted from lanes: the hot loop of masked protection.

Source: RFC 8439 (ChaCha20); masks as pseudo-random one-time pads in Bonawitz et al. 2017.

Nonce: every key is derived by HKDF over an attempt's fresh secrets *and* the name of the one stream it
makes, so a key makes exactly one stream in its life; a fixed zero nonce and a counter from zero never
repeat a (key, nonce, counter) triple. A stream may be at most 2^38 bytes (the 32-bit block counter).

Security: one keystream in the clear reveals the lanes it covers. Keys never leave this process.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from secfed.crypto import labels
from secfed.crypto.codec import Buffer, labelled

KEY_BYTES = 32
_WORD = np.dtype("<u4")
_ZERO_NONCE = bytes(16)  # 32-bit counter from zero, then the 96-bit nonce of RFC 8439


def derive(secret: bytes, label: bytes, *context: Buffer, size_bytes: int = KEY_BYTES) -> bytes:
    """HKDF-SHA-256 (RFC 5869) of a secret for one purpose; info is label and context with their lengths."""
    return HKDF(SHA256(), size_bytes, salt=None, info=labelled(label, *context)).derive(secret)


class Keystream:
    """One ChaCha20 stream, read front to back."""

    def __init__(self, stream_key: bytes) -> None:
        self._encryptor = Cipher(ChaCha20(stream_key, _ZERO_NONCE), mode=None).encryptor()

    def into(self, zeros: Buffer, out: bytearray | memoryview) -> None:
        """Write the next ``len(zeros)`` keystream bytes to ``out``; ``zeros`` must be zero bytes."""
        self._encryptor.update_into(zeros, out)


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
