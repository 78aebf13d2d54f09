"""Masks by several threads: the same bytes as by one, for a site and for the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from secfed.crypto import keystream, lanes
from secfed.crypto.keystream import SEGMENT_BYTES, Keystream, StreamCipher, StreamKey
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


@settings(max_examples=30, phases=[Phase.generate])  # shrinking would take minutes
@given(
    runs=st.lists(
        st.tuples(st.sampled_from([8, 9, 20, 31, 32, 64]), st.integers(1, 1500)), min_size=1, max_size=3
    ),
    signs=st.lists(st.sampled_from([1, -1]), max_size=3),
    cipher=st.sampled_from(StreamCipher),
    number=st.sampled_from([1, 2, 5]),
    chunk=st.sampled_from([8, 104, 1 << 16]),
    piece_bytes=st.sampled_from([64, 1000, 1 << 20]),
)
def test_masked_bytes_are_those_of_whole_streams_however_the_work_is_cut(
    runs: list[tuple[int, int]],
    signs: list[int],
    cipher: StreamCipher,
    number: int,
    chunk: int,
    piece_bytes: int,
) -> None:
    """Segments are 2 KiB here, so that vectors of many of them are short."""
    shape = VectorShape(tuple(Run(bits, count) for bits, count in runs), b"l" * 32)
    context = masks.MaskContext(b"s" * 32, b"b" * 32, shape, cipher)
    streams = [masks.self_mask(bytes([index]) * 32, sign) for index, sign in enumerate(signs)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECFED_THREADS", str(number))
        patch.setattr(keystream, "SEGMENT_BYTES", 2048)
        patch.setattr(masks, "SEGMENT_BYTES", 2048)
        patch.setattr(lanes, "CHUNK_ELEMENTS", chunk)
        patch.setattr(masks.PieceHasher, "PIECE_BYTES", piece_bytes)
        room = memoryview(bytearray(shape.wire_bytes))
        assert masks.write_masked(Counting(), streams, context, room) == masks.vector_digest(room)
    expected, at = b"", 0
    for index, run in enumerate(shape.runs):
        values = np.arange(at, at + run.count).astype(run.dtype)
        for stream in streams:
            words = _whole(stream.key(context, index), values.nbytes, 2048).view(run.dtype)
            values = values + words if stream.sign > 0 else values - words
        bits = np.unpackbits(values.view(np.uint8).reshape(run.count, -1), axis=1, bitorder="little")
        expected += np.packbits(bits[:, : run.bits], bitorder="little").tobytes()
        at += run.count
    assert bytes(room) == expected


def _whole(key: StreamKey, size: int, segment_bytes: int) -> Any:
    """A stream from its cipher alone, as protocol.md says (6.4, 6.6)."""
    if key.cipher is StreamCipher.CHACHA20:
        ciphers = [Cipher(ChaCha20(key.stream_key, bytes(16)), mode=None)]
        segment_bytes = size
    else:
        firsts = [(index << 32 | 2).to_bytes(16, "big") for index in range(-(-size // segment_bytes))]
        ciphers = [Cipher(AES256(key.stream_key), CTR(first)) for first in firsts]
    data = b"".join(cipher.encryptor().update(bytes(segment_bytes)) for cipher in ciphers)
    return np.frombuffer(data[:size], np.uint8)


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
