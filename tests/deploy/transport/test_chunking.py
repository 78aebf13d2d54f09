"""Frames in parts: nothing is put together that is not exactly what was announced. Pauses and allowances."""

from __future__ import annotations

import pytest

from secfed.deploy.transport.chunking import ChunkedFrame, Reassembly, wrap_all
from secfed.deploy.transport.limits import Allowance, Backoff
from secfed.deploy.transport.messages import PART_BYTES, Header, Part
from secfed.errors import MalformedMessage

ID = bytes(16)
BIG = bytes(range(256)) * (PART_BYTES // 256) + b"tail"  # one full part and four bytes


def assembled(parts: list[bytes], cap: int = len(BIG)) -> bytes:
    header = Part.decode(parts[0]).header
    assembly = Reassembly(header, cap)
    for part in parts[1:]:
        assembly.add(part)
    return bytes(assembly.finish())


@pytest.mark.parametrize("frame", [b"", b"x", bytes(PART_BYTES), BIG])
def test_a_frame_comes_out_as_it_went_in(frame):
    parts = list(ChunkedFrame.wrap("study", ID, frame).parts())
    assert len(parts) == 1 + -(-len(frame) // PART_BYTES)
    assert assembled(parts) == frame


def test_a_frame_above_the_cap_is_refused_at_its_header():
    with pytest.raises(MalformedMessage, match="cap of 100"):
        Reassembly(Header("study", ID, 101, bytes(32)), 100)
    with pytest.raises(MalformedMessage):
        Reassembly(Header("study", ID, (1 << 64) - 1, bytes(32)), 100)


def test_missing_additional_short_reordered_and_altered_parts_are_refused():
    header, full, tail = ChunkedFrame.wrap("study", ID, BIG).parts()
    altered = bytearray(full)
    altered[-1] ^= 1
    short = [Part(data=BIG[at : at + PART_BYTES // 2]).encode() for at in range(0, len(BIG), PART_BYTES // 2)]
    for parts in (
        [header, full],
        [header, full, tail, tail],
        [header, tail, full],
        [header, header],
        [header, bytes(altered), tail],
        [header, *short],
    ):
        with pytest.raises(MalformedMessage):
            assembled(parts)


def test_full_parts_in_another_order_or_twice_are_refused():
    """They fit by their lengths: what finds them is the announced SHA-256."""
    frame = bytes(PART_BYTES) + b"\x01" * PART_BYTES
    header, first, second = ChunkedFrame.wrap("study", ID, frame).parts()
    assert assembled([header, first, second], len(frame)) == frame
    for parts in ([second, first], [first, first], [second, second]):
        with pytest.raises(MalformedMessage, match="SHA-256"):
            assembled([header, *parts], len(frame))


def test_one_broadcast_is_held_once_for_all_sites():
    parcels = wrap_all("study", ID, dict.fromkeys(("a", "b", "c"), BIG))
    assert parcels["a"] is parcels["b"] is parcels["c"]
    assert parcels["a"].frame.obj is BIG
    others = wrap_all("study", ID, {"a": b"1", "b": b"2"})
    assert others["a"].header.sha256 != others["b"].header.sha256


def test_pauses_grow_to_their_cap_and_are_drawn_from_zero_on():
    class Top:
        def uniform(self, low, high):
            assert low == 0.0
            return high

    backoff = Backoff(0.5, 60.0, _random=Top())
    assert [backoff.next_s() for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    backoff.failures = 10_000
    assert backoff.next_s() == 60.0
    backoff.failures = 0
    assert backoff.next_s() == 0.5
    assert len({Backoff(1.0, 1.0).next_s() for _ in range(20)}) == 20


def test_idle_calls_are_limited_and_useful_calls_are_not():
    allowance = Allowance(burst=3, per_s=2.0)
    assert [allowance.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.take(10.5)
    assert not allowance.take(10.5)
    assert [allowance.take(100.0) for _ in range(4)] == [True, True, True, False]  # never more than a burst
    for _ in range(100):
        allowance.give_back()
        assert allowance.take(100.0)
    assert not allowance.take(100.0)
