"""Randomness of one attempt from one secret seed, so that a site that was killed can rebuild the attempt.

Everything that an attempt draws follows from 32 fresh secret bytes, except the randomness inside sealed
envelopes, which the library draws by itself; envelopes that may have left are therefore kept, not made
again. The seed is used for one attempt and destroyed with it.

Security: whoever reads the seed before it is destroyed can compute the masks of this site in that attempt.
Without a seed on the disk a crash loses the attempt; with it, forward secrecy begins when the exchange is
over, seconds later.
"""

from __future__ import annotations

from typing import Final

from secfed.crypto import labels, sealing
from secfed.crypto.attempt import Entropy
from secfed.crypto.keystream import Keystream, derive
from secfed.errors import MalformedMessage

SEED_BYTES: Final = 32


class SeededEntropy(Entropy):
    """Randomness of one attempt, from 32 secret bytes: fresh ones, or those of the attempt that is rebuilt.

    Raises:
        MalformedMessage: not 32 bytes.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise MalformedMessage(f"the seed of an attempt must be {SEED_BYTES} bytes")
        self._seed = seed
        self._numbers = Keystream(derive(seed, labels.DERIVE_ATTEMPT_NUMBERS))

    def token(self, purpose: str) -> bytes:
        """32 secret bytes for one purpose; each purpose once."""
        return derive(self._seed, labels.DERIVE_ATTEMPT_TOKEN, purpose.encode())

    def below(self, limit: int) -> int:
        """A uniform integer in [0, limit), by rejection; the same sequence for the same seed."""
        bits = limit.bit_length()
        size = (bits + 7) // 8
        while True:
            room = bytearray(size)
            self._numbers.into(bytes(size), room)
            value = int.from_bytes(room, "big") >> (8 * size - bits)
            if value < limit:
                return value

    def seal_key(self) -> sealing.SealKey:
        """The key pair for sealed shares."""
        mlkem = derive(self._seed, labels.DERIVE_ATTEMPT_SEAL_MLKEM, size_bytes=sealing.MLKEM_SEED_BYTES)
        return sealing.SealKey.from_seeds(mlkem, derive(self._seed, labels.DERIVE_ATTEMPT_SEAL_X25519))
