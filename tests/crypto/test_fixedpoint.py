"""Quantising is exactly floor(x * 2^e + u), unbiased, and the same however it is computed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secfed.crypto.fixedpoint import FixedPoint, Scratch
from secfed.crypto.keystream import RoundingStream
from secfed.errors import RangeError
from tests.crypto.fixedpoint_reference import (
    BOUNDS,
    RANDOM_WORD,
    WIDTH,
    WIDTHS,
    WORST,
    as_signed,
    definition,
    quantised,
    rule_for,
)


@given(BOUNDS, WIDTH, st.integers(1, 300), st.lists(st.tuples(st.floats(-1.2, 1.2), RANDOM_WORD), min_size=1))
def test_quantising_is_the_definition(
    bound: float, bits: int, sites: int, drawn: list[tuple[float, int]]
) -> None:
    rule = rule_for(bound, bits, sites)
    words = np.array([word for _, word in drawn], np.uint32)
    double = np.array([share * bound for share, _ in drawn])
    with np.errstate(over="ignore"):
        single = double.astype(np.float32)
    for values in (double, single[np.isfinite(single)]):
        used = words[: values.size]
        expected = [definition(rule, value, int(word)) for value, word in zip(values, used, strict=True)]
        assert as_signed(rule, quantised(rule, values, used)) == expected


@given(WIDTH, st.floats(width=32, allow_nan=False, allow_infinity=False), RANDOM_WORD)
def test_quantising_any_float_is_the_definition(bits: int, value: float, word: int) -> None:
    """Bound 1: the exponent is never negative enough to lose even the smallest subnormal number."""
    rule = FixedPoint.choose(bound=1.0, bits=bits, sites=3)
    words = np.array([word], np.uint32)
    for dtype in (np.float32, np.float64):
        values = np.array([value], dtype)
        assert as_signed(rule, quantised(rule, values, words)) == [definition(rule, value, word)]


@given(
    BOUNDS,
    WIDTH,
    st.integers(1, 300),
    st.lists(st.floats(-1.5, 1.5, width=32), min_size=1, max_size=20),
    st.integers(0, 2**64),
)
def test_float32_and_float64_give_the_same_integers(
    bound: float, bits: int, sites: int, shares: list[float], seed: int
) -> None:
    rule = rule_for(bound, bits, sites)
    with np.errstate(over="ignore"):
        single = (np.array(shares) * bound).astype(np.float32)
    assume(bool(np.isfinite(single).all()))
    words = np.random.default_rng(seed).integers(0, 2**32, single.size, np.uint32)
    double = single.astype(np.float64)
    np.testing.assert_array_equal(quantised(rule, single, words), quantised(rule, double, words))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_subnormal_numbers_round_like_any_other(dtype: type, bits: int) -> None:
    rule = FixedPoint.choose(bound=1.0, bits=bits, sites=3)
    tiny = float(np.finfo(dtype).smallest_subnormal)
    values = np.array([tiny, tiny, -tiny, -tiny, 0.0, -0.0], dtype)
    words = np.array([0, 2**32 - 1, 0, 1, 2**32 - 1, 2**32 - 1], np.uint32)
    # A negative number above -2^-32 of a step goes down with the one word that is zero.
    assert as_signed(rule, quantised(rule, values, words)) == [0, 0, -1, 0, 0, 0]


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("power", [20, 40, 70, 100, 120])
def test_small_numbers_under_a_large_bound_are_not_lost(bits: int, power: int) -> None:
    """Scaling them down in float32 would make them zero, which a zero word does not round down to -1."""
    rule = FixedPoint.choose(bound=2.0**power, bits=bits, sites=3)
    small = np.array([-1e-45, -1e-38, -1e-20, 1e-45], np.float32)
    for word in (0, 1, 2**32 - 1):
        words = np.full(small.size, word, np.uint32)
        expected = [definition(rule, value, word) for value in small]
        assert as_signed(rule, quantised(rule, small, words)) == expected
        assert as_signed(rule, quantised(rule, small.astype(np.float64), words)) == expected


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("word", WORST)
def test_a_representable_value_is_never_rounded(bits: int, word: int) -> None:
    rule = FixedPoint.choose(bound=1.0, bits=bits, sites=10)
    whole = np.array(sorted({0, 1, -1, 2, rule.limit - 1, 1 - rule.limit, rule.limit // 2}), np.int64)
    whole = whole[np.abs(whole) <= 2.0**rule.exponent]
    values = whole * rule.step
    words = np.full(whole.size, word, np.uint32)
    assert as_signed(rule, quantised(rule, values, words)) == whole.tolist()
    np.testing.assert_array_equal(rule.decode(quantised(rule, values, words)), values)


@given(st.integers(-40, 40), st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20), WIDTH)
def test_a_bound_scaled_by_a_power_of_two_scales_nothing_else(
    power: int, values: list[float], bits: int
) -> None:
    unit, scaled = (FixedPoint.choose(bound=b, bits=bits, sites=7) for b in (1.0, 2.0**power))
    words = np.arange(len(values), dtype=np.uint32) * np.uint32(0x9E3779B1)
    one = quantised(unit, np.array(values), words)
    np.testing.assert_array_equal(one, quantised(scaled, np.array(values) * 2.0**power, words))
    np.testing.assert_array_equal(unit.decode(one) * 2.0**power, scaled.decode(one))


# --- rounding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 16, 20, 32, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fraction", [0.0, 2.0**-10, 0.25, 0.5, 0.75, 1 - 2.0**-10])
@pytest.mark.parametrize("whole", [-5, -1, 0, 1, 4])
def test_rounding_is_unbiased_to_the_last_random_bit(
    bits: int, dtype: type, fraction: float, whole: int
) -> None:
    """Over words spread evenly the mean is the value itself, for negative numbers as for positive ones."""
    rule = FixedPoint.choose(bound=1.0, bits=bits, sites=3)
    words = (np.arange(1024, dtype=np.uint64) << np.uint64(22)).astype(np.uint32)
    target = whole + fraction
    values = np.full(words.size, target * rule.step, dtype)
    rounded = as_signed(rule, quantised(rule, values, words))
    assert set(rounded) <= {whole, whole + 1}
    assert sum(rounded) == target * words.size


def test_the_chance_of_rounding_up_is_the_fraction_in_steps_of_2_to_the_minus_32() -> None:
    rule = FixedPoint.choose(bound=1.0, bits=16, sites=3)
    fraction = 12345678 / 2**32
    for whole in (-3, 0, 3):
        values = np.full(2, (whole + fraction) * rule.step)
        edge = 2**32 - 12345678  # the first word that rounds up
        rounded = as_signed(rule, quantised(rule, values, np.array([edge - 1, edge], np.uint32)))
        assert rounded == [whole, whole + 1]


def test_rounding_with_a_real_stream_is_unbiased() -> None:
    rule = FixedPoint.choose(bound=1.0, bits=16, sites=10)
    count = 1 << 16
    values = np.full(count, -0.37 * rule.step, np.float32)
    out = np.empty(count, np.uint32)
    rule.quantise(values, RoundingStream(bytes(32)).words(count), out)
    mean = sum(as_signed(rule, out)) / count
    assert abs(mean + 0.37) < 6 * math.sqrt(0.37 * 0.63 / count)


# --- clipping and refusals ----------------------------------------------------------------------


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("bound", [1.0, 0.1, 1e-3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_beyond_the_bound_are_clipped_and_counted(bits: int, bound: float, dtype: type) -> None:
    rule = FixedPoint.choose(bound=bound, bits=bits, sites=3)
    huge = float(np.finfo(dtype).max)
    values = np.array([2 * bound, -2 * bound, huge, -huge, bound / 2, 0.0, 0.999 * bound], dtype)
    words, out = np.zeros(values.size, np.uint32), np.empty(values.size, rule.dtype)
    assert rule.quantise(values, words, out) == 4
    signed = as_signed(rule, out)
    assert signed == [definition(rule, value, 0) for value in values]
    assert abs(signed[0]) <= rule.limit
    assert rule.quantise(values[4:], words[4:], out[4:]) == 0


def test_the_bound_itself_is_not_clipped_and_the_next_number_is() -> None:
    for dtype, bound in ((np.float64, 0.1), (np.float32, float(np.float32(0.1)))):
        rule = FixedPoint.choose(bound=bound, bits=32, sites=3)
        above = np.nextafter(dtype(bound), dtype(1))
        values, words, out = (
            np.array([bound, -bound, above, -above], dtype),
            np.zeros(4, np.uint32),
            np.empty(4, np.uint32),
        )
        assert rule.quantise(values, words, out) == 2
        assert as_signed(rule, out)[:2] == as_signed(rule, out)[2:]


def test_a_float32_above_a_bound_that_is_no_float32_is_clipped_to_the_bound() -> None:
    """float32(0.1) exceeds 0.1: comparing in float32 would miss it."""
    rule = FixedPoint.choose(bound=0.1, bits=32, sites=1)
    values, words, out = np.full(1, 0.1, np.float32), np.zeros(1, np.uint32), np.empty(1, np.uint32)
    assert float(values[0]) > rule.bound
    assert rule.quantise(values, words, out) == 1
    assert as_signed(rule, out) == [definition(rule, 0.1, 0)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bits", [16, 64])
def test_nan_and_infinity_are_refused_wherever_they_stand(value: float, dtype: type, bits: int) -> None:
    rule = FixedPoint.choose(bound=1.0, bits=bits, sites=3)
    for position in (0, 40, 99):
        values = np.zeros(100, dtype)
        values[position] = value
        with pytest.raises(RangeError, match="NaN or infinite"):
            quantised(rule, values, np.zeros(100, np.uint32))


def test_arrays_of_different_lengths_are_refused() -> None:
    rule = FixedPoint.choose(bound=1.0, bits=32, sites=3)
    for sizes in ((2, 1, 2), (2, 2, 1), (1, 2, 2)):
        values, words, out = np.zeros(sizes[0]), np.zeros(sizes[1], np.uint32), np.zeros(sizes[2], np.uint32)
        with pytest.raises(RangeError, match="differ in length"):
            rule.quantise(values, words, out)


def test_nothing_to_quantise_is_nothing() -> None:
    rule = FixedPoint.choose(bound=1.0, bits=32, sites=3)
    assert rule.quantise(np.empty(0), np.empty(0, np.uint32), np.empty(0, np.uint32)) == 0
    assert rule.decode(np.empty(0, np.uint32)).size == 0


# --- independence of how it is computed ---------------------------------------------------------


@given(WIDTH, st.lists(st.integers(0, 60), max_size=6), st.booleans(), st.booleans())
def test_the_integers_do_not_depend_on_chunks_or_scratch(
    bits: int, sizes: list[int], single: bool, beyond: bool
) -> None:
    rule = FixedPoint.choose(bound=1.0, bits=bits, sites=5)
    count = sum(sizes)
    values = np.random.default_rng(count).normal(size=count, scale=1.0 if beyond else 0.1)
    values = values.astype(np.float32 if single else np.float64)
    words = np.random.default_rng(1).integers(0, 2**32, count, np.uint32)
    whole = quantised(rule, values, words)
    scratch, out, at = Scratch(), np.empty(count, rule.dtype), 0
    for size in sizes:
        end = at + size
        rule.quantise(values[at:end], words[at:end], out[at:end], scratch)
        at = end
    np.testing.assert_array_equal(out, whole)


def test_inputs_are_left_as_they_were() -> None:
    for bits in (16, 32, 64):
        rule = FixedPoint.choose(bound=1.0, bits=bits, sites=5)
        for dtype in (np.float32, np.float64):
            values, words = np.array([0.3, -5.0, 0.7], dtype), np.array([1, 2, 3], np.uint32)
            for array in (values, words):
                array.flags.writeable = False
            sums = quantised(rule, values, words)
            sums.flags.writeable = False
            before = sums.copy()
            rule.decode(sums)
            np.testing.assert_array_equal(sums, before)
