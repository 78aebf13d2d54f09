"""Closing streams and the tags behind the lanes: sums open exactly, and anything else is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secfed.crypto import lanes
from secfed.crypto.keystream import Keystream, derive
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked import masks
from secfed.crypto.masked.closing import TAGS, Closing, VectorTags, closed_shape
from secfed.errors import InconsistentView, MalformedMessage, RangeError

SHAPE = VectorShape((Run(20, 3001), Run(64, 5), Run(32, 1024), Run(8, 7)), bytes(range(32)))
SITES = ("a", "b", "c", "d")
CLOSING = Closing(b"g" * 32, b"s" * 32, b"a" * 32)
BROADCAST = b"b" * 32
CONTEXT = masks.MaskContext(CLOSING.spec_digest, BROADCAST, closed_shape(SHAPE))


class Source:
    """Integers of one site, within a quarter of what their lanes hold."""

    def __init__(self, seed: int, shape: VectorShape = SHAPE) -> None:
        random = np.random.default_rng(seed)
        self.signed = [
            random.integers(-(1 << (run.bits - 4)), 1 << (run.bits - 4), run.count, np.int64)
            if run.bits < 64
            else random.integers(-(1 << 50), 1 << 50, run.count, np.int64)
            for run in shape.runs
        ]
        self._left = {id(run): run for run in shape.runs}
        self._flat = [values.copy() for values in self.signed]

    def fill(self, run: Run, out: NDArray[Any]) -> None:
        values = self._flat[0]
        out[:] = values[: out.size].astype(np.int64).view(np.uint64).astype(out.dtype)
        self._flat[0] = values[out.size :]
        if not self._flat[0].size:
            self._flat.pop(0)
        assert run.dtype == out.dtype


def upload(site: str, seed: int, closing: Closing = CLOSING) -> memoryview:
    """What a site would upload if there were no masks."""
    out = memoryview(bytearray(closed_shape(SHAPE).wire_bytes))
    masks.write_masked(closing.tagged(Source(seed), SHAPE), [closing.stream(site, 1)], CONTEXT, out)
    return out


def total(*uploads: memoryview) -> bytearray:
    """Their sum on the wire."""
    accumulated = masks.Accumulator(closed_shape(SHAPE))
    for one in uploads:
        accumulated.add(one)
    out, at = bytearray(closed_shape(SHAPE).wire_bytes), 0
    for run, summed in zip(closed_shape(SHAPE).runs, accumulated.reduced(), strict=True):
        lanes.pack_into(summed, run, memoryview(out)[at : at + run.wire_bytes])
        at += run.wire_bytes
    return out


UPLOADS = {site: upload(site, seed) for seed, site in enumerate(SITES)}


@pytest.mark.parametrize("who", [("a",), ("a", "b"), ("b", "d"), SITES])
def test_the_survivors_sum_is_opened_exactly(who: tuple[str, ...]) -> None:
    runs = CLOSING.opened(total(*(UPLOADS[site] for site in who)), who, BROADCAST, SHAPE)
    sources = [Source(SITES.index(site)) for site in who]
    for index, (run, found) in enumerate(zip(SHAPE.runs, runs, strict=True)):
        wanted = sum(source.signed[index] for source in sources).view(np.uint64)  # type: ignore[union-attr]
        mask = np.uint64((1 << run.bits) - 1)
        assert np.array_equal(found.astype(np.uint64), wanted & mask)


def test_tags_are_the_documented_function_of_the_lanes() -> None:
    """Python's integers, column by column, against float64; the largest lanes and both ends of a run."""
    shape = VectorShape((Run(32, 2049), Run(64, 3)), bytes(32))
    for fill in (-(1 << 31), (1 << 31) - 1):
        narrow = np.full(2049, fill, np.int64).astype(np.int32).view(np.uint32)
        wide = np.array([fill, 1, -(1 << 53)], np.int64).view(np.uint64)
        key = b"k" * 32
        tags = VectorTags(Keystream(key))
        tags.add(shape.runs[0], narrow[:1024])
        tags.add(shape.runs[0], narrow[1024:])
        tags.add(shape.runs[1], wide)
        words = bytearray(2 * TAGS * (1024 + 3 + 3))
        Keystream(key).into(bytes(len(words)), words)
        numbers = [int(word) & 2047 for word in np.frombuffer(words, "<u2")]
        columns, rows = numbers[: 1024 * TAGS], numbers[1024 * TAGS :]
        for tag in range(TAGS):
            value = 0
            for row in range(3):
                part = narrow.view(np.int32)[row * 1024 : (row + 1) * 1024].tolist()
                inner = sum(lane * columns[at * TAGS + tag] for at, lane in enumerate(part))
                value += inner * rows[row * TAGS + tag]
            for row, lane in enumerate(wide.view(np.int64).tolist()):
                value += lane * rows[(3 + row) * TAGS + tag]
            assert int(tags.value[tag]) == value % (1 << 64)


@pytest.mark.parametrize("run", range(4))
@pytest.mark.parametrize("by", [1, 0x80])
def test_a_shifted_lane_is_refused(run: int, by: int) -> None:
    closed = total(*UPLOADS.values())
    at = sum(each.wire_bytes for each in SHAPE.runs[:run])
    closed[at] ^= by
    with pytest.raises(InconsistentView, match=r"^refusal 45: "):
        CLOSING.opened(closed, SITES, BROADCAST, SHAPE)


def test_a_shifted_tag_is_refused() -> None:
    for tag in range(TAGS):
        closed = total(*UPLOADS.values())
        closed[-8 * (tag + 1)] ^= 1
        with pytest.raises(InconsistentView, match=r"^refusal 45: "):
            CLOSING.opened(closed, SITES, BROADCAST, SHAPE)


def test_another_survivor_list_is_refused() -> None:
    closed = total(*(UPLOADS[site] for site in SITES[:3]))
    for wrong in (SITES, SITES[:2], ("a", "b", "d"), ("a", "a", "b", "c")):
        with pytest.raises(InconsistentView, match=r"^refusal 45: "):
            CLOSING.opened(closed, wrong, BROADCAST, SHAPE)


@pytest.mark.parametrize("changed", ["group_key", "spec_digest", "adverts_digest"])
def test_a_sum_of_another_key_specification_or_advertised_set_is_refused(changed: str) -> None:
    other = replace(CLOSING, **{changed: b"?" * 32})
    with pytest.raises(InconsistentView, match=r"^refusal 45: "):
        other.opened(total(*UPLOADS.values()), SITES, BROADCAST, SHAPE)


def test_every_site_specification_and_advertised_set_has_a_stream_of_its_own() -> None:
    """One common stream, times an even number of survivors, would show the low bit of every lane."""
    streams = [CLOSING.stream(site, 1) for site in SITES]
    streams.append(replace(CLOSING, spec_digest=b"?" * 32).stream("a", 1))
    streams.append(replace(CLOSING, adverts_digest=b"?" * 32).stream("a", 1))
    for one, other in combinations(streams, 2):
        assert one.secret != other.secret
    secrets = [one.tags()._columns for one in (CLOSING, replace(CLOSING, spec_digest=b"?" * 32))]
    secrets.append(replace(CLOSING, adverts_digest=b"?" * 32).tags()._columns)
    assert all(not np.array_equal(one, other) for one, other in combinations(secrets, 2))
    low = np.frombuffer(total(UPLOADS["a"], UPLOADS["b"]), np.uint8, 2500) & 1
    assert 0.4 < low.mean() < 0.6


def test_malformed_sums_are_refused() -> None:
    closed = total(*UPLOADS.values())
    for wrong in (closed[:-1], closed + b"\0", b""):
        with pytest.raises(MalformedMessage):
            CLOSING.opened(wrong, SITES, BROADCAST, SHAPE)


def test_altered_sums_are_refused_and_nothing_else_happens() -> None:
    """Also where a message holds them: whatever the bytes are, there is an answer."""
    draw, closed = random.Random(1), bytes(total(*UPLOADS.values()))
    for _ in range(150):
        data, at = bytearray(closed), draw.randrange(len(closed))
        kind, size = draw.choice(("flip", "noise", "cut", "grow")), draw.choice((1, 8, 700))
        if kind == "flip":
            data[at] ^= 1 << draw.randrange(8)
        elif kind == "noise":
            data[at : at + size] = draw.randbytes(len(data[at : at + size]))
        elif kind == "cut":
            del data[at : at + size]
        else:
            data[at:at] = draw.randbytes(size)
        if data != closed:
            with pytest.raises((InconsistentView, MalformedMessage)):
                CLOSING.opened(data, SITES, BROADCAST, SHAPE)


def test_a_chunk_that_ends_inside_a_row_is_refused() -> None:
    tags = VectorTags(Keystream(derive(b"k" * 32, b"test")))
    with pytest.raises(RangeError):
        tags.add(Run(32, 5000), np.zeros(1000, np.uint32))
