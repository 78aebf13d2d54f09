"""Derivation and streams: the published primitives, and streams that do not depend on how they are read."""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from secfed.crypto.keystream import (
    KEY_BYTES,
    SEGMENT_BYTES,
    Keystream,
    RoundingStream,
    StreamCipher,
    StreamKey,
    Workspace,
    derive,
    rounding_stream_for_simulation,
)

PUBLISHED = Path(__file__).parents[1] / "vectors" / "published"
KEY = bytes(range(KEY_BYTES))
BLOCK_BYTES = 64  # of ChaCha20


def _published(name: str) -> Any:
    return json.loads((PUBLISHED / name).read_text())["vectors"]


def _hkdf(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    """RFC 5869 from its two equations, with HMAC alone."""
    extracted = hmac.digest(salt or bytes(32), secret, "sha256")
    out, block = b"", b""
    for counter in range(1, -(-size // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([counter]), "sha256")
        out += block
    return out[:size]


def _read(stream: Keystream, size: int) -> bytes:
    out = bytearray(size)
    stream.into(bytes(size), out)
    return bytes(out)


def test_published_hkdf_vectors_of_rfc_5869() -> None:
    for vector in _published("rfc5869_hkdf_sha256.json"):
        ikm, salt, info = (bytes.fromhex(vector[name]) for name in ("ikm", "salt", "info"))
        size = vector["length"]
        assert hmac.digest(salt or bytes(32), ikm, "sha256").hex() == vector["prk"]
        assert _hkdf(ikm, salt, info, size).hex() == vector["okm"]
        assert HKDF(SHA256(), size, salt=salt, info=info).derive(ikm).hex() == vector["okm"]


@given(
    st.binary(max_size=64),
    st.binary(max_size=20),
    st.lists(st.binary(max_size=20), max_size=4),
    st.integers(1, 200),
)
def test_derive_is_hkdf_over_length_prefixed_label_and_context(
    secret: bytes, label: bytes, context: list[bytes], size: int
) -> None:
    info = b"".join(len(part).to_bytes(4, "big") + part for part in (label, *context))
    assert derive(secret, label, *context, size_bytes=size) == _hkdf(secret, b"", info, size)


def test_every_input_of_a_derivation_matters() -> None:
    derived = [
        derive(KEY, b"label", b"ab", b"c"),
        derive(KEY[::-1], b"label", b"ab", b"c"),
        derive(KEY, b"labels", b"ab", b"c"),
        derive(KEY, b"label", b"a", b"bc"),
        derive(KEY, b"label", b"c", b"ab"),
        derive(KEY, b"label", b"ab", b"c", b""),
        derive(KEY, b"label"),
        derive(KEY, b"labela", b"b", b"c"),
    ]
    assert len(set(derived)) == len(derived)
    assert {len(key) for key in derived} == {KEY_BYTES}


def test_published_chacha20_vectors_of_rfc_8439() -> None:
    for vector in _published("rfc8439_chacha20.json"):
        start = BLOCK_BYTES * vector["counter"]
        stream = _read(Keystream(bytes.fromhex(vector["key"])), start + BLOCK_BYTES)
        assert stream[start:].hex() == vector["keystream"], vector["name"]


def test_a_segment_of_chacha20_continues_the_one_before() -> None:
    whole = _read(Keystream(KEY), 2 * SEGMENT_BYTES + BLOCK_BYTES)
    key = StreamKey(KEY)
    for index in (2, 0, 1):
        at = index * SEGMENT_BYTES
        assert _read(key.segment(index), BLOCK_BYTES) == whole[at : at + BLOCK_BYTES]
    with pytest.raises(OverflowError):
        key.segment(2**38 // SEGMENT_BYTES)


@pytest.mark.parametrize("index", [0, 1, 2**18, 2**32 + 1])
def test_a_segment_of_aes_is_counter_mode_from_its_number_and_two(index: int) -> None:
    """Against plain counter mode, with a counter of 128 bits."""
    first_block = (index << 32 | 2).to_bytes(16, "big")
    plain = Cipher(AES256(KEY), CTR(first_block)).encryptor().update(bytes(1000))
    assert _read(StreamKey(KEY, StreamCipher.AES_256_CTR).segment(index), 1000) == plain


def test_published_aes_256_vector_of_gcm() -> None:
    """McGrew, Viega, "The Galois/Counter Mode of Operation", test case 14: zero key, nonce and plaintext."""
    stream = StreamKey(bytes(KEY_BYTES), StreamCipher.AES_256_CTR).segment(0)
    assert _read(stream, 16).hex() == "cea7403d4d606b6e074ec5d3baf39d18"


@given(st.lists(st.integers(0, 300), max_size=8))
def test_a_stream_continues_across_chunk_boundaries(sizes: list[int]) -> None:
    whole = _read(Keystream(KEY), sum(sizes))
    stream = Keystream(KEY)
    assert b"".join(_read(stream, size) for size in sizes) == whole


@pytest.mark.parametrize("itemsize", [4, 8])
@given(counts=st.lists(st.integers(0, 40), max_size=6))
def test_a_workspace_reads_the_stream_as_little_endian_words(itemsize: int, counts: list[int]) -> None:
    dtype = np.dtype(f"<u{itemsize}")
    whole = _read(Keystream(KEY), itemsize * sum(counts))
    expected = [int.from_bytes(whole[at : at + itemsize], "little") for at in range(0, len(whole), itemsize)]
    stream, workspace = Keystream(KEY), Workspace(40 * itemsize)
    read: list[int] = []
    for count in counts:
        words = workspace.words(stream, count, dtype)
        assert (words.shape, words.dtype) == ((count,), dtype)
        read += words.tolist()
    assert read == expected


def test_one_workspace_serves_many_streams() -> None:
    """The zero bytes that are encrypted must stay zero, whatever the room was used for before."""
    workspace, dtype = Workspace(64), np.dtype("<u4")
    streams = [Keystream(KEY), Keystream(KEY[::-1])]
    read = [[workspace.words(stream, 16, dtype).copy() for stream in streams] for _ in range(2)]
    for index, key in enumerate((KEY, KEY[::-1])):
        expected = np.frombuffer(_read(Keystream(key), 128), dtype)
        np.testing.assert_array_equal(np.concatenate([read[0][index], read[1][index]]), expected)


@given(st.lists(st.integers(0, 100), max_size=6))
def test_rounding_words_do_not_depend_on_how_many_are_asked_for(counts: list[int]) -> None:
    expected = np.frombuffer(_read(Keystream(KEY), 4 * sum(counts)), "<u4")
    stream = RoundingStream(KEY)
    words = [stream.words(count).copy() for count in counts]
    assert [part.size for part in words] == counts
    np.testing.assert_array_equal(np.concatenate([np.empty(0, np.uint32), *words]), expected)


def test_fresh_rounding_streams_differ() -> None:
    assert RoundingStream().words(4).tolist() != RoundingStream().words(4).tolist()


def test_a_simulated_rounding_stream_is_a_function_of_seed_and_context() -> None:
    streams = {
        (seed, context): tuple(rounding_stream_for_simulation(seed, *context).words(4).tolist())
        for seed in (0, 1, -1, 2**40)
        for context in ((), ("a",), ("b",), ("a", "b"), ("ab",))
    }
    assert len(set(streams.values())) == len(streams)
    for (seed, context), words in streams.items():
        assert tuple(rounding_stream_for_simulation(seed, *context).words(4).tolist()) == words


@pytest.mark.parametrize("size", [0, 16, 31, 33])
@pytest.mark.parametrize("cipher", StreamCipher)
def test_a_stream_key_of_the_wrong_size_is_refused(size: int, cipher: StreamCipher) -> None:
    with pytest.raises(ValueError, match=r"[Kk]ey"):
        StreamKey(bytes(size), cipher).segment(0)
