"""The documents say what the code does: numbers, labels, messages, byte tables, links.

The byte tables of docs/protocol.md are executed: an encoder that knows only those tables must give the
bytes that crypto/messages.py gives.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from secfed.crypto import labels, messages, shamir, thresholds
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.labels import STUDY_DIGEST
from secfed.crypto.messages import Envelope, MaskSecretShare, Message, SelfMaskShare
from secfed.crypto.refusals import Refusal
from secfed.vector import Field, Layout

ROOT: Final = Path(__file__).parents[1]
SECURITY: Final = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROTOCOL: Final = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
NOT_OURS: Final = {"wheelhouse", "runs", "build", "dist", "node_modules", "shared"}


def _documents() -> list[Path]:
    found = []
    for path in sorted(ROOT.rglob("*.md")):
        inside = path.relative_to(ROOT).parts[:-1]
        if not any(part.startswith(".") or part in NOT_OURS for part in inside):
            found.append(path)
    return found


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


def test_refusal_numbers_are_consecutive_from_one() -> None:
    assert [refusal.number for refusal in Refusal] == list(range(1, len(Refusal) + 1))


def test_protocol_md_says_where_each_refusal_comes_from() -> None:
    section_7 = PROTOCOL[PROTOCOL.index("\n## 7. ") : PROTOCOL.index("\n## 8. ")]
    named = {int(number) for number in re.findall(r"\bR(\d+)\b", section_7)}
    assert named == {refusal.number for refusal in Refusal}


# Labels


def _modules_of_the_masked_protocol() -> set[Path]:
    """What the two state machines import from crypto/, directly or not, and the callers around them."""
    todo, found = ["masked_site", "masked_server"], set()
    while todo:
        path = ROOT / "crypto" / f"{todo.pop()}.py"
        if path not in found and path.exists():
            found.add(path)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module == "secfed.crypto":
                    todo += [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("secfed.crypto."):
                    todo.append(str(node.module).rpartition(".")[2])
    callers = {ROOT / "secfed" / name for name in ("vector.py", "round.py", "protection.py", "transcript.py")}
    return (found | callers) - {ROOT / "crypto" / "labels.py"}


def _labels_of_the_masked_protocol() -> dict[str, bytes]:
    """Labels that the modules of the protocol use, by name."""
    text = "".join(path.read_text(encoding="utf-8") for path in _modules_of_the_masked_protocol())
    return {name: getattr(labels, name) for name in set(re.findall(r"\blabels\.([A-Z][A-Z0-9_]*)", text))}


def test_the_scan_for_labels_finds_them() -> None:
    assert {"PROTOCOL", "SIGN_VIEW", "DERIVE_MASK_KEY_X25519", "LAYOUT_DIGEST", "TOTALS_DIGEST"} <= set(
        _labels_of_the_masked_protocol()
    )


def test_protocol_md_explains_every_label_in_use() -> None:
    explained = {cells[0].strip("`").encode() for cells in _rows(_section("4. Labels"))}
    missing = {name for name, label in _labels_of_the_masked_protocol().items() if label not in explained}
    assert not missing


def test_protocol_md_knows_no_label_that_the_code_does_not() -> None:
    defined = {value for name, value in vars(labels).items() if name.isupper()} | {STUDY_DIGEST}
    explained = {cells[0].strip("`").encode() for cells in _rows(_section("4. Labels"))}
    assert {label for label in explained if label.startswith(labels.PROTOCOL)} <= defined


# Messages


def test_protocol_md_numbers_the_messages_as_the_code_does() -> None:
    listed = {int(cells[1]): cells[2] for cells in _rows(_section("7. Messages")) if cells[0].isdigit()}
    assert listed == {kind.TYPE: kind.__name__ for kind in messages.ALL}
    headings = {int(number): name for number, name in re.findall(r"(?m)^### Type (\d+): (\w+)$", PROTOCOL)}
    assert headings == listed


@cache
def _table(title: str) -> tuple[tuple[str, str], ...]:
    """(field, type) of one byte table."""
    rows = [cells for cells in _rows(_section(title)) if re.fullmatch(r"`\w+`", cells[0])]
    assert rows, f"the section {title!r} has no byte table"
    return tuple((cells[0].strip("`"), cells[1].strip("`")) for cells in rows)


def _table_of(name: str) -> tuple[tuple[str, str], ...]:
    for kind in messages.ALL:
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
    envelope = Envelope("spital-ä", "west", _bytes(9, 1168), _bytes(10, 1202), _bytes(11, 64))
    view = messages.View("west", _bytes(12, 64))
    shares = (SelfMaskShare("spital-ä", _bytes(13, 33)), MaskSecretShare("west", _bytes(14, 33)))
    names = ("spital-ä", "west")
    return [
        messages.Specification(
            "study-1",
            70_000,
            3,
            "update",
            2,
            names,
            2,
            _bytes(15, 32),
            _bytes(16, 32),
            _bytes(17, 32),
            _bytes(18, 64),
        ),
        advert,
        messages.Adverts((advert, other)),
        messages.Sharing((envelope,)),
        messages.Deliveries((envelope, envelope)),
        messages.Upload(_bytes(19, 32), _bytes(20, 32), _bytes(21, 64), memoryview(b"masked vector")),
        messages.Survivors(names),
        view,
        messages.UnmaskRequest(names[1:], (view, view)),
        messages.Shares(shares, _bytes(22, 64)),
        messages.Result(_bytes(23, 32), names, _bytes(24, 32), _bytes(25, 64)),
    ]


def test_there_is_an_example_of_every_message() -> None:
    assert [type(message) for message in _examples()] == list(messages.ALL)


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
        assert _table_of(type(message).__name__)[-1] == ("signature", "bytes[64]")
        assert message.body() == fields[:-64]  # type: ignore[attr-defined]


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


# All documents


def _slug(heading: str) -> str:
    """The anchor of a heading, as common Markdown renderers make it."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def _prose(path: Path) -> str:
    """A document without its code blocks."""
    return re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", _documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(path)):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{target} does not exist"
        assert found.is_relative_to(ROOT), f"{target} leads out of the repository"
        if anchor:
            headings = re.findall(r"(?m)^#+ (.+)$", _prose(found))
            assert anchor in {_slug(heading) for heading in headings}, f"{target}: no such heading"


PRIVATE: Final = (
    r"(?<![\w.])/(?:work|tmp|root|home)/",
    r"\bpypi\.(?:org|python\.org)",
    r"pythonhosted\.org",
    r"download\.pytorch\.org",
    r"\b(?:npmjs|anaconda)\.(?:org|com)\b",
    r"\bcrates\.io\b",
    r"https?://[^\s)]*/simple\b",
    r"--(?:extra-)?index-url\b",
)


@pytest.mark.parametrize("path", _documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_names_a_private_path_or_a_package_registry(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for pattern in PRIVATE:
        assert not re.search(pattern, text), f"matches {pattern}"


def test_all_documents_are_looked_at() -> None:
    names = {str(path.relative_to(ROOT)) for path in _documents()}
    assert {"README.md", "SECURITY.md", "CHANGELOG.md", "docs/protocol.md"} <= names
