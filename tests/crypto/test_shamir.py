"""Secret sharing: any t shares rebuild the secret, and t - 1 shares are compatible with every secret."""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.crypto import shamir
from secfed.crypto.shamir import PRIME, SHARE_BYTES, combine, split
from secfed.errors import RangeError

SECRETS = st.one_of(
    st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32, bytes(31) + b"\1"])
)


@st.composite
def _sharings(draw: st.DrawFn) -> tuple[bytes, int, list[int]]:
    points = draw(st.lists(st.integers(1, 1 << 16), min_size=1, max_size=8, unique=True))
    return draw(SECRETS), draw(st.integers(1, len(points))), points


def test_the_field_is_the_smallest_prime_above_2_to_the_256() -> None:
    def probably_prime(n: int) -> bool:  # Miller-Rabin with 40 random bases: wrong with chance below 2^-80
        d, r = n - 1, 0
        while d % 2 == 0:
            d, r = d // 2, r + 1
        for _ in range(40):
            x = pow(secrets.randbelow(n - 3) + 2, d, n)
            if x not in (1, n - 1) and not any((x := x * x % n) == n - 1 for _ in range(r - 1)):
                return False
        return True

    assert PRIME > 2**256
    assert probably_prime(PRIME)
    assert not any(probably_prime(n) for n in range(2**256 + 1, PRIME, 2))


@given(_sharings(), st.randoms())
def test_any_threshold_many_shares_rebuild_the_secret(sharing: tuple[bytes, int, list[int]], random) -> None:
    secret, threshold, points = sharing
    shares = split(secret, threshold, points)
    assert sorted(shares) == sorted(points)
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    chosen = random.sample(points, random.randint(threshold, len(points)))
    assert combine({x: shares[x] for x in chosen}, threshold) == secret


def test_every_subset_of_at_least_t_shares_rebuilds_and_no_smaller_one_is_accepted() -> None:
    secret = secrets.token_bytes(32)
    shares = split(secret, 3, range(1, 6))
    for size in range(6):
        for chosen in itertools.combinations(shares, size):
            subset = {x: shares[x] for x in chosen}
            if size >= 3:
                assert combine(subset, 3) == secret
            else:
                with pytest.raises(RangeError, match="cannot rebuild"):
                    combine(subset, 3)


@given(SECRETS, SECRETS, st.integers(2, 6))
def test_t_minus_1_shares_are_compatible_with_every_secret(
    secret: bytes, other: bytes, threshold: int
) -> None:
    """For any other secret there is exactly one missing share that would have produced it."""
    known = split(secret, threshold, range(1, threshold + 1))
    last = threshold
    del known[last]
    # Interpolate through (0, other) and the known shares, and evaluate at the missing coordinate.
    points = {0: int.from_bytes(other, "big"), **{x: int.from_bytes(y, "big") for x, y in known.items()}}
    missing = 0
    for x, y in points.items():
        numerator = math.prod(last - z for z in points if z != x)
        denominator = math.prod(x - z for z in points if z != x)
        missing = (missing + y * numerator * pow(denominator, -1, PRIME)) % PRIME
    assert combine({**known, last: missing.to_bytes(SHARE_BYTES, "big")}, threshold) == other


def test_each_share_takes_every_value_equally_often() -> None:
    """With t = 2 the share at x is secret + c * x: a bijection of the uniform coefficient c."""
    secret = bytes(32)
    for x in (1, 7, 1 << 16):
        drawn = [0, 1, 2, PRIME - 1, PRIME // 2]
        shares = [split(secret, 2, [x, x % 5 + 20], randbelow=lambda _, c=c: c)[x] for c in drawn]
        assert len(set(shares)) == len(drawn)
        inverse = pow(x, -1, PRIME)
        assert [int.from_bytes(y, "big") * inverse % PRIME for y in shares] == drawn


def test_coefficients_are_drawn_fresh_from_the_whole_field() -> None:
    asked: list[int] = []

    def randbelow(limit: int) -> int:
        asked.append(limit)
        return secrets.randbelow(limit)

    split(bytes(32), 4, range(1, 6), randbelow=randbelow)
    assert asked == [PRIME] * 3
    one, other = (split(bytes(32), 3, [1, 2, 3]) for _ in range(2))
    assert all(one[x] != other[x] for x in one)


def test_the_zero_secret_and_threshold_one_are_ordinary() -> None:
    assert set(split(bytes(32), 1, [1, 2, 3]).values()) == {bytes(SHARE_BYTES)}
    assert combine({2: b"\0" + b"\xff" * 32}, 1) == b"\xff" * 32


@given(_sharings(), st.data())
def test_a_wrong_share_never_gives_the_right_secret(
    sharing: tuple[bytes, int, list[int]], data: st.DataObject
) -> None:
    secret, threshold, points = sharing
    shares = split(secret, threshold, points)
    chosen = sorted(points)[:threshold]  # those that combine will use
    victim = data.draw(st.sampled_from(chosen))
    flipped = int.from_bytes(shares[victim], "big") ^ (1 << data.draw(st.integers(0, 263)))
    shares[victim] = flipped.to_bytes(SHARE_BYTES, "big")
    with contextlib.suppress(RangeError):  # not a field element, or no 32-byte secret
        assert combine({x: shares[x] for x in chosen}, threshold) != secret


def test_shares_that_meet_above_2_to_the_256_are_refused() -> None:
    too_large = (2**256).to_bytes(SHARE_BYTES, "big")
    with pytest.raises(RangeError, match="do not belong together"):
        combine({1: too_large}, 1)


@pytest.mark.parametrize("share", [PRIME.to_bytes(33, "big"), b"\xff" * 33, bytes(32), bytes(34), b""])
def test_a_share_that_is_not_a_canonical_field_element_is_refused(share: bytes) -> None:
    with pytest.raises(RangeError, match="not a field element"):
        combine({1: share}, 1)


@pytest.mark.parametrize(
    ("secret_bytes", "threshold", "points", "said"),
    [
        *((32, threshold, [1, 2], "threshold") for threshold in (0, -1, 3)),
        *((32, 1, [1, point], "coordinates") for point in (0, -1, (1 << 16) + 1, PRIME, 1)),
        *((size, 1, [1], "32-byte secrets") for size in (31, 33)),
    ],
)
def test_arguments_out_of_range_are_refused(
    secret_bytes: int, threshold: int, points: list[int], said: str
) -> None:
    with pytest.raises(RangeError, match=said):
        split(bytes(secret_bytes), threshold, points)
    if said != "32-byte secrets" and points != [1, 1]:
        with pytest.raises(RangeError, match=f"{said}|threshold"):
            combine({point: bytes(33) for point in points}, threshold)


def test_errors_never_show_a_share_or_a_secret() -> None:
    share = b"\x01" + secrets.token_bytes(32)
    with pytest.raises(RangeError) as caught:
        combine({1: share}, 1)
    text = str(caught.value)
    assert share.hex() not in text
    assert str(int.from_bytes(share, "big")) not in text
    assert shamir.PRIME not in caught.value.args
