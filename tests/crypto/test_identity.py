"""Identities and rosters: a signature says exactly what was signed, and a roster has one encoding."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from secfed.crypto import identity
from secfed.crypto.identity import (
    MAX_SITES,
    SIGNATURE_BYTES,
    Identity,
    Roster,
    fingerprint,
    remembered_signatures,
    verify,
)
from secfed.errors import BadSignature, MalformedMessage, RosterError

PUBLISHED = Path(__file__).parents[1] / "vectors" / "published" / "rfc8032_ed25519.json"
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493  # RFC 8032 section 5.1

LABEL = b"test sign"
ALICE = Identity.from_seed("alice", bytes(range(32)))
BOB = Identity.from_seed("bob", bytes(range(1, 33)))


def _accepts(signature: bytes, label: bytes, *parts: bytes, by: Identity = ALICE) -> bool:
    try:
        verify(by.public_bytes, signature, label, *parts, who=by.name)
    except BadSignature:
        return False
    return True


def test_published_vectors_of_rfc_8032() -> None:
    for vector in json.loads(PUBLISHED.read_text())["vectors"]:
        seed, message = bytes.fromhex(vector["seed"]), bytes.fromhex(vector["message"])
        public, signature = bytes.fromhex(vector["public"]), bytes.fromhex(vector["signature"])
        own = Identity.from_seed("x", seed)
        assert own.public_bytes == public, vector["name"]
        assert own.private_bytes() == seed
        assert own._identity_key.sign(message) == signature, vector["name"]
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)


def test_a_signature_that_was_good_is_good_for_the_same_bytes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bytes] = []
    once = identity._verify

    def counted(*of: bytes) -> None:
        checked.append(of[1])
        once(*of)

    monkeypatch.setattr(identity, "_verify", counted)
    monkeypatch.setattr(identity, "_verify_once", lru_cache(counted))
    signature = ALICE.sign(LABEL, b"part")
    with remembered_signatures():
        for _ in range(3):
            assert _accepts(signature, LABEL, b"part")
            assert not _accepts(signature, LABEL, b"other")
            assert not _accepts(signature, LABEL, b"part", by=BOB)
            assert not _accepts(BOB.sign(LABEL, b"part"), LABEL, b"part")
        assert checked.count(signature) == 1 + 3 + 3  # what was wrong is checked each time
    assert _accepts(signature, LABEL, b"part")
    assert _accepts(signature, LABEL, b"part")
    assert checked.count(signature) == 7 + 2


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_a_signature_verifies_for_what_was_signed(parts: list[bytes]) -> None:
    signature = ALICE.sign(LABEL, *parts)
    assert len(signature) == SIGNATURE_BYTES
    assert _accepts(signature, LABEL, *parts)


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=3), st.lists(st.binary(max_size=3), max_size=3))
def test_a_signature_verifies_for_nothing_else(parts: list[bytes], other: list[bytes]) -> None:
    signature = ALICE.sign(LABEL, *parts)
    assert _accepts(signature, LABEL, *other) == (parts == other)
    assert not _accepts(signature, LABEL + b" ", *parts)
    assert not _accepts(signature, LABEL + parts[0], *parts[1:])
    assert not _accepts(signature, LABEL, *parts, by=BOB)


def test_a_signature_with_any_bit_flipped_is_refused() -> None:
    signature = ALICE.sign(LABEL, b"message")
    for bit in range(8 * SIGNATURE_BYTES):
        altered = bytearray(signature)
        altered[bit // 8] ^= 1 << bit % 8
        assert not _accepts(bytes(altered), LABEL, b"message"), bit


def test_a_second_encoding_of_the_same_signature_is_refused() -> None:
    """S + L verifies the same equation; RFC 8032 section 5.1.7 demands S < L."""
    signature = ALICE.sign(LABEL, b"message")
    shifted = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    assert shifted < 2**256
    assert not _accepts(signature[:32] + shifted.to_bytes(32, "little"), LABEL, b"message")


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65)])
def test_bytes_that_are_no_signature_are_refused(signature: bytes) -> None:
    assert not _accepts(signature, LABEL, b"message")


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33), b"\xff" * 32])
def test_bytes_that_are_no_key_verify_nothing(public: bytes) -> None:
    with pytest.raises(BadSignature, match="'mallory'"):
        verify(public, ALICE.sign(LABEL, b"m"), LABEL, b"m", who="mallory")


def test_generated_identities_differ_and_show_no_private_key() -> None:
    one, other = Identity.generate("a"), Identity.generate("a")
    assert one.public_bytes != other.public_bytes
    assert Identity.from_seed("a", one.private_bytes()).public_bytes == one.public_bytes
    assert repr(one) == "Identity(name='a')"


def test_fingerprints_are_ten_groups_of_four_hex_digits_and_differ() -> None:
    assert re.fullmatch(r"([0-9a-f]{4} ){9}[0-9a-f]{4}", fingerprint(ALICE.public_bytes))
    assert fingerprint(ALICE.public_bytes) != fingerprint(BOB.public_bytes)


def _identity(number: int) -> Identity:
    return Identity.from_seed(f"site-{number:03d}", number.to_bytes(32, "big"))


AGGREGATOR = Identity.from_seed("aggregator", b"a" * 32)
ROSTER = Roster.of(AGGREGATOR, [_identity(n) for n in (3, 1, 2)])


def test_a_roster_orders_its_sites_and_finds_their_keys() -> None:
    assert ROSTER.sites == ("site-001", "site-002", "site-003")
    assert [ROSTER.position(site) for site in ROSTER.sites] == [0, 1, 2]
    assert ROSTER.public("site-002") == _identity(2).public_bytes
    for lookup in (ROSTER.public, ROSTER.position):
        with pytest.raises(RosterError, match="'site-009' is not in the pinned roster"):
            lookup("site-009")


def test_the_order_of_enrolment_does_not_matter() -> None:
    assert Roster.of(AGGREGATOR, [_identity(n) for n in (2, 3, 1)]).digest == ROSTER.digest


def test_the_digest_changes_with_every_member_name_and_key() -> None:
    (first, key), *rest = ROSTER.members
    stranger = _identity(9).public_bytes
    rosters = [
        ROSTER,
        Roster(stranger, ROSTER.members),
        Roster(ROSTER.aggregator, ((first, stranger), *rest)),
        Roster(ROSTER.aggregator, (("site-000", key), *rest)),
        Roster(ROSTER.aggregator, tuple(rest)),
        Roster(ROSTER.aggregator, (*ROSTER.members, ("site-009", stranger))),
        Roster(ROSTER.aggregator, ((first, rest[0][1]), (rest[0][0], key), *rest[1:])),
    ]
    assert len({roster.digest for roster in rosters}) == len(rosters)


@given(st.integers(1, 6))
def test_an_encoded_roster_is_decoded(count: int) -> None:
    roster = Roster.of(AGGREGATOR, [_identity(n) for n in range(count)])
    assert Roster.decode(roster.encode()) == roster


@given(st.data())
def test_accepted_roster_bytes_encode_to_themselves(data: st.DataObject) -> None:
    encoded = bytearray(ROSTER.encode())
    for _ in range(data.draw(st.integers(1, 2))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decoded = Roster.decode(bytes(encoded))
    except (MalformedMessage, RosterError):
        return
    assert decoded.encode() == bytes(encoded)
    assert (decoded.digest == ROSTER.digest) == (encoded == ROSTER.encode())


def test_cut_or_extended_roster_bytes_are_refused() -> None:
    encoded = ROSTER.encode()
    for wrong in (*(encoded[:end] for end in range(len(encoded))), encoded + b"\0"):
        with pytest.raises(MalformedMessage):
            Roster.decode(wrong)


_KEY = [bytes([n]) * 32 for n in range(4)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Roster(_KEY[0], ()), "1 to"),
        (lambda: Roster(_KEY[0], (("b", _KEY[1]), ("a", _KEY[2]))), "sorted"),
        (lambda: Roster(_KEY[0], (("a", _KEY[1]), ("a", _KEY[2]))), "unique"),
        (lambda: Roster(_KEY[0], (("a", _KEY[1]), ("b", _KEY[1]))), "same identity key"),
        (lambda: Roster(_KEY[0], (("a", _KEY[0]), ("b", _KEY[1]))), "same identity key"),
        (lambda: Roster(_KEY[0], (("a", bytes(31)),)), "32 bytes"),
        (lambda: Roster(bytes(33), (("a", _KEY[1]),)), "32 bytes"),
        (lambda: Roster(_KEY[0], (("", _KEY[1]),)), "site id"),
        (lambda: Roster(_KEY[0], (("ü" * 101, _KEY[1]),)), "site id"),
        (lambda: Roster.of(AGGREGATOR, [_identity(n) for n in range(MAX_SITES + 1)]), "1 to"),
    ],
)
def test_a_roster_that_breaks_its_rules_is_refused(make: Callable[[], Roster], message: str) -> None:
    with pytest.raises(RosterError, match=message) as caught:
        make()
    assert caught.value.remedy


def test_two_members_with_one_key_are_named() -> None:
    with pytest.raises(RosterError, match=r"\('b', 'd'\)"):
        Roster(_KEY[0], (("a", _KEY[1]), ("b", _KEY[2]), ("c", _KEY[3]), ("d", _KEY[2])))
    with pytest.raises(RosterError, match=r"\('a'\).* the aggregator must"):
        Roster(_KEY[0], (("a", _KEY[0]), ("b", _KEY[1])))
