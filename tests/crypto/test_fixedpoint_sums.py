"""Headroom and sums: the exponent leaves room for every site; no sum wraps, and each decodes exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.crypto.fixedpoint import FixedPoint
from secfed.crypto.keystream import RoundingStream
from secfed.errors import RangeError
from tests.crypto.fixedpoint_reference import (
    BOUNDS,
    WIDTH,
    WIDTHS,
    as_signed,
    quantised,
    rule_for,
    sum_in_ring,
)


@given(BOUNDS, WIDTH, st.integers(1, 1000))
def test_the_exponent_is_the_largest_with_headroom_for_every_site(
    bound: float, bits: int, sites: int
) -> None:
    rule = rule_for(bound, bits, sites)
    reach = min((1 << (bits - 1)) - 1, 1 << 53)

    def largest(exponent: int) -> int:
        """What one site can reach: floor(y + u) is at most ceil(y)."""
        return math.ceil(Fraction(bound) * Fraction(2) ** exponent)

    assert sites * largest(rule.exponent) <= reach < sites * largest(rule.exponent + 1)
    assert rule.limit == largest(rule.exponent)
    assert rule.step == 2.0**-rule.exponent


@pytest.mark.parametrize(("bits", "sites", "limit"), [(8, 15, 8), (32, 31, 1 << 26), (64, 1, 1 << 53)])
def test_headroom_is_used_to_the_last_integer(bits: int, sites: int, limit: int) -> None:
    rule = FixedPoint.choose(bound=1.0, bits=bits, sites=sites)
    assert (rule.limit, rule.step) == (limit, 1 / limit)


@pytest.mark.parametrize("bits", [-1, 0, 7, 33, 63, 65, 128])
def test_an_unsupported_width_is_refused(bits: int) -> None:
    with pytest.raises(RangeError, match=f"bits = {bits}.*8 to 32, or 64"):
        FixedPoint.choose(bound=1.0, bits=bits, sites=3)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_a_bound_that_is_not_positive_and_finite_is_refused(bound: float) -> None:
    with pytest.raises(RangeError, match="positive finite"):
        FixedPoint.choose(bound=bound, bits=32, sites=3)


@pytest.mark.parametrize("bound", [5e-324, 1e-300, 1e300, 1.7e308])
@pytest.mark.parametrize("bits", [8, 32, 64])
def test_a_bound_at_the_edge_of_float64_is_refused(bound: float, bits: int) -> None:
    with pytest.raises(RangeError, match="too small or too large") as caught:
        FixedPoint.choose(bound=bound, bits=bits, sites=3)
    assert caught.value.remedy == ("raise the bound" if bound < 1 else "lower the bound")


@pytest.mark.parametrize("sites", [0, -1])
def test_headroom_for_nobody_is_refused(sites: int) -> None:
    with pytest.raises(RangeError, match="at least one site"):
        FixedPoint.choose(bound=1.0, bits=32, sites=sites)


@pytest.mark.parametrize(("bits", "most"), [(8, 63), (9, 127), (10, 255)])
def test_bits_without_headroom_are_refused(bits: int, most: int) -> None:
    FixedPoint.choose(bound=1.0, bits=bits, sites=most)
    with pytest.raises(RangeError, match=rf"{bits} bits leave no headroom for {most + 1} sites.*raise"):
        FixedPoint.choose(bound=1.0, bits=bits, sites=most + 1)


@given(BOUNDS, WIDTH, st.integers(1, 300))
def test_a_sum_at_the_extremes_never_wraps_and_decodes_exactly(bound: float, bits: int, sites: int) -> None:
    rule = rule_for(bound, bits, sites)
    values = np.array([bound, -bound, 1e3 * bound, -1e3 * bound])
    for word in (0, 2**32 - 1):
        words = np.full(values.size, word, np.uint32)
        one = quantised(rule, values, words)
        decoded = rule.decode(sum_in_ring(rule, [one] * sites))
        exact = [sites * value * Fraction(2) ** -rule.exponent for value in as_signed(rule, one)]
        assert [Fraction(value) for value in decoded.tolist()] == exact


@given(
    WIDTH,
    st.integers(1, 30),
    st.integers(0, 30),
    st.sampled_from([1.0, 0.37, 2.0**-8, 1000.0]),
    st.integers(0, 2**32),
)
def test_a_sum_is_within_one_step_per_site_of_the_true_sum(
    bits: int, survivors: int, dropped: int, bound: float, seed: int
) -> None:
    rule = rule_for(bound, bits, survivors + dropped)
    rng = np.random.default_rng(seed)
    values = rng.uniform(-bound, bound, (survivors, 20))
    summands = [quantised(rule, row, rng.integers(0, 2**32, 20, np.uint32)) for row in values]
    decoded = rule.decode(sum_in_ring(rule, summands))
    for column in range(20):
        exact = sum(Fraction(x) for x in values[:, column].tolist())
        assert abs(Fraction(float(decoded[column])) - exact) < survivors * Fraction(rule.step)


@pytest.mark.parametrize("sites", [1, 3, 10, 1000])
def test_64_bit_sums_stay_within_the_integers_of_float64(sites: int) -> None:
    rule = FixedPoint.choose(bound=1.0, bits=64, sites=sites)
    assert sites * rule.limit <= 2**53
    out = quantised(rule, np.array([1.0, -1.0]), np.zeros(2, np.uint32))
    assert rule.decode(out * np.uint64(sites)).tolist() == [sites, -sites]


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("sites", [1, 3, 10])
def test_a_sum_beyond_the_reach_of_the_roster_is_refused(bits: int, sites: int) -> None:
    rule = FixedPoint.choose(bound=0.7, bits=bits, sites=sites)
    reach, ring = sites * rule.limit, 1 << bits
    assert reach < ring // 2
    edges = np.array([reach, (-reach) % ring], rule.dtype)
    np.testing.assert_array_equal(rule.decode(edges), np.array([reach, -reach]) * rule.step)
    for beyond in (reach + 1, (-reach - 1) % ring, ring // 2):
        with pytest.raises(RangeError, match=f"exceeds what its {sites} sites can contribute"):
            rule.decode(np.array([0, beyond], rule.dtype))


@pytest.mark.parametrize("bits", range(8, 32))
def test_only_the_low_bits_of_a_narrow_lane_are_decoded(bits: int) -> None:
    rule = FixedPoint.choose(bound=1.0, bits=bits, sites=3)
    values = np.array([0.5, -0.5, 0.0, 1.0, -1.0])
    ring = quantised(rule, values, np.zeros(5, np.uint32))
    low = ring & np.uint32((1 << bits) - 1)
    noise = np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)
    for lanes in (low, low | noise, low ^ (noise & np.uint32(0xA5A5A5A5))):
        np.testing.assert_array_equal(rule.decode(lanes), rule.decode(ring))


def test_masked_noise_is_not_mistaken_for_a_sum() -> None:
    """What remains of a sum whose masks did not cancel is uniform; a thousand lanes betray it."""
    rule = FixedPoint.choose(bound=1.0, bits=32, sites=10)
    with pytest.raises(RangeError, match="not unmasked correctly"):
        rule.decode(RoundingStream(bytes(32)).words(1000))
