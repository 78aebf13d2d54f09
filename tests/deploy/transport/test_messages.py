"""The link's messages: what protobuf itself would write, nothing else is read, and the .proto says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from secfed.deploy.transport import messages as wire
from secfed.deploy.transport.grpc.service import SERVICE
from secfed.errors import MalformedMessage

PROTO = (Path(__file__).resolve().parents[3] / "deploy" / "transport" / "messages.proto").read_text(
    encoding="utf-8"
)
PACKAGE = SERVICE.rpartition(".")[0]
KINDS = {"string": 9, "bytes": 12, "uint64": 4, "bool": 8}  # FieldDescriptorProto.Type
ID = bytes(range(16))
HASH = bytes(range(32))

MESSAGES = [
    wire.HelloRequest("", ""),
    wire.HelloRequest("study-é", "secfed 1.0"),
    wire.HelloRequest("", "secfed 1.0", looks=True),
    wire.HelloReply("study", b"[study]\n" * 500, 200_000_000),
    wire.HelloReply("study", b"", 0),
    wire.NextRequest("study"),
    wire.Part(header=wire.Header("study", ID, 0, HASH)),
    wire.Part(header=wire.Header("study", ID, (1 << 64) - 1, HASH)),
    wire.Part(data=b"\x00"),
    wire.Part(data=bytes(wire.PART_BYTES)),
    wire.RefusalMessage("study", ID, "PolicyRefused", "hours"),
    wire.RefusalMessage("study", b"", "PolicyRefused", ""),
    wire.Receipt(wire.ACCEPTED),
    wire.Receipt(wire.OVER),
    wire.HelloReply("study", b"", 200_000_000, finished=True),
    wire.HelloReply("study", b"", 200_000_000, waits=2, done=1, of=3),
    wire.HelloReply("study", b"", 200_000_000, waits=1, of=3),
]


def official() -> dict[str, Any]:
    """Message classes of protobuf, from the text of the .proto."""
    file = descriptor_pb2.FileDescriptorProto(name="secfed_link.proto", package=PACKAGE, syntax="proto3")
    text = re.sub(r"//.*", "", PROTO)
    for name, body in re.findall(r"^message (\w+) \{(.*?)^\}", text, re.M | re.S):
        message = file.message_type.add(name=name)
        if "oneof" in body:
            message.oneof_decl.add(name="part")
        for values in re.findall(r"enum Outcome \{(.*?)\}", body, re.S):
            outcomes = message.enum_type.add(name="Outcome")
            for value, number in re.findall(r"(\w+) = (\d+);", values):
                outcomes.value.add(name=value, number=int(number))
        for kind, field, number in re.findall(
            r"(\w+) (\w+) = (\d+);", re.sub(r"enum.*?\}", "", body, flags=re.S)
        ):
            added = message.field.add(name=field, number=int(number), label=1)
            if kind in KINDS:
                added.type = KINDS[kind]
            else:
                full = f".{PACKAGE}.{name}.{kind}" if kind == "Outcome" else f".{PACKAGE}.{kind}"
                added.type, added.type_name = (14 if kind == "Outcome" else 11), full
            if "oneof" in body:
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClassesForFiles([file.name], pool)


OFFICIAL = official()


def as_protobuf(message: Any) -> Any:
    """The same content as an object of protobuf."""
    made = OFFICIAL[f"{PACKAGE}.{type(message).__name__}"]()
    for name in made.DESCRIPTOR.fields_by_name:
        value = getattr(message, name)
        if isinstance(value, wire.Header):
            made.header.CopyFrom(as_protobuf(value))
        elif value is not None:
            setattr(made, name, value)
    return made


def test_every_message_of_the_proto_is_written_by_hand_with_its_fields():
    for full, made in OFFICIAL.items():
        ours = getattr(wire, full.rpartition(".")[2])
        assert list(made.DESCRIPTOR.fields_by_name) == list(ours.__dataclass_fields__)
    outcomes = OFFICIAL[f"{PACKAGE}.Receipt"].DESCRIPTOR.enum_types_by_name["Outcome"].values_by_name
    assert {name: outcomes[name].number for name in ("ACCEPTED", "REPEATED", "OVER")} == {
        "ACCEPTED": wire.ACCEPTED,
        "REPEATED": wire.REPEATED,
        "OVER": wire.OVER,
    }


def test_the_calls_of_the_proto_are_the_calls_of_the_server():
    assert f"package {PACKAGE};" in PROTO
    assert f"service {SERVICE.rpartition('.')[2]} {{" in PROTO
    calls = re.findall(r"rpc (\w+)\((stream )?\w+\) returns \((stream )?\w+\);", PROTO)
    assert [(name, bool(up), bool(down)) for name, up, down in calls] == [
        ("Hello", False, False),
        ("Next", False, True),
        ("Answer", True, False),
        ("Refuse", False, False),
    ]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_the_bytes_are_those_of_protobuf_and_read_back(message):
    theirs = as_protobuf(message).SerializeToString()
    assert message.encode() == theirs
    assert type(message).decode(theirs) == message


@given(st.text(max_size=60), st.binary(min_size=16, max_size=16), st.integers(0, (1 << 64) - 1))
def test_any_header_has_the_bytes_of_protobuf(study, request_id, size):
    header = wire.Header(study, request_id, size, HASH)
    assert header.encode() == as_protobuf(header).SerializeToString()
    assert wire.Header.decode(header.encode()) == header


def test_a_full_part_fits_the_longest_message():
    longest = wire.Part(data=bytes(wire.PART_BYTES)).encode()
    assert len(longest) <= wire.MAX_MESSAGE_BYTES


HEADER = wire.Header("s", ID, 5, HASH).encode()


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (wire.NextRequest, b"\x0a\x05ab"),  # ends too early
        (wire.NextRequest, b"\x0a"),  # ends in a length
        (wire.NextRequest, b"\x0a\x01a\x0a\x01b"),  # a field twice
        (wire.NextRequest, b"\x12\x01a"),  # a field that does not exist
        (wire.NextRequest, b"\x0a\x00"),  # an empty field that is written out
        (wire.NextRequest, b"\x0a\x81\x00a"),  # a length in two bytes that fits one
        (wire.NextRequest, b"\x0a\x02\xff\xfe"),  # not UTF-8
        (wire.NextRequest, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),  # more than 64 bits
        (wire.NextRequest, b"\x0a\xad\x02" + b"a" * (wire.MAX_STUDY_BYTES + 1)),  # beyond the cap
        (wire.HelloRequest, b"\x12\x01a\x0a\x01b"),  # out of order
        (wire.Receipt, b""),  # no outcome
        (wire.Receipt, b"\x08\x00"),  # zero written out
        (wire.Receipt, b"\x08\x04"),  # unknown outcome
        (wire.HelloReply, b"\x0a\x01s\x18\x05\x20\x02"),  # a yes or no that is neither
        (wire.Receipt, b"\x08\x01\x00"),  # trailing byte
        (wire.Part, b""),  # neither
        (wire.Part, wire.Part(header=wire.Header.decode(HEADER)).encode() + b"\x12\x01a"),  # both
        (wire.Header, wire.Header("s", ID[:-1], 5, HASH).encode()),  # a short id
        (wire.Header, wire.Header("s", ID, 5, HASH[:-1]).encode()),  # a short hash
        (wire.RefusalMessage, wire.RefusalMessage("s", ID[:3], "k", "r").encode()),
    ],
)
def test_what_protobuf_might_forgive_is_refused(kind, data):
    with pytest.raises(MalformedMessage):
        kind.decode(data)


@given(st.sampled_from(MESSAGES[:6] + MESSAGES[9:]), st.data())
def test_a_message_with_one_byte_changed_is_refused_or_another_message(message, data):
    encoded = bytearray(message.encode())
    if not encoded:
        return
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        changed = type(message).decode(encoded)
    except MalformedMessage:
        return
    assert changed != message
    assert changed.encode() == bytes(encoded)  # one value, one byte string


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read_canonically(data):
    for kind in {type(message) for message in MESSAGES}:
        try:
            assert kind.decode(data).encode() == data
        except MalformedMessage:
            continue
