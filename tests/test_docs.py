"""The documents say what the code does: numbers, labels, messages, byte tables.

The byte tables of docs/protocol.md are executed: an encoder that knows only those tables must give the
bytes that crypto/messages.py and crypto/encrypted/messages.py give.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from secfed.crypto import labels, messages, shamir, thresholds
from secfed.crypto.encrypted import messages as encrypted_messages
from secfed.crypto.encrypted.bfv import Parameters, Ring
from secfed.crypto.encrypted.bfv_packing import pack_words
from secfed.crypto.encrypted.server import SUM, UPLOAD, FrameFormat
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.lanes import Run
from secfed.crypto.masked import graph_messages
from secfed.crypto.messages import Envelope, MaskSecretShare, Message, SelfMaskShare
from secfed.crypto.refusals import Refusal
from secfed.wire.layout import Field, Layout
from tests.layout import slug

ROOT: Final = Path(__file__).parents[1]
SECURITY: Final = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROTOCOL: Final = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
ALL_MESSAGES: Final = (*messages.ALL, *graph_messages.ALL, *encrypted_messages.ALL)


def _rows(text: str) -> Iterator[list[str]]:
    """Cells of every table row."""
    for line in text.splitlines():
        if line.startswith("|") and line.endswith("|"):
            yield [cell.strip() for cell in line[1:-1].split("|")]


def _section(title: str) -> str:
    """Text of docs/protocol.md under one heading, up to the next heading."""
    found = re.search(rf"(?ms)^##+ {title}\n(.*?)(?=^##|\Z)", PROTOCOL)
    assert found, f"docs/protocol.md has no section {title!r}"
    return found[1]


# Refusals


def test_security_md_lists_every_refusal_as_the_code_does() -> None:
    listed = [
        (int(cells[0]), cells[1], cells[2].strip("`"))
        for cells in _rows(SECURITY)
        if len(cells) == 4 and cells[0].isdigit()
    ]
    assert listed == [(refusal.number, refusal.text, refusal.error.__name__) for refusal in Refusal]


def test_protocol_md_says_where_each_refusal_comes_from() -> None:
    section_7 = PROTOCOL[PROTOCOL.index("\n## 7. ") : PROTOCOL.index("\n## 8. ")]
    named = {int(number) for number in re.findall(r"\bR(\d+)\b", section_7)}
    assert named == {refusal.number for refusal in Refusal}


# Labels


def _modules_of_the_protocol() -> set[Path]:
    """What the state machines import from crypto/, directly or not, and the callers around them."""
    names = (
        "masked/client",
        "masked/server",
        "encrypted/session",
        "encrypted/client",
        "encrypted/study_keys",
    )
    todo = [f"crypto/{name}" for name in names]
    found: set[Path] = set()
    while todo:
        path = ROOT / f"{todo.pop()}.py"
        if path not in found and path.exists():
            found.add(path)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("secfed.crypto"):
                    home = str(node.module).removeprefix("secfed.").replace(".", "/")
                    todo += [home, *(f"{home}/{alias.name}" for alias in node.names)]
    names = (
        "wire/layout",
        "server/round",
        "protection/interface",
        "records/transcript",
        "site/session",
        "protection/plain",
        "protection/encrypted",
        "protection/closed",
        "site/opening_session",
        "server/opened_rounds",
    )
    callers = {ROOT / "secfed" / f"{name}.py" for name in names}
    return (found | callers) - {ROOT / "crypto" / "labels.py"}


def _source_of_the_protocol() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(_modules_of_the_protocol()))


def _labels_in_use() -> dict[str, bytes]:
    """Labels that the modules of the protocol take from labels.py, by name."""
    used = set(re.findall(r"\blabels\.([A-Z][A-Z0-9_]*)", _source_of_the_protocol()))
    return {name: getattr(labels, name) for name in used}


def _labels_outside() -> set[bytes]:
    """Labels that a module of the protocol defines for itself (keys and parameters of encryption)."""
    return {text.encode() for text in re.findall(r"b\"(secfed/v1[^\"]*)\"", _source_of_the_protocol())}


def _labels_explained() -> set[bytes]:
    return {cells[0].strip("`").encode() for cells in _rows(_section("4. Labels"))}


def test_protocol_md_explains_every_label_in_use() -> None:
    explained = _labels_explained()
    missing = {name for name, label in _labels_in_use().items() if label not in explained}
    assert not missing
    assert _labels_outside() <= explained


def test_protocol_md_knows_no_label_that_the_code_does_not() -> None:
    defined = {value for name, value in vars(labels).items() if name.isupper()} | _labels_outside()
    assert {label for label in _labels_explained() if label.startswith(labels.PROTOCOL)} <= defined


# Messages


def test_protocol_md_numbers_the_messages_as_the_code_does() -> None:
    rows = [*_rows(_section("7. Messages")), *_rows(_section("12. Encrypted protection"))]
    rows += _rows(_section("13. Closed sums"))
    listed = {int(cells[1]): cells[2] for cells in rows if cells[0].isdigit()}
    assert listed == {kind.TYPE: kind.__name__ for kind in ALL_MESSAGES}
    headings = {int(number): name for number, name in re.findall(r"(?m)^### Type (\d+): (\w+)$", PROTOCOL)}
    assert headings == listed


@cache
def _table(title: str) -> tuple[tuple[str, str], ...]:
    """(field, type) of one byte table."""
    rows = [cells for cells in _rows(_section(title)) if re.fullmatch(r"`\w+`", cells[0])]
    assert rows, f"the section {title!r} has no byte table"
    return tuple((cells[0].strip("`"), cells[1].strip("`")) for cells in rows)


def _table_of(name: str) -> tuple[tuple[str, str], ...]:
    for kind in ALL_MESSAGES:
        if kind.__name__ == name:
            return _table(f"Type {kind.TYPE}: {name}")
    return _table(f"Structure {name}")


def _encode(kind: str, value: Any) -> bytes:
    """A value by the types of section 3 of docs/protocol.md."""
    if re.fullmatch(r"u\d+", kind):
        return int(value).to_bytes(int(kind[1:]) // 8, "big")
    if match := re.fullmatch(r"(bytes|zeros)\[(\d+)\]", kind):
        data = bytes(int(match[2])) if match[1] == "zeros" else bytes(value)
        assert len(data) == int(match[2]), f"{kind} was given {len(data)} bytes"
        return data
    if kind == "text":
        data = str(value).encode()
        return len(data).to_bytes(4, "big") + data
    if kind in ("blob", "blob64"):
        data = bytes(value.encode()) if isinstance(value, Message) else bytes(value)
        return len(data).to_bytes(4 if kind == "blob" else 8, "big") + data
    if kind == "rest":
        return bytes(value)
    if match := re.fullmatch(r"\[(\w+)\]", kind):
        return len(value).to_bytes(4, "big") + b"".join(_encode(match[1], item) for item in value)
    return _encode_fields(kind, value)


def _encode_fields(name: str, value: Any) -> bytes:
    given = {"kind": getattr(value, "KIND", None), "padding": None}
    return b"".join(
        _encode(kind, given[field] if field in given else getattr(value, field))
        for field, kind in _table_of(name)
    )


def _bytes(fill: int, size: int) -> bytes:
    return bytes([fill]) * size


def _examples() -> list[Message]:
    advert = messages.Advert("spital-ä", _bytes(1, 1216), _bytes(2, 1216), _bytes(3, 32), _bytes(4, 64))
    other = messages.Advert("west", _bytes(5, 1216), _bytes(6, 1216), _bytes(7, 32), _bytes(8, 64))
    dealt = _bytes(35, 32), _bytes(36, 32)
    envelope = Envelope("spital-ä", "west", _bytes(9, 1168), _bytes(10, 1202), *dealt, _bytes(11, 64))
    view = messages.View("west", _bytes(12, 64))
    shares = (SelfMaskShare("spital-ä", _bytes(13, 33)), MaskSecretShare("west", _bytes(14, 33)))
    names = ("spital-ä", "west")
    digests = (_bytes(15, 32), _bytes(16, 32), _bytes(17, 32), _bytes(18, 64))
    spec = messages.Specification("study-1", 70_000, 3, "update", 2, names, 2, *digests)
    result = messages.Result(_bytes(23, 32), names, _bytes(24, 32), _bytes(25, 64))
    choice = graph_messages.Choice("west", b"\x01", 1, _bytes(38, 64))
    seed = graph_messages.SeedEnvelope("west", "spital-ä", _bytes(39, 1168), _bytes(40, 64))
    proof = graph_messages.UploadProof("west", _bytes(41, 32), _bytes(42, 64))
    lines = (graph_messages.AdvertDigest("spital-ä", _bytes(43, 32)),)
    hello = encrypted_messages.KeyHello("spital-ä", _bytes(26, 1216), _bytes(27, 64))
    package = encrypted_messages.KeyPackage("west", b"sealed", _bytes(28, 64))
    return [
        spec,
        advert,
        messages.Adverts((advert, other)),
        messages.Sharing((envelope,)),
        messages.Deliveries((envelope, envelope)),
        messages.Confirmation("west", names[:1], _bytes(37, 64)),
        messages.SharingSet(names),
        messages.Upload(_bytes(19, 32), _bytes(20, 32), _bytes(21, 64), memoryview(b"masked vector")),
        messages.Survivors(names),
        view,
        messages.UnmaskRequest(names[1:], (view, view)),
        messages.Shares(shares, _bytes(22, 64)),
        result,
        messages.FinalModel("study-1", _bytes(32, 32), 3, 70_000, _bytes(33, 32), _bytes(34, 64), b"a model"),
        graph_messages.AdvertDigests(lines),
        choice,
        graph_messages.Neighbourhood((advert,), (choice, choice)),
        graph_messages.NeighbourSharing((envelope,), (seed, seed)),
        graph_messages.NeighbourDeliveries((envelope,), (seed,)),
        graph_messages.ProvenUnmaskRequest(names[1:], (view,), (proof, proof)),
        hello,
        encrypted_messages.KeyRequest((hello, encrypted_messages.KeyHello("west", b"", _bytes(29, 64)))),
        encrypted_messages.KeyPackages(b"public", (package, package)),
        encrypted_messages.KeyDelivery(b"public", package),
        encrypted_messages.Summed(spec, result, b"nonces", _bytes(35, 32), b"frames"),
        encrypted_messages.StateView("west", 70_000, _bytes(30, 32), _bytes(31, 64)),
        encrypted_messages.ClosedSum(spec, result, _bytes(38, 32), b"a closed vector"),
    ]


def test_there_is_an_example_of_every_message() -> None:
    assert [type(message) for message in _examples()] == list(ALL_MESSAGES)


@pytest.mark.parametrize("message", _examples(), ids=lambda message: type(message).__name__)
def test_byte_tables_of_protocol_md_give_the_bytes_of_the_code(message: Message) -> None:
    name = type(message).__name__
    documented = labels.PROTOCOL + bytes([message.TYPE]) + _encode_fields(name, message)
    assert documented == bytes(message.encode())


def test_signed_bodies_are_the_fields_before_the_signature() -> None:
    """The rule of section 3 for ``body(M)``."""
    for message in _examples():
        if isinstance(message, messages.Upload | messages.View) or not hasattr(message, "signature"):
            continue
        fields = _encode_fields(type(message).__name__, message)
        *_, last = table = _table_of(type(message).__name__)
        after = 0  # bytes behind the signature: the model itself, of which the body has the digest
        if isinstance(message, messages.FinalModel):
            assert last == ("model", "blob64")
            *_, last = table[:-1]
            after = 8 + len(message.model)
        assert last == ("signature", "bytes[64]")
        assert message.body() == fields[: -64 - after]  # type: ignore[attr-defined]


# Other formulas


def test_digest_rule_roster_and_layout_encodings_are_as_documented() -> None:
    """Sections 3, 5 and 6.1, written out once more."""

    def sized(data: bytes) -> bytes:
        return len(data).to_bytes(8, "big") + data

    def documented(label: str, encoding: bytes) -> bytes:
        return hashlib.sha256(sized(label.encode()) + sized(encoding)).digest()

    sites = [Identity.from_seed(name, _bytes(number, 32)) for number, name in enumerate(("a", "b"), start=1)]
    aggregator = Identity.from_seed("aggregator", _bytes(9, 32))
    members = b"".join(_encode("text", site.name) + site.public_bytes for site in sites)
    roster = aggregator.public_bytes + _encode("u32", 2) + members
    assert Roster.of(aggregator, sites).digest == documented("secfed/v1 roster digest", roster)

    layout = Layout(
        (Field("w", (2, 3), 4.0, 16), Field("n", (), 0.75, 64), Field("b", (3,), 1.0, 16)), sites=5
    )
    wire_order = (
        ("w", (2, 3), "0x1.0000000000000p+2", 16),
        ("b", (3,), "0x1.0000000000000p+0", 16),
        ("n", (), "0x1.8000000000000p-1", 64),
    )
    fields = b"".join(
        _encode("text", name) + _encode("[u64]", shape) + _encode("text", bound) + _encode("u8", bits)
        for name, shape, bound, bits in wire_order
    )
    encoding = _encode("u32", 5) + _encode("u32", 3) + fields
    assert layout.digest == documented("secfed/v1 layout digest", encoding)


def test_threshold_table_is_what_the_code_computes() -> None:
    rows = [tuple(map(int, cells)) for cells in _rows(_section(r"#?10\.2 Thresholds")) if cells[0].isdigit()]
    assert rows
    for sites, colluders, threshold, may_drop in rows:
        assert colluders == thresholds.default_colluders(sites)
        assert threshold == thresholds.default_threshold(sites, colluders)
        assert thresholds.is_safe(threshold, sites, colluders)
        assert may_drop == sites - threshold


def test_threshold_argument_holds_for_every_size_it_is_claimed_for() -> None:
    for roster in range(3, 201):
        colluders = thresholds.default_colluders(roster)
        threshold = thresholds.default_threshold(roster)
        assert 2 * threshold > roster + colluders
        assert threshold >= colluders + 2
        assert threshold == thresholds.default_threshold(roster, colluders)


def test_field_of_the_sharing_is_the_documented_one() -> None:
    assert "p = 2^256 + 297" in PROTOCOL
    assert shamir.PRIME == 2**256 + 297


def test_encryption_parameters_frames_and_words_are_as_documented() -> None:
    """Sections 12.2 to 12.4, written out once more."""

    def documented(label: str, encoding: bytes) -> bytes:
        sized = (len(data).to_bytes(8, "big") + data for data in (label.encode(), encoding))
        return hashlib.sha256(b"".join(sized)).digest()

    ring = Ring("bfv", "symmetric", 2048, 48, 0)
    numbers = _encode("u32", 2048) + _encode("u8", 48) + _encode("u8", 0)
    encoding = _encode("text", "bfv") + _encode("text", "symmetric") + numbers
    assert ring.digest == documented("secfed/v1 encryption ring digest", encoding)

    runs = (Run(20, 80_000), Run(64, 3))
    parameters = Parameters(ring, 40, 4, runs)
    listed = b"".join(_encode("u8", run.bits) + _encode("u64", run.count) for run in runs)
    encoding = ring.digest + _encode("u8", 40) + _encode("u32", 4) + _encode("u32", 2) + listed
    assert parameters.digest == documented("secfed/v1 encryption parameters digest", encoding)

    slots = 80_000 // (40 // 20) + 3 * (1 + -(-(64 - 40) // (40 - 2)))  # two lanes a slot; limbs of 38 bits
    ciphertexts = -(-slots // 2048)
    assert (parameters.slots, parameters.ciphertexts, parameters.frames) == (slots, ciphertexts, 2)
    for kind, number in ((UPLOAD, 1), (SUM, 2)):
        count = ciphertexts - 16
        head = b"SFBE\x01" + _encode("u8", number) + parameters.digest
        head += _encode("u32", 1) + _encode("u16", count)
        form = FrameFormat(parameters, kind)
        assert form.header(1) == head
        sizes = {UPLOAD: 2048 * 48 // 8 + 64, SUM: 2 * 2048 * 48 // 8}
        assert form.frame_bytes(1) == len(head) + count * sizes[kind]

    bits, columns = 37, 2
    words = [(number * 0x9E3779B97F4A7C15) >> 3 & (1 << bits) - 1 for number in range(64 * columns)]
    strings = [sum(words[i * columns + c] << (i * bits) for i in range(64)) for c in range(columns)]
    packed = b"".join(
        (strings[c] >> (64 * row) & (1 << 64) - 1).to_bytes(8, "little")
        for row in range(bits)
        for c in range(columns)
    )
    assert pack_words(np.array(words, np.uint64), bits) == packed


# Limits


def test_the_first_page_of_security_md_names_every_limit() -> None:
    first = SECURITY[SECURITY.index("## What is not promised\n") : SECURITY.index("## Reporting")]
    linked = set(re.findall(r"\]\(#([a-z0-9-]+)\)", first))
    at_length = SECURITY[SECURITY.index("## What is not protected\n") :]
    limits = [slug(heading) for heading in re.findall(r"(?m)^### (.+)$", at_length)]
    assert len(limits) > 20
    assert [limit for limit in limits if limit not in linked] == []
