"""Envelopes: opened by the right key, for the right purpose, unaltered, or not at all.

HPKE is recomputed here from RFC 9180 (key schedule) and the X-Wing combiner, so that the library is
checked against published vectors although it takes neither associated data nor encapsulation randomness.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st

from secfed.crypto import sealing
from secfed.crypto.sealing import MLKEM_PUBLIC_BYTES, OVERHEAD_BYTES, PUBLIC_BYTES, SealKey, seal
from secfed.errors import MalformedMessage

PUBLISHED = Path(__file__).parents[1] / "vectors" / "published"
LABEL = b"test seal"
MLKEM_CIPHERTEXT_BYTES = 1088
XWING_LABEL = bytes.fromhex("5c2e2f2f5e5c")


def _published(name: str) -> Any:
    return json.loads((PUBLISHED / name).read_text())


def _seal_key(number: int) -> SealKey:
    return SealKey.from_seeds(bytes([number]) * 64, bytes([number + 100]) * 32)


def _from_xwing_seed(seed: bytes) -> SealKey:
    """Key expansion of draft-connolly-cfrg-xwing-kem, section 5.2."""
    expanded = hashlib.shake_256(seed).digest(96)
    return SealKey.from_seeds(expanded[:64], expanded[64:])


def _xwing_decapsulate(seal_key: SealKey, ciphertext: bytes) -> bytes:
    """Decapsulation and combiner of draft-connolly-cfrg-xwing-kem, sections 5.3 and 5.5."""
    share = ciphertext[MLKEM_CIPHERTEXT_BYTES:]
    return hashlib.sha3_256(
        seal_key._mlkem.decapsulate(ciphertext[:MLKEM_CIPHERTEXT_BYTES])
        + seal_key._x25519.exchange(X25519PublicKey.from_public_bytes(share))
        + share
        + seal_key.public_bytes[MLKEM_PUBLIC_BYTES:]
        + XWING_LABEL
    ).digest()


def _key_schedule(suite_id: bytes, shared_secret: bytes, info: bytes) -> tuple[bytes, bytes]:
    """AEAD key and base nonce of RFC 9180 section 5.1, base mode, HKDF-SHA-256."""

    def extract(salt: bytes, label: bytes, ikm: bytes) -> bytes:
        return hmac.digest(salt, b"HPKE-v1" + suite_id + label + ikm, "sha256")

    def expand(secret: bytes, label: bytes, context: bytes, size: int) -> bytes:
        labeled = size.to_bytes(2, "big") + b"HPKE-v1" + suite_id + label + context
        return hmac.digest(secret, labeled + b"\x01", "sha256")[:size]

    context = b"\0" + extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", info)
    secret = extract(shared_secret, b"secret", b"")
    return expand(secret, b"key", context, 32), expand(secret, b"base_nonce", context, 12)


def test_published_x25519_vectors_of_rfc_7748() -> None:
    vectors = _published("rfc7748_x25519.json")
    for vector in vectors["section_5_2"]:
        scalar, u = bytes.fromhex(vector["scalar"]), bytes.fromhex(vector["u"])
        private = SealKey.from_seeds(bytes(64), scalar)._x25519
        assert private.exchange(X25519PublicKey.from_public_bytes(u)).hex() == vector["output"]
    exchange = {name: bytes.fromhex(value) for name, value in vectors["section_6_1"].items()}
    for mine, theirs in (("alice", "bob"), ("bob", "alice")):
        seal_key = SealKey.from_seeds(bytes(64), exchange[f"{mine}_private"])
        assert seal_key.public_bytes[MLKEM_PUBLIC_BYTES:] == exchange[f"{mine}_public"]
        peer = X25519PublicKey.from_public_bytes(exchange[f"{theirs}_public"])
        assert seal_key._x25519.exchange(peer) == exchange["shared"]


def test_published_mlkem_768_vectors() -> None:
    for vector in _published("mlkem768.json")["vectors"]:
        seed = bytes.fromhex(vector["d"] + vector["z"])
        seal_key = SealKey.from_seeds(seed, bytes(32))
        assert seal_key.public_bytes[:MLKEM_PUBLIC_BYTES].hex() == vector["public"]
        for ciphertext, secret in (("ciphertext", "secret"), ("invalid_ciphertext", "rejected_secret")):
            assert seal_key._mlkem.decapsulate(bytes.fromhex(vector[ciphertext])).hex() == vector[secret]


def test_published_xwing_vectors() -> None:
    for vector in _published("xwing.json")["vectors"]:
        seal_key = _from_xwing_seed(bytes.fromhex(vector["seed"]))
        assert seal_key.public_bytes.hex() == vector["public"]
        shared = _xwing_decapsulate(seal_key, bytes.fromhex(vector["ciphertext"]))
        assert shared.hex() == vector["shared_secret"]


def test_published_hpke_vectors() -> None:
    for vector in _published("hpke_xwing.json")["vectors"]:
        raw = {name: bytes.fromhex(value) for name, value in vector.items() if isinstance(value, str)}
        seal_key = _from_xwing_seed(raw["seed"])
        assert seal_key.public_bytes == raw["public"]
        assert _xwing_decapsulate(seal_key, raw["encapsulation"]) == raw["shared_secret"]
        schedule = _key_schedule(raw["suite_id"], raw["shared_secret"], raw["info"])
        assert schedule == (raw["aead_key"], raw["base_nonce"])
        first = {name: bytes.fromhex(value) for name, value in vector["first_encryption"].items()}
        assert first["nonce"] == raw["base_nonce"]
        aead = ChaCha20Poly1305(raw["aead_key"])
        assert aead.encrypt(first["nonce"], first["pt"], first["aad"]) == first["ct"]

        # The same key through the library's own decapsulation and key schedule, without associated data.
        envelope = raw["encapsulation"] + aead.encrypt(raw["base_nonce"], first["pt"], None)
        private = sealing.hpke.MLKEM768X25519PrivateKey(seal_key._mlkem, seal_key._x25519)
        assert sealing._SUITE.decrypt(envelope, private, info=raw["info"]) == first["pt"]

        # And through SealKey.open, whose info is the canonical encoding of label and context.
        info = len(LABEL).to_bytes(4, "big") + LABEL + (2).to_bytes(4, "big") + b"me"
        aead_key, nonce = _key_schedule(raw["suite_id"], raw["shared_secret"], info)
        envelope = raw["encapsulation"] + ChaCha20Poly1305(aead_key).encrypt(nonce, b"plain", None)
        assert seal_key.open(envelope, LABEL, b"me") == b"plain"


@settings(max_examples=20)
@given(st.binary(max_size=100), st.lists(st.binary(max_size=5), max_size=3))
def test_an_envelope_opens_for_its_key_label_and_context(plaintext: bytes, context: list[bytes]) -> None:
    sealed = seal(_seal_key(1).public_bytes, plaintext, LABEL, *context)
    assert len(sealed) == len(plaintext) + OVERHEAD_BYTES
    assert _seal_key(1).open(sealed, LABEL, *context) == plaintext


def test_an_envelope_opens_for_nothing_else() -> None:
    seal_key = _seal_key(1)
    sealed = seal(seal_key.public_bytes, b"secret", LABEL, b"ab", b"c")
    assert seal_key.open(sealed, LABEL, b"ab", b"c") == b"secret"
    for other, label, context in [
        (_seal_key(2), LABEL, (b"ab", b"c")),
        (SealKey.from_seeds(bytes([1]) * 64, bytes([102]) * 32), LABEL, (b"ab", b"c")),  # half the key
        (SealKey.from_seeds(bytes([2]) * 64, bytes([101]) * 32), LABEL, (b"ab", b"c")),  # the other half
        (seal_key, LABEL + b"2", (b"ab", b"c")),
        (seal_key, LABEL, (b"a", b"bc")),
        (seal_key, LABEL, (b"c", b"ab")),
        (seal_key, LABEL, (b"ab",)),
        (seal_key, LABEL, (b"ab", b"c", b"")),
        (seal_key, LABEL, ()),
    ]:
        with pytest.raises(MalformedMessage, match="cannot be opened"):
            other.open(sealed, label, *context)


def test_an_envelope_with_any_byte_altered_does_not_open() -> None:
    seal_key = _seal_key(1)
    sealed = seal(seal_key.public_bytes, b"0123456789", LABEL)
    edges = [0, 1, MLKEM_CIPHERTEXT_BYTES - 1, MLKEM_CIPHERTEXT_BYTES, len(sealed) - 16, len(sealed) - 1]
    for at in sorted(
        {*edges, *range(0, MLKEM_CIPHERTEXT_BYTES, 97), *range(MLKEM_CIPHERTEXT_BYTES, len(sealed))}
    ):
        altered = bytearray(sealed)
        # The top bit of an X25519 share is ignored by the function but enters the combiner.
        altered[at] ^= 0x80 if at == MLKEM_CIPHERTEXT_BYTES + 31 else 1 << at % 8
        with pytest.raises(MalformedMessage, match="cannot be opened"):
            seal_key.open(altered, LABEL)


def test_a_cut_or_extended_envelope_does_not_open() -> None:
    seal_key = _seal_key(1)
    sealed = seal(seal_key.public_bytes, b"secret", LABEL)
    for wrong in (
        b"",
        sealed[:1],
        sealed[:MLKEM_CIPHERTEXT_BYTES],
        sealed[:1120],
        sealed[:1121],
        sealed[:-1],
    ):
        with pytest.raises(MalformedMessage, match="cannot be opened"):
            seal_key.open(wrong, LABEL)
    with pytest.raises(MalformedMessage, match="cannot be opened"):
        seal_key.open(sealed + b"\0", LABEL)


@settings(max_examples=20)
@given(st.binary(max_size=1300))
def test_random_bytes_do_not_open(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="cannot be opened"):
        _seal_key(1).open(data, LABEL)


@pytest.mark.parametrize(
    "small_order",
    [bytes(32), b"\1" + bytes(31), (2**255 - 19 - 1).to_bytes(32, "little")],
    ids=["0", "1", "-1"],
)
def test_an_x25519_share_of_small_order_is_refused(small_order: bytes) -> None:
    """Such a share makes the classical half a constant: neither side may use it."""
    good = _seal_key(1)
    sealed = bytearray(seal(good.public_bytes, b"secret", LABEL))
    sealed[MLKEM_CIPHERTEXT_BYTES : MLKEM_CIPHERTEXT_BYTES + 32] = small_order
    with pytest.raises(MalformedMessage, match="cannot be opened"):
        good.open(sealed, LABEL)
    with pytest.raises(MalformedMessage, match="not a valid X-Wing public key"):
        seal(good.public_bytes[:MLKEM_PUBLIC_BYTES] + small_order, b"secret", LABEL)


@pytest.mark.parametrize("size", [0, 32, MLKEM_PUBLIC_BYTES, PUBLIC_BYTES - 1, PUBLIC_BYTES + 1])
def test_a_public_key_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(MalformedMessage, match="must be 1216 bytes"):
        seal(bytes(size), b"secret", LABEL)


def test_a_public_key_with_coefficients_outside_the_field_is_refused() -> None:
    """The modulus check of FIPS 203 section 7.2."""
    with pytest.raises(MalformedMessage, match="not a valid X-Wing public key"):
        seal(b"\xff" * MLKEM_PUBLIC_BYTES + _seal_key(1).public_bytes[-32:], b"secret", LABEL)


def test_envelopes_are_randomised_and_keys_rebuilt_from_seeds_are_the_same() -> None:
    public = _seal_key(1).public_bytes
    assert len(public) == PUBLIC_BYTES
    assert public == _seal_key(1).public_bytes != _seal_key(2).public_bytes
    one, other = (seal(public, b"secret", LABEL) for _ in range(2))
    assert one[:MLKEM_CIPHERTEXT_BYTES] != other[:MLKEM_CIPHERTEXT_BYTES]
    assert one[MLKEM_CIPHERTEXT_BYTES:1120] != other[MLKEM_CIPHERTEXT_BYTES:1120]
    assert one[1120:] != other[1120:]


def test_generated_keys_differ_in_both_halves_and_show_nothing() -> None:
    one, other = SealKey.generate(), SealKey.generate()
    assert one.public_bytes[:MLKEM_PUBLIC_BYTES] != other.public_bytes[:MLKEM_PUBLIC_BYTES]
    assert one.public_bytes[MLKEM_PUBLIC_BYTES:] != other.public_bytes[MLKEM_PUBLIC_BYTES:]
    assert repr(one) == "SealKey()"
