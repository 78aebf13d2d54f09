"""Randomness that privacy rests on: one ChaCha20 stream under a fresh 256-bit key.

Sampling of records and noise come from here, never from torch's or NumPy's generators: whoever can
guess the state of a Mersenne Twister can subtract the noise. The stream re-keys itself from its own
output every 2^30 bytes, so it never reaches the 2^38 bytes of one RFC 8439 counter, and a key that is
found later does not uncover earlier noise.
"""

from __future__ import annotations

import secrets
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.crypto import labels
from secfed.crypto.keystream import KEY_BYTES, Keystream, derive
from secfed.errors import ConfigError

_LAYERS: Final = b"secfed/v1 derive randomness of layers"
_REKEY_BYTES: Final = 1 << 30
_BLOCK_BYTES: Final = 1 << 18
_ZEROS: Final = bytes(_BLOCK_BYTES)


class SecureRandom:
    """Uniform words and Bernoulli draws from one stream, under a fresh key unless 32 bytes are given.

    Security: pass a key only to repeat the *same* release (another attempt of one exchange must carry
    the same noise), in simulations and in tests. Not for several threads at once.
    """

    def __init__(self, stream_key: bytes | None = None) -> None:
        own = secrets.token_bytes(KEY_BYTES) if stream_key is None else stream_key
        self._stream, self._used_bytes = Keystream(own), 0
        # A stream beside the first, so that models with and without random layers get the same noise.
        self._layers = Keystream(derive(own, _LAYERS))

    @classmethod
    def for_simulation(cls, seed: int, *context: str | int) -> SecureRandom:
        """A reproducible stream. Simulation only: whoever knows the seed can remove the noise."""
        secret = (seed % 2**256).to_bytes(32, "big")
        return cls(derive(secret, labels.DERIVE_SIMULATED_NOISE, *(str(part).encode() for part in context)))

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next ``count`` uniform words: [count] uint64."""
        room = bytearray(8 * count)
        view = memoryview(room)
        for start in range(0, len(room), _BLOCK_BYTES):
            part = view[start : start + _BLOCK_BYTES]
            self._stream.into(_ZEROS[: len(part)], part)
            self._used_bytes += len(part)
            if self._used_bytes >= _REKEY_BYTES:
                self._rekey()
        return np.frombuffer(room, dtype="<u8")

    def layer_words(self, count: int) -> NDArray[np.uint64]:
        """Words of a second, independent stream, for random layers of a model: [count] uint64."""
        room = bytearray(8 * count)
        self._layers.into(bytes(8 * count), room)
        return np.frombuffer(room, dtype="<u8")

    def _rekey(self) -> None:
        fresh = bytearray(KEY_BYTES)
        self._stream.into(_ZEROS[:KEY_BYTES], fresh)
        self._stream, self._used_bytes = Keystream(bytes(fresh)), 0

    def bernoulli(self, probability: float, count: int) -> NDArray[np.bool_]:
        """Independent draws that are true with ``probability``, to within 2^-64 from below: [count] bool."""
        if not 0.0 <= probability <= 1.0:
            raise ConfigError(f"{probability} is not a probability")
        if probability == 1.0:
            return np.ones(count, dtype=np.bool_)
        # int() of a float times 2^64 is exact but for a fraction below one, which it drops.
        return np.asarray(self.words(count) < np.uint64(int(probability * 2.0**64)))

    def poisson_sample(self, rate: float, units: int) -> NDArray[np.int64]:
        """Indices of a Poisson sample: every unit independently with probability ``rate``; may be empty."""
        return np.flatnonzero(self.bernoulli(rate, units)).astype(np.int64)
