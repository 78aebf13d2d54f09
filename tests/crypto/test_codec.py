"""The canonical encoding: one value, one byte string, and no allocation that a length field could ask for."""

from __future__ import annotations

import hashlib
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.crypto.codec import Reader, Writer, digest
from secfed.errors import MalformedMessage

HUGE = (2**32 - 1).to_bytes(4, "big")

# (kind, argument, value): what is written, and what must come back.
_widths = st.integers(1, 8)
_fields = st.one_of(
    _widths.flatmap(lambda w: st.tuples(st.just("uint"), st.just(w), st.integers(0, 256**w - 1))),
    st.binary(max_size=40).map(lambda b: ("fixed", len(b), b)),
    st.binary(max_size=40).map(lambda b: ("blob", 40, b)),
    st.text(max_size=10).map(lambda t: ("text", 40, t)),
    st.lists(st.binary(max_size=8), max_size=5).map(lambda items: ("many", 5, tuple(items))),
)


def _write(writer: Writer, kind: str, argument: int, value: Any) -> None:
    if kind == "many":
        writer.many(value, Writer.blob)
    else:
        getattr(writer, kind)(value, *([argument] if kind in ("uint", "fixed") else []))


def _read(reader: Reader, kind: str, argument: int) -> Any:
    return getattr(reader, kind)(argument, *([lambda r: r.blob(8)] if kind == "many" else []))


@given(st.lists(_fields, max_size=8))
def test_what_is_written_is_read(fields: list[tuple[str, int, Any]]) -> None:
    writer = Writer()
    for kind, argument, value in fields:
        _write(writer, kind, argument, value)
    reader = Reader(writer.done())
    assert [_read(reader, kind, argument) for kind, argument, _ in fields] == [f[2] for f in fields]
    reader.end()


def _decode_sample(data: bytes) -> tuple[int, str, tuple[tuple[bytes, int], ...], bytes]:
    reader = Reader(data)
    value = (
        reader.uint(2),
        reader.text(12),
        reader.many(4, lambda r: (r.blob(6), r.uint(1))),
        reader.fixed(3),
    )
    reader.end()
    return value


def _encode_sample(value: tuple[int, str, tuple[tuple[bytes, int], ...], bytes]) -> bytes:
    number, text, items, tail = value
    writer = Writer().uint(number, 2).text(text)
    return writer.many(items, lambda w, item: w.blob(item[0]).uint(item[1], 1)).fixed(tail, 3).done()


_samples = st.tuples(
    st.integers(0, 65535),
    st.text(max_size=3),
    st.lists(st.tuples(st.binary(max_size=6), st.integers(0, 255)), max_size=4).map(tuple),
    st.binary(min_size=3, max_size=3),
)


@given(_samples, st.data())
def test_accepted_bytes_encode_to_themselves(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(_encode_sample(value))
    for _ in range(data.draw(st.integers(0, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = _decode_sample(bytes(encoded))
    except MalformedMessage:
        return
    assert _encode_sample(decoded) == bytes(encoded)


@given(_samples)
def test_every_proper_prefix_and_every_extension_is_refused(value: Any) -> None:
    encoded = _encode_sample(value)
    for wrong in (*(encoded[:end] for end in range(len(encoded))), encoded + b"\0"):
        with pytest.raises(MalformedMessage):
            _decode_sample(wrong)


@pytest.mark.parametrize("method", ["blob", "view", "text"])
def test_a_length_above_the_cap_is_refused_even_if_the_bytes_are_there(method: str) -> None:
    encoded = Writer().blob(b"x" * 11).done()
    assert bytes(getattr(Reader(encoded), method)(11), *(["utf-8"] if method == "text" else [])) == b"x" * 11
    with pytest.raises(MalformedMessage, match="cap of 10"):
        getattr(Reader(encoded), method)(10)


def test_a_count_above_the_cap_is_refused_before_the_first_item_is_read() -> None:
    def never(_: Reader) -> None:
        pytest.fail("an item was read")

    with pytest.raises(MalformedMessage, match="cap of 3"):
        Reader(HUGE + bytes(100)).many(3, never)


def test_a_declared_length_allocates_nothing() -> None:
    cap = 2**32
    for take in (
        lambda: Reader(HUGE + b"short").blob(cap),
        lambda: Reader(HUGE + b"short").text(cap),
        lambda: Reader(HUGE + b"short").many(cap, lambda r: r.fixed(8)),
        lambda: Reader(b"short").fixed(1 << 30),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(MalformedMessage, match="ends before"):
                take()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 16


@pytest.mark.parametrize(
    "text", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\xe2\x82"], ids=repr
)
def test_text_that_is_not_utf8_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedMessage, match="UTF-8"):
        Reader(Writer().blob(text).done()).text(100)


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.uint(256, 1),
        lambda w: w.uint(-1, 4),
        lambda w: w.fixed(b"abc", 4),
        lambda w: w.text("\ud800"),
    ],
    ids=["too large", "negative", "wrong size", "lone surrogate"],
)
def test_a_value_without_an_encoding_is_refused(write: Any) -> None:
    with pytest.raises(MalformedMessage):
        write(Writer())


def test_integers_are_big_endian_and_lengths_are_32_bit() -> None:
    assert Writer().uint(0x0102, 4).blob(b"ab").text("ü").done().hex() == "0000010200000002616200000002c3bc"
    assert Writer().many([7, 8], lambda w, x: w.uint(x, 1)).done().hex() == "000000020708"


def test_views_do_not_copy() -> None:
    message = bytearray(Writer().blob(b"abc").done() + b"rest")
    reader = Reader(message)
    view, rest = reader.view(3), reader.rest()
    message[4], message[7] = ord("z"), ord("R")
    assert (bytes(view), bytes(rest)) == (b"zbc", b"Rest")
    reader.end()


def test_the_writer_takes_the_bytes_of_a_view_whatever_its_items() -> None:
    view = memoryview(np.arange(3, dtype="<u4"))  # 3 items, 12 bytes
    expected = b"".join(x.to_bytes(4, "little") for x in range(3))
    assert Writer().blob(view).done() == (12).to_bytes(4, "big") + expected
    assert Writer().fixed(view, 12).done() == expected
    assert digest(b"label", view) == digest(b"label", expected)


def test_digest_is_sha256_over_length_prefixed_parts() -> None:
    parts = (b"label", b"", b"ab" * 100)
    independent = hashlib.sha256(b"".join(len(p).to_bytes(8, "big") + p for p in parts)).digest()
    assert digest(*parts) == independent


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_digests_agree_only_for_the_same_parts(one: list[bytes], other: list[bytes]) -> None:
    assert (digest(b"label", *one) == digest(b"label", *other)) == (one == other)
