"""Messages: one value, one byte string; caps before allocation; digests that cover every field."""

from __future__ import annotations

import errno
from dataclasses import fields, replace
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secfed.crypto import labels, message_base, sealing, shamir
from secfed.crypto.codec import Writer
from secfed.crypto.masked import graph_messages
from secfed.crypto.messages import ALL as COMPLETE
from secfed.crypto.messages import (
    SEALED_SEED_BYTES,
    SEALED_SHARES_BYTES,
    Advert,
    Confirmation,
    Envelope,
    MaskSecretShare,
    Message,
    Result,
    SelfMaskShare,
    Shares,
    Specification,
    Survivors,
    Upload,
    names_digest,
    peek_type,
    view_parts,
)
from secfed.crypto.record import Record
from secfed.errors import MalformedMessage, RoundAborted
from tests.kill import failing

ALL = (*COMPLETE, *graph_messages.ALL)
NAMES = (
    st.text(max_size=50)
    .filter(lambda name: len(name.encode("utf-8", "replace")) <= 200)
    .filter(lambda name: not any("\ud800" <= letter <= "\udfff" for letter in name))
)


def exactly(size: int) -> st.SearchStrategy[bytes]:
    """Byte strings of one size; large ones repeat a short one."""
    short = st.binary(min_size=min(size, 8), max_size=min(size, 8))
    return short.map(lambda seed: (seed * (size // max(1, len(seed)) + 1))[:size])


LISTS = st.lists(NAMES, max_size=6).map(tuple)
SHARES = st.lists(
    st.builds(
        lambda kind, peer, share: kind(peer, share),
        st.sampled_from([SelfMaskShare, MaskSecretShare]),
        NAMES,
        exactly(shamir.SHARE_BYTES),
    ),
    max_size=5,
    unique_by=lambda share: share.peer,
).map(lambda shares: tuple(sorted(shares, key=lambda share: share.peer)))
# Values by the type that a field is declared with, and by its name where that type is its own.
BY_TYPE = {
    message_base.Name: NAMES,
    message_base.Names: LISTS,
    message_base.U16: st.integers(0, 2**16 - 1),
    message_base.U32: st.integers(0, 2**32 - 1),
    message_base.Digest: exactly(32),
    message_base.Signature: exactly(64),
}
BY_NAME = {
    "mask_key": exactly(sealing.PUBLIC_BYTES),
    "seal_key": exactly(sealing.PUBLIC_BYTES),
    "sealed_seed": exactly(SEALED_SEED_BYTES),
    "sealed_shares": exactly(SEALED_SHARES_BYTES),
    "holders": st.binary(max_size=125),
    "shares": SHARES,
    "model": st.binary(max_size=100).map(memoryview),
}


def any_of(kind: type[Record]) -> st.SearchStrategy[Any]:
    """Records of one kind, made from what its fields are declared as."""
    if kind is Upload:  # lays itself out
        return st.builds(
            Upload, exactly(32), exactly(32), exactly(64), st.binary(max_size=100).map(memoryview)
        )
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, st.SearchStrategy[Any]] = {}
    for item in fields(kind):
        hint = hints[item.name]
        if get_origin(hint) is tuple:
            values[item.name] = st.lists(any_of(get_args(hint)[0]), max_size=3).map(tuple)
        else:
            values[item.name] = BY_NAME[item.name] if item.name in BY_NAME else BY_TYPE[hint]
    return st.builds(kind, **values)


MESSAGES = {kind: any_of(kind) for kind in ALL}


def test_types_are_numbered_once_and_for_all() -> None:
    assert {kind.__name__: kind.TYPE for kind in ALL} == {
        "Specification": 0,
        "Advert": 1,
        "Adverts": 2,
        "Sharing": 3,
        "Deliveries": 4,
        "Upload": 5,
        "Survivors": 6,
        "View": 7,
        "UnmaskRequest": 8,
        "Shares": 9,
        "Result": 10,
        "FinalModel": 17,
        "Confirmation": 18,
        "SharingSet": 19,
        "AdvertDigests": 20,
        "Choice": 21,
        "Neighbourhood": 22,
        "NeighbourSharing": 23,
        "NeighbourDeliveries": 24,
        "ProvenUnmaskRequest": 25,
    }


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=20)
@given(data=st.data())
def test_a_message_survives_the_wire_and_only_as_its_own_type(
    kind: type[Message], data: st.DataObject
) -> None:
    message = data.draw(MESSAGES[kind])
    encoded = message.encode()
    assert kind.decode(encoded) == message
    assert kind.decode(bytearray(encoded)).encode() == encoded
    assert peek_type(memoryview(encoded)) == kind.TYPE
    for other in ALL:
        if other is not kind:
            with pytest.raises(MalformedMessage, match=f"expected a message of type {other.TYPE}"):
                other.decode(encoded)


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not Upload])
@settings(max_examples=10)
@given(data=st.data(), extra=st.binary(min_size=1, max_size=4))
def test_nothing_may_follow_or_be_missing(kind: type[Message], data: st.DataObject, extra: bytes) -> None:
    encoded = data.draw(MESSAGES[kind]).encode()
    with pytest.raises(MalformedMessage):
        kind.decode(encoded + extra)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(MalformedMessage):
        kind.decode(encoded[:cut])


def _example(kind: type[Record]) -> Any:
    sealed = bytes(SEALED_SEED_BYTES), bytes(SEALED_SHARES_BYTES)
    envelope = Envelope("a", "b", *sealed, bytes(32), bytes(32), bytes(64))
    return {
        Specification: Specification(
            "study", 1, 2, "update", 3, ("a", "b", "c"), 3, b"\1" * 32, b"\2" * 32, b"\3" * 32, bytes(64)
        ),
        Advert: Advert("a", b"\1" * 1216, b"\2" * 1216, b"\3" * 32, bytes(64)),
        Envelope: envelope,
        Confirmation: Confirmation("a", ("b",), bytes(64)),
        Result: Result(bytes(32), ("a", "b"), bytes(32), bytes(64)),
        Shares: Shares((SelfMaskShare("a", bytes(33)), MaskSecretShare("b", bytes(33))), bytes(64)),
    }[kind]


_OTHER: dict[str, Any] = {
    "cohort": ("a", "b"),
    "complaints": ("b", "c"),
    "survivors": ("a", "c"),
    "shares": (MaskSecretShare("a", bytes(33)), MaskSecretShare("b", bytes(33))),
}


@pytest.mark.parametrize("kind", [Specification, Advert, Envelope, Confirmation, Result, Shares])
def test_what_is_signed_covers_every_field_but_the_signature(kind: type[Record]) -> None:
    message = _example(kind)
    for item in fields(message):
        value = getattr(message, item.name)
        other = _OTHER.get(item.name) or (
            value + 1
            if isinstance(value, int)
            else value + "x"
            if isinstance(value, str)
            else value[:-1] + b"\x09"
        )
        changed = replace(message, **{item.name: other})
        assert (changed.body() == message.body()) == (item.name == "signature"), item.name
        assert changed.encode() != message.encode()


def test_the_digest_of_a_specification_does_not_depend_on_its_signature() -> None:
    spec = _example(Specification)
    assert replace(spec, signature=b"\x05" * 64).digest == spec.digest
    assert replace(spec, attempt=4).digest != spec.digest


@given(sharing=LISTS, survivors=LISTS, more=NAMES)
def test_a_view_tells_the_sharing_set_from_the_survivors(
    sharing: tuple[str, ...], survivors: tuple[str, ...], more: str
) -> None:
    parts = view_parts(bytes(32), bytes(32), (*sharing, more), survivors)
    assert parts != view_parts(bytes(32), bytes(32), sharing, (more, *survivors))
    assert (parts[2] == parts[3]) == ((*sharing, more) == survivors)


def test_lists_of_names_do_not_run_together() -> None:
    digests = {
        names_digest(labels.SHARING_DIGEST, names)
        for names in [("ab", "c"), ("a", "bc"), ("abc",), ("ab", "c", "")]
    }
    assert len(digests) == 4


# Caps.


def _survivors(count: int, name: bytes = b"") -> bytes:
    item = len(name).to_bytes(4, "big") + name
    return labels.PROTOCOL + b"\x06" + count.to_bytes(4, "big") + count * item


def test_a_name_has_at_most_200_bytes() -> None:
    assert Survivors.decode(_survivors(1, b"x" * 200)).survivors == ("x" * 200,)
    with pytest.raises(MalformedMessage, match="cap of 200"):
        Survivors.decode(_survivors(1, b"x" * 201))
    with pytest.raises(MalformedMessage, match="not UTF-8"):
        Survivors.decode(_survivors(1, b"\xc3"))


@pytest.mark.parametrize("count", [1001, 2**31, 2**32 - 1])
def test_a_list_has_at_most_1000_items(count: int) -> None:
    message = labels.PROTOCOL + b"\x06" + count.to_bytes(4, "big") + bytes(4 * min(count, 2000))
    with pytest.raises(MalformedMessage, match="cap of 1000"):
        Survivors.decode(message)


@pytest.mark.parametrize("data", [b"", b"secfed/v1", b"secfed/v2\0", b"secfed/v1\x0b", b"\0" * 100])
def test_bytes_of_another_protocol(data: bytes) -> None:
    for kind in ALL:
        with pytest.raises(MalformedMessage):
            kind.decode(data)


# Shares: giving out both kinds for one peer cannot be expressed.


@pytest.mark.parametrize(
    "peers",
    [("b", "a"), ("a", "a"), ("a", "b", "b")],
    ids=["out of order", "one peer twice", "the last twice"],
)
def test_a_peer_occurs_once_among_the_shares(peers: tuple[str, ...]) -> None:
    kinds = (SelfMaskShare, MaskSecretShare, MaskSecretShare)
    shares = tuple(kind(peer, bytes(33)) for kind, peer in zip(kinds, peers, strict=False))
    with pytest.raises(MalformedMessage, match="repeated or out of order"):
        Shares.decode(Shares(shares, bytes(64)).encode())


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_there_are_two_kinds_of_shares(kind: int) -> None:
    writer = Writer().fixed(labels.PROTOCOL, 9).uint(Shares.TYPE, 1).uint(1, 4)
    message = writer.text("a").uint(kind, 1).fixed(bytes(33), 33).fixed(bytes(64), 64).done()
    with pytest.raises(MalformedMessage, match=f"unknown kind of share: {kind}"):
        Shares.decode(message)


def test_shares_and_vectors_stay_out_of_reprs() -> None:
    secret = b"\xabSECRET"
    shares = Shares((SelfMaskShare("a", secret),), b"")
    upload = Upload(b"", b"", b"", memoryview(secret))
    for value in (shares, shares.shares[0], MaskSecretShare("a", secret), upload):
        assert "SECRET" not in repr(value)


# The upload is made in place.


def test_an_upload_is_laid_out_around_the_vector_without_copies() -> None:
    vector = bytes(range(1, 41))
    buffer = Upload.frame(len(vector))
    buffer[Upload.VECTOR_AT : Upload.VECTOR_AT + len(vector)] = vector
    Upload.finish(buffer, b"\1" * 32, b"\2" * 32, b"\3" * 64)
    upload = Upload.decode(buffer)
    assert upload.encode() == bytes(buffer)
    assert bytes(buffer[:10]) == labels.PROTOCOL + bytes([Upload.TYPE])
    buffer[Upload.VECTOR_AT] = 99
    assert upload.vector[0] == 99  # a view of the message
    assert upload.vector.readonly
    assert (upload.sharing_digest, upload.vector_digest) == (b"\1" * 32, b"\2" * 32)


@pytest.mark.parametrize("at", range(10, 16))
def test_the_padding_of_an_upload_is_zero(at: int) -> None:
    buffer = Upload.frame(4)
    buffer[at] = 1
    with pytest.raises(MalformedMessage, match="padding"):
        Upload.decode(buffer)


def test_an_upload_without_a_trailer_is_none() -> None:
    assert len(Upload.decode(Upload.frame(0)).vector) == 0
    with pytest.raises(MalformedMessage, match="too short"):
        Upload.decode(Upload.frame(0)[:-1])


def test_memory_for_an_upload_that_cannot_be_had_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a limit on addresses (LimitAS): the site drops out of the attempt, and its agent goes on."""
    monkeypatch.setattr("secfed.crypto.upload.mmap.mmap", failing(errno.ENOMEM))
    with pytest.raises(RoundAborted, match="no memory for an upload of 40 bytes"):
        Upload.frame(40)
