"""Lanes on the wire: packed without gaps whatever the width and the chunking, and unpacked unchanged."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secfed.crypto import lanes
from secfed.crypto.lanes import Run, VectorShape, pack_into, unpack_chunk
from secfed.errors import MalformedMessage, RangeError

WIDTHS = [*range(8, 33), 64]
NARROW = [bits for bits in WIDTHS if bits not in (32, 64)]


def _random_lanes(run: Run, seed: int = 1) -> NDArray[Any]:
    """Full words, so that bits above the lane's width are set too."""
    high = np.iinfo(run.dtype).max
    return np.random.default_rng(seed).integers(0, high, run.count, run.dtype, endpoint=True)


def _reference(values: NDArray[Any], bits: int) -> bytes:
    """The definition: bit b of lane k is bit k * bits + b of one little-endian number."""
    number = sum((int(value) & ((1 << bits) - 1)) << (k * bits) for k, value in enumerate(values))
    return number.to_bytes((bits * len(values) + 7) // 8, "little")


def _low_bits(values: NDArray[Any], bits: int) -> NDArray[Any]:
    return values & values.dtype.type((1 << bits) - 1)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("count", [0, 1, 3, 7, 8, 9, 16, 100])
def test_packing_is_the_definition_and_unpacking_its_inverse(bits: int, count: int) -> None:
    run = Run(bits, count)
    values = _random_lanes(run)
    out = bytearray(b"\xff" * run.wire_bytes)
    pack_into(values, run, out)
    assert bytes(out) == _reference(values, bits)
    unpacked = unpack_chunk(bytes(out), run, 0, run.count)
    assert unpacked.dtype == run.dtype
    np.testing.assert_array_equal(unpacked, _low_bits(values, bits))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("pattern", [0, 1, 2**64 - 1])
def test_extreme_lanes_do_not_spill_into_their_neighbours(bits: int, pattern: int) -> None:
    run = Run(bits, 29)
    for position in range(9):
        values = np.zeros(run.count, run.dtype)
        values[position] = pattern & int(np.iinfo(run.dtype).max)
        out = bytearray(run.wire_bytes)
        pack_into(values, run, out)
        assert bytes(out) == _reference(values, bits)
        np.testing.assert_array_equal(unpack_chunk(out, run, 0, run.count), _low_bits(values, bits))


@given(st.sampled_from(WIDTHS), st.integers(0, 300), st.lists(st.integers(0, 37), max_size=6), st.integers())
def test_chunks_make_the_same_bytes_as_the_whole(bits: int, count: int, cuts: list[int], seed: int) -> None:
    run = Run(bits, count)
    values = _random_lanes(run, abs(seed))
    whole, parts = bytearray(run.wire_bytes), bytearray(run.wire_bytes)
    pack_into(values, run, whole)
    starts = sorted({0, *(8 * cut for cut in cuts if 8 * cut < count)})
    chunks = list(zip(starts, [*starts[1:], count], strict=True))
    for start, end in reversed(chunks):  # in any order: a chunk touches its own bytes only
        pack_into(values[start:end], run, parts, start)
    assert parts == whole
    unpacked = [unpack_chunk(whole, run, start, end - start) for start, end in chunks]
    np.testing.assert_array_equal(np.concatenate(unpacked), _low_bits(values, bits))


@pytest.mark.parametrize("bits", [8, 9, 16, 20, 31, 32, 64])
def test_runs_longer_than_a_block_are_packed_block_by_block(bits: int) -> None:
    run = Run(bits, 3 * 8 * lanes._BLOCK_OCTETS + 13)
    values = _random_lanes(run)
    out = bytearray(run.wire_bytes)
    pack_into(values, run, out)
    np.testing.assert_array_equal(unpack_chunk(out, run, 0, run.count), _low_bits(values, bits))
    for k in (0, 8 * lanes._BLOCK_OCTETS - 1, 8 * lanes._BLOCK_OCTETS, run.count - 1):
        lane = int.from_bytes(out, "little") >> (k * bits) & ((1 << bits) - 1)
        assert lane == int(values[k]) & ((1 << bits) - 1)


@pytest.mark.parametrize("bits", WIDTHS)
def test_sums_of_unpacked_lanes_are_sums_modulo_the_ring(bits: int) -> None:
    run = Run(bits, 21)
    summands = [_random_lanes(run, seed) for seed in range(5)]
    total = np.zeros(run.count, run.dtype)
    for values in summands:
        out = bytearray(run.wire_bytes)
        pack_into(values, run, out)
        total += unpack_chunk(out, run, 0, run.count)
    expected = [sum(int(v[k]) for v in summands) % (1 << bits) for k in range(run.count)]
    assert _low_bits(total, bits).tolist() == expected


@pytest.mark.parametrize("bits", WIDTHS)
def test_padding_bits_are_zero_and_anything_else_is_refused(bits: int) -> None:
    for count in range(1, 18):
        run = Run(bits, count)
        out = bytearray(run.wire_bytes)
        pack_into(np.full(count, np.iinfo(run.dtype).max, run.dtype), run, out)
        padding = 8 * run.wire_bytes - bits * count
        assert int.from_bytes(out, "little") == (1 << (bits * count)) - 1
        for bit in range(padding):
            altered = bytearray(out)
            altered[-1] |= 0x80 >> bit
            with pytest.raises(MalformedMessage, match="padding"):
                unpack_chunk(altered, run, 0, run.count)


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_run_of_another_size_is_refused(bits: int) -> None:
    run = Run(bits, 11)
    for size in (0, run.wire_bytes - 1, run.wire_bytes + 1):
        for operation in (
            lambda size=size: unpack_chunk(bytes(size), run, 0, run.count),
            lambda size=size: unpack_chunk(bytes(size), run, 0, 8),
            lambda size=size: pack_into(np.zeros(11, run.dtype), run, bytearray(size)),
        ):
            with pytest.raises(MalformedMessage, match=f"expected {run.wire_bytes}"):
                operation()


@pytest.mark.parametrize("bits", [8, 20, 32, 64])
@pytest.mark.parametrize(
    ("start", "count"), [(4, 8), (-8, 8), (16, 8), (0, 21), (24, 0), (0, 7), (8, 11), (0, -8)]
)
def test_a_chunk_off_the_octets_or_outside_the_run_is_refused(bits: int, start: int, count: int) -> None:
    run = Run(bits, 20)
    with pytest.raises(RangeError):
        unpack_chunk(bytes(run.wire_bytes), run, start, count)
    if count >= 0:
        out = bytearray(run.wire_bytes)
        with pytest.raises(RangeError):
            pack_into(np.ones(count, run.dtype), run, out, start)
        assert not any(out)


@pytest.mark.parametrize("bits", [32, 64])
def test_unpacking_whole_lanes_copies_nothing_and_protects_the_message(bits: int) -> None:
    run = Run(bits, 4)
    message = bytearray(run.wire_bytes)
    view = unpack_chunk(message, run, 0, run.count)
    message[0] = 7
    assert view[0] == 7
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


@pytest.mark.parametrize("bits", [9, 20, 32, 64])
def test_lanes_may_be_strided_and_of_another_integer_type(bits: int) -> None:
    run = Run(bits, 19)
    values = np.arange(38, dtype=np.uint64)[::2] * np.uint64(77)
    out = bytearray(run.wire_bytes)
    pack_into(values, run, out)
    assert bytes(out) == _reference(values, bits)


@pytest.mark.parametrize("bits", [12, 20, 31])
def test_packing_needs_no_second_vector(bits: int) -> None:
    run = Run(bits, 1 << 20)
    values, out = _random_lanes(run), bytearray(run.wire_bytes)
    tracemalloc.start()
    try:
        pack_into(values, run, out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1024 * 1024  # the vector has 4 MiB


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_run_knows_its_size_on_the_wire(bits: int) -> None:
    assert [Run(bits, count).wire_bytes for count in (0, 8, 800)] == [0, bits, 100 * bits]
    assert Run(bits, 1).wire_bytes == -(-bits // 8)
    assert Run(bits, 1).dtype == np.dtype("<u4" if bits <= 32 else "<u8")
    shape = VectorShape(runs=(Run(bits, 3), Run(64, 2)), digest=bytes(32))
    assert shape.wire_bytes == Run(bits, 3).wire_bytes + 16
    assert shape.elements == 5
