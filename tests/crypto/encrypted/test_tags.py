"""Tags of ciphertext words: exact arithmetic, linear over uploads, bound to key, specification and site."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tenseal")

from secfed.crypto import labels
from secfed.crypto.encrypted import tags as encrypted_tags
from secfed.crypto.encrypted.bfv import HE_STANDARD, KeyMode, Scheme, ntt_prime
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.server import SUM, UPLOAD, FrameFormat
from secfed.crypto.encrypted.tags import (
    NONCE_BYTES,
    TAGS,
    UPLOAD_TAG_BYTES,
    Tag,
    TagKey,
    add_tags,
    decode_tag,
    encode_tag,
)
from secfed.crypto.keystream import Keystream, derive
from secfed.crypto.lanes import Run
from secfed.errors import MalformedMessage
from tests.crypto.encrypted_case import added, keys_of, small, upload

SPEC = bytes(range(32))
MODULUS = ntt_prime(4096, 49)
KEY = TagKey(b"secret" * 8, SPEC, MODULUS)


def _vectors(key: TagKey, index: int, count: int) -> list[list[int]]:
    """k_1 ... k_4 as docs/protocol.md writes them, in Python's integers."""
    stream_key = derive(key.secret_key, labels.DERIVE_TAG_VECTORS, key.spec_digest, index.to_bytes(4, "big"))
    data = bytearray(4 * TAGS * count)
    Keystream(stream_key).into(bytes(len(data)), data)
    numbers = np.frombuffer(data, "<u4").tolist()
    return [numbers[j * count : (j + 1) * count] for j in range(TAGS)]


def _slow(key: TagKey, words: list[int], index: int) -> Tag:
    vectors = _vectors(key, index, len(words))
    return tuple(sum(w * k for w, k in zip(words, each, strict=True)) % key.modulus for each in vectors)


@pytest.mark.parametrize("bits", [30, 36, 49, 60])
@pytest.mark.parametrize("largest", [False, True])
def test_products_are_exact_for_the_largest_ring_and_the_largest_words(bits: int, largest: bool) -> None:
    size = max(HE_STANDARD)
    key = TagKey(bytes(32), SPEC, ntt_prime(size, bits))
    generator = np.random.default_rng(bits)
    words = generator.integers(0, key.modulus, (2, 2, size), dtype=np.uint64)
    if largest:
        words[:] = key.modulus - 1
    assert key.products(words, 3) == _slow(key, words.reshape(-1).tolist(), 3)


def test_no_row_of_the_largest_ring_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every number of every vector at its largest, too."""
    size = max(HE_STANDARD)
    key = TagKey(bytes(32), SPEC, ntt_prime(size, 60))
    monkeypatch.setattr(
        encrypted_tags.Workspace,
        "words",
        lambda _self, _stream, count, dtype: np.full(count, np.iinfo(dtype).max, dtype),
    )
    words = np.full((1, 2, size), (1 << 60) - 1, np.uint64)
    expected = 2 * size * ((1 << 60) - 1) * ((1 << 32) - 1) % key.modulus
    assert key.products(words, 0) == (expected,) * TAGS


def test_everything_that_a_tag_is_bound_to_changes_it() -> None:
    words = np.arange(2 * 64, dtype=np.uint64).reshape(1, 2, 64)
    tags = [
        KEY.products(words, 0),
        KEY.products(words, 1),
        replace(KEY, spec_digest=bytes(32)).products(words, 0),
        replace(KEY, secret_key=bytes(32)).products(words, 0),
        KEY.pads("a", bytes(NONCE_BYTES)),
        KEY.pads("b", bytes(NONCE_BYTES)),
        KEY.pads("a", bytes(NONCE_BYTES - 1) + b"\1"),
        replace(KEY, spec_digest=bytes(32)).pads("a", bytes(NONCE_BYTES)),
        replace(KEY, secret_key=bytes(32)).pads("a", bytes(NONCE_BYTES)),
    ]
    numbers = [number for tag in tags for number in tag]
    assert len(set(numbers)) == len(numbers)


def test_nobody_but_a_holder_of_the_key_is_shown_it() -> None:
    assert "secret" not in repr(KEY)


def test_the_same_upload_has_another_nonce_each_time() -> None:
    """A site that repeats its randomness after a crash encrypts anew: never two vectors under one pad."""
    products = [(1, 2, 3, 4)]
    one, other = KEY.upload_tag("a", products), KEY.upload_tag("a", products)
    assert one[:NONCE_BYTES] != other[:NONCE_BYTES]
    assert one[NONCE_BYTES:] != other[NONCE_BYTES:]
    assert len(one) == UPLOAD_TAG_BYTES


def test_encoded_tags_are_four_reduced_numbers() -> None:
    tag = (0, 1, MODULUS - 1, 7)
    assert decode_tag(encode_tag(tag), MODULUS) == tag
    with pytest.raises(MalformedMessage, match="reduced"):
        decode_tag(encode_tag((0, 0, MODULUS, 0)), MODULUS)
    for data in (encode_tag(tag)[:-1], encode_tag(tag) + b"\0"):
        with pytest.raises(MalformedMessage):
            decode_tag(data, MODULUS)
    assert add_tags(MODULUS, tag, (1, 1, 1, 1)) == (1, 2, 0, 8)


RUNS = (Run(20, 300), Run(64, 2))


@pytest.mark.parametrize(
    ("key_mode", "scheme"), [("public", "bfv"), ("symmetric", "bfv"), ("public", "ckks")]
)
def test_the_sum_of_the_tags_is_the_tag_of_the_sum(key_mode: KeyMode, scheme: Scheme) -> None:
    """Coefficients or transformed values, both polynomials sent or one expanded from a seed."""
    parameters, cipher = small(RUNS, 3, key_mode, scheme)
    vectors = {}
    for site in ("a", "b", "c"):
        frames = upload(cipher, parameters, [[3] * 300, [5] * 2])
        vectors[site] = frames + _tag(cipher, parameters, site, frames)
    fields = added(parameters, vectors)
    key = TagKey(keys_of(parameters.ring).secret_key, SPEC, parameters.ring.modulus)
    form = FrameFormat(parameters, SUM)
    words = [form.words(frame, index)[0] for index, frame in enumerate(form.split(fields["ciphertext"]))]
    assert {each.shape[1] for each in words} == {2}
    nonces = [fields["nonces"][at : at + NONCE_BYTES] for at in range(0, 3 * NONCE_BYTES, NONCE_BYTES)]

    def holds(uploads: list[tuple[str, bytes]], words: list[np.ndarray]) -> bool:
        products: Iterator[Tag] = (key.products(each, index) for index, each in enumerate(words))
        return key.is_sum(fields["tag"], uploads, products)

    uploads = list(zip(vectors, nonces, strict=True))
    assert holds(uploads, words)
    assert not holds(uploads[:2], words)
    assert not holds([*uploads, ("d", bytes(NONCE_BYTES))], words)
    assert not holds([("a", nonces[1]), ("b", nonces[0]), uploads[2]], words)
    for polynomial in (0, 1):  # the second one, too, that a seed stood for
        changed = [each.copy() for each in words]
        changed[-1][-1, polynomial, -1] ^= np.uint64(1)
        assert not holds(uploads, changed)


def _tag(cipher: SiteCipher, parameters: object, site: str, frames: bytes) -> bytes:
    form = FrameFormat(parameters, UPLOAD)  # type: ignore[arg-type]
    return cipher.tag(form.parameters, SPEC, site, form.split(frames))


def test_worker_processes_make_the_same_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted_tags, "new_nonce", lambda: bytes(NONCE_BYTES))
    for key_mode in ("public", "symmetric"):
        parameters, cipher = small((Run(20, 200_000),), 3, key_mode)  # type: ignore[arg-type]
        assert parameters.frames > 1
        frames = upload(cipher, parameters, [[1] * 200_000])
        with SiteCipher(keys_of(parameters.ring), processes=1) as workers:
            assert _tag(workers, parameters, "a", frames) == _tag(cipher, parameters, "a", frames)
