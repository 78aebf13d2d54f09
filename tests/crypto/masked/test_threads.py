"""Masks by several threads: the same bytes as by one, for a site and for the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked import masks


class Counting:
    """0, 1, 2, ..."""

    def __init__(self) -> None:
        self._at = 0

    def fill(self, run: Run, out: Any) -> None:
        out[:] = np.arange(self._at, self._at + out.size)
        self._at += out.size


@pytest.mark.parametrize("bits", [32, 20])
def test_threads_change_nothing(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 4 * masks._CHUNK_ELEMENTS + 777
    context = masks.MaskContext(b"s" * 32, b"b" * 32, VectorShape((Run(bits, count), Run(64, 3)), b"l" * 32))
    streams = [masks.self_mask(bytes([index]) * 32, 1 if index % 2 else -1) for index in range(5)]
    undone = [masks.MaskStream(stream.secret, stream.label, -stream.sign) for stream in streams]
    found = []
    for threads in (1, 3, 8):
        monkeypatch.setenv("SECFED_THREADS", str(threads))
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


@pytest.mark.parametrize(("asked", "number"), [("3", 3), ("0", None), ("many", None), ("", None)])
def test_the_number_of_threads_can_be_set(
    asked: str, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECFED_THREADS", asked)
    assert masks.processors() == number or (number is None and masks.processors() >= 1)
