"""Masks by several threads: the same bytes as by one, for a site and for the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secfed.crypto.keystream import SEGMENT_BYTES, Keystream, StreamCipher
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked import masks, threads


class Counting:
    """0, 1, 2, ..."""

    def __init__(self) -> None:
        self._at = 0

    def fill(self, run: Run, out: Any) -> None:
        out[:] = np.arange(self._at, self._at + out.size)
        self._at += out.size


@pytest.mark.parametrize(("bits", "cipher"), [(32, StreamCipher.CHACHA20), (20, StreamCipher.AES_256_CTR)])
def test_threads_change_nothing(bits: int, cipher: StreamCipher, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3 * masks.part_lanes(Run(bits, 1)) + 777
    shape = VectorShape((Run(bits, count), Run(64, 3)), b"l" * 32)
    context = masks.MaskContext(b"s" * 32, b"b" * 32, shape, cipher)
    streams = [masks.self_mask(bytes([index]) * 32, 1 if index % 2 else -1) for index in range(5)]
    undone = [masks.MaskStream(stream.secret, stream.label, -stream.sign) for stream in streams]
    found = []
    for number in (1, 3, 8):
        monkeypatch.setenv("SECFED_THREADS", str(number))
        room = memoryview(bytearray(context.shape.wire_bytes))
        digest = masks.write_masked(Counting(), streams, context, room)
        total = masks.Accumulator(context.shape)
        total.add(room)
        total.apply(undone, context)
        long, short = total.reduced()
        np.testing.assert_array_equal(long, np.arange(count) % (1 << bits))
        np.testing.assert_array_equal(short, np.arange(count, count + 3))
        found.append((digest, bytes(room)))
    assert found == found[:1] * 3


def test_every_part_is_under_its_own_segment_of_every_stream() -> None:
    run = Run(64, 2 * SEGMENT_BYTES // 8 + 5)
    context = masks.MaskContext(b"s" * 32, b"b" * 32, VectorShape((run,), b"l" * 32))
    streams = [masks.self_mask(b"1" * 32, 1), masks.self_mask(b"2" * 32, -1)]
    total = masks.Accumulator(context.shape)
    total.apply(streams, context)
    one, other = (_words(stream.key(context, 0).segment(0), run.count) for stream in streams)
    np.testing.assert_array_equal(total.runs[0], one - other)


def _words(stream: Keystream, count: int) -> Any:
    """Of a whole stream of ChaCha20, read at once."""
    words = np.zeros(count, np.uint64)
    stream.into(bytes(8 * count), memoryview(words).cast("B"))
    return words


@pytest.mark.parametrize(("asked", "number"), [("3", 3), ("0", None), ("many", None), ("", None)])
def test_the_number_of_threads_can_be_set(
    asked: str, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECFED_THREADS", asked)
    assert threads.processors() == number or (number is None and threads.processors() >= 1)
