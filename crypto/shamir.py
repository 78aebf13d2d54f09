"""t-of-n sharing of 32-byte secrets over the prime field of 2^256 + 297 elements.

Source: Shamir, "How to share a secret", CACM 22(11), 1979. The prime is the smallest above 2^256, so every
32-byte string is a field element; a share is a field element, hence 33 bytes.

Security: coefficients come from the operating system's generator. Fewer than t shares are independent
of the secret. Python integers are not constant-time; shares are handled on the machine that owns them.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from secfed.errors import RangeError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
MAX_POINT = 1 << 16


def split(
    secret: bytes,
    threshold: int,
    points: Sequence[int],
    *,
    randbelow: Callable[[int], int] = secrets.randbelow,
) -> dict[int, bytes]:
    """Share a 32-byte secret: any ``threshold`` of the 33-byte shares, by x-coordinate, rebuild it.

    ``points`` are distinct, 1..2^16; ``randbelow`` is replaced only to make test vectors.

    Raises:
        RangeError: arguments out of range.
    """
    if len(secret) != SECRET_BYTES:
        raise RangeError("only 32-byte secrets can be shared")
    if not 1 <= threshold <= len(points):
        raise RangeError("threshold must lie between 1 and the number of shares")
    if len(set(points)) != len(points) or not all(0 < x <= MAX_POINT for x in points):
        raise RangeError(f"share coordinates must be distinct and between 1 and {MAX_POINT}")
    coefficients = [int.from_bytes(secret, "big"), *(randbelow(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for x in points:
        y = 0
        for coefficient in reversed(coefficients):
            y = (y * x + coefficient) % PRIME
        shares[x] = y.to_bytes(SHARE_BYTES, "big")
    return shares


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Rebuild the secret from at least ``threshold`` shares; the lowest coordinates are used.

    Raises:
        RangeError: too few shares, or shares that do not lie on a polynomial with a 32-byte secret.
    """
    # A threshold of zero would "rebuild" the empty sum, and a share at zero would be the secret itself.
    if threshold < 1 or not all(0 < x <= MAX_POINT for x in shares):
        raise RangeError(f"threshold and share coordinates must lie between 1 and {MAX_POINT}")
    if len(shares) < threshold:
        raise RangeError(f"{len(shares)} shares cannot rebuild a secret with threshold {threshold}")
    points = sorted(shares)[:threshold]
    total = 0
    for x, weight in zip(points, weights_at_zero(tuple(points)), strict=True):
        y = int.from_bytes(shares[x], "big")
        if len(shares[x]) != SHARE_BYTES or y >= PRIME:
            raise RangeError("a share is not a field element")
        total = (total + y * weight) % PRIME
    if total >> (8 * SECRET_BYTES):
        raise RangeError("the shares do not belong together")
    return total.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=1)  # many secrets of a sum are rebuilt from shares of the same holders
def weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange weights for evaluation at 0."""
    numerator = math.prod(points) % PRIME
    # Products of small differences are faster than as many reductions, though they grow.
    denominators = (x * math.prod([other - x for other in points if other != x]) for x in points)
    return tuple(numerator * pow(denominator, -1, PRIME) % PRIME for denominator in denominators)
