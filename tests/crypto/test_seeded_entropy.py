"""One seed, one attempt: the same draws again, and different ones under another seed."""

from __future__ import annotations

import pytest

from secfed.crypto.seeded_entropy import SeededEntropy
from secfed.crypto.shamir import split
from secfed.errors import MalformedMessage

SEED, OTHER = bytes(32), bytes([1]) * 32


def draws(seed: bytes) -> list[object]:
    entropy = SeededEntropy(seed)
    return [
        entropy.token("mask secret"),
        entropy.token("self-mask seed"),
        entropy.seal_key().public_bytes,
        [entropy.below(limit) for limit in (1, 2, 3, 255, 256, 257, 2**256 + 297)],
        split(bytes(32), 3, [1, 2, 3, 4], randbelow=entropy.below),
    ]


def test_a_seed_gives_the_same_draws_again() -> None:
    assert draws(SEED) == draws(SEED)


def test_other_seeds_and_purposes_give_other_draws() -> None:
    first, second = draws(SEED), draws(OTHER)
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert first[0] != first[1]


def test_numbers_are_in_range_and_spread() -> None:
    entropy = SeededEntropy(SEED)
    counts = [0] * 5
    for _ in range(5000):
        counts[entropy.below(5)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150
    assert {entropy.below(1) for _ in range(10)} == {0}


def test_envelopes_stay_randomised() -> None:
    public = SeededEntropy(SEED).seal_key().public_bytes
    one, other = (SeededEntropy(SEED).seal(public, b"share", b"label") for _ in range(2))
    assert one != other


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_a_seed_has_32_bytes(seed: bytes) -> None:
    with pytest.raises(MalformedMessage):
        SeededEntropy(seed)
