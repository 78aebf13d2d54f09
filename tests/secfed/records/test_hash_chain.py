"""The chain: every change is found and named, however small and whoever made it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secfed.crypto import labels
from secfed.crypto.identity import Identity
from secfed.errors import TranscriptError
from secfed.records.hash_chain import (
    MAX_LINE_BYTES,
    START,
    BrokenChain,
    Chain,
    ChainType,
    canonical_json,
    verify_chain,
)
from secfed.records.transcript import TRANSCRIPT
from tests.secfed.chain_case import DATA, LINES, OTHER, OWNER, made, split_lines, transcript, verify

LEDGER = ChainType("ledger", labels.LEDGER_CHAIN, labels.SIGN_LEDGER)


def broken_line(lines: list[bytes], public_bytes: bytes = OWNER.public_bytes) -> int:
    """Number of the first bad line; fails if everything verifies."""
    with pytest.raises(BrokenChain) as caught:
        verify(lines, public_bytes)
    assert f"line {caught.value.line}:" in caught.value.message
    return caught.value.line


def resigned(line: bytes, identity: Identity, **changes: Any) -> bytes:
    """The line with changes, hashed and signed again by someone."""
    content = {**json.loads(line), **changes}
    forger = Chain(identity, TRANSCRIPT)
    forger._head, forger._next = bytes.fromhex(content["prev"]), content["seq"]
    return forger.append(content["kind"], content["body"]).line()


STRANGER = Identity("hospital-1", OTHER._identity_key)
RENAMED = Identity("hospital-9", OWNER._identity_key)


class TestChain:
    def test_verifies_what_was_written(self) -> None:
        entries = verify(LINES, OWNER.public_bytes)
        assert [entry.seq for entry in entries] == [0, 1, 2, 3, 4]
        assert entries[0].prev == START == bytes(32)
        assert entries[0].body == {"owner": "hospital-1", "study": "a-study", "roster_digest": "07" * 32}
        assert entries[3].body["text"] == 'tab\t"quote" \\ \u00e9'
        assert b"".join(entry.line() for entry in entries) == DATA

    def test_a_line_has_exactly_the_documented_keys(self) -> None:
        assert set(json.loads(LINES[1])) == {"seq", "prev", "kind", "body", "hash", "signature"}

    def test_head_commits_to_all_entries(self) -> None:
        written = transcript()
        heads = {written.head}
        for number in range(5):
            written.append("note", {"n": number})
            heads.add(written.head)
        assert len(heads) == 6
        assert len(written) == 6

    def test_equal_content_gives_equal_bytes(self) -> None:
        assert made() == LINES

    @settings(max_examples=400)
    @given(at=st.integers(0, len(DATA) - 1), mask=st.integers(1, 255))
    def test_any_changed_byte_is_found_in_its_line(self, at: int, mask: int) -> None:
        changed = bytearray(DATA)
        changed[at] ^= mask
        line = DATA[:at].count(b"\n") + 1
        assert broken_line(split_lines(changed)) == line

    def test_every_single_byte_of_a_short_chain_matters(self) -> None:
        data = b"".join(made(2))
        for at in range(len(data)):
            changed = bytearray(data)
            changed[at] ^= 0x01
            assert broken_line(split_lines(changed)) == data[:at].count(b"\n") + 1

    @settings(max_examples=100)
    @given(at=st.integers(0, len(DATA) - 1), insert=st.binary(min_size=1, max_size=3))
    def test_inserted_bytes_are_found(self, at: int, insert: bytes) -> None:
        data = DATA[:at] + insert + DATA[at:]
        if data != DATA:
            broken_line(split_lines(data))

    @pytest.mark.parametrize(
        ("lines", "bad"),
        [
            ([LINES[0], LINES[2], LINES[1], *LINES[3:]], 2),
            ([*LINES[:2], *LINES[3:]], 3),
            (LINES[1:], 1),
            ([*LINES[:3], LINES[2], *LINES[3:]], 4),
            ([], 1),
            ([LINES[0], made(2, study="another-study")[1]], 2),
            ([*LINES[:2], resigned(LINES[2], STRANGER, body={"n": 99}), *LINES[3:]], 3),
            ([*LINES[:2], resigned(LINES[2], OWNER, body={"n": 99}), *LINES[3:]], 4),
            ([*LINES[:2], resigned(LINES[2], RENAMED), *LINES[3:]], 3),
            ([*LINES[:2], resigned(LINES[2], OWNER, seq=7)], 3),
            ([*LINES[:2], resigned(LINES[2], OWNER, kind="opened")], 3),
        ],
        ids=[
            "swapped",
            "missing",
            "no opening",
            "repeated",
            "empty",
            "of another transcript",
            "signed by a stranger",
            "rewritten by its owner: the next one breaks",
            "the owner's name is in every hash",
            "numbered wrongly by its owner",
            "opened twice by its owner",
        ],
    )
    def test_a_tampered_chain_is_found_in_its_first_bad_line(self, lines: list[bytes], bad: int) -> None:
        assert broken_line(lines) == bad

    def test_the_wrong_key_is_found_in_the_first_line(self) -> None:
        assert broken_line(LINES, OTHER.public_bytes) == 1

    def test_another_owner_than_expected_is_found(self) -> None:
        with pytest.raises(BrokenChain, match="belongs to 'hospital-1', not to 'hospital-2'"):
            verify(LINES, OWNER.public_bytes, owner="hospital-2")

    def test_an_entry_of_another_history_of_the_same_owner_does_not_fit(self) -> None:
        """Both are signed, of the same number: only what stands before an entry tells them apart."""
        other: list[bytes] = []
        written = transcript(other.append)
        for number in range(1, 4):
            written.append("note", {"n": 10 * number})
        moved = json.loads(other[2]) | {"prev": json.loads(LINES[2])["prev"]}
        assert broken_line([*LINES[:2], canonical_json(moved) + b"\n"]) == 3

    def test_the_hash_is_the_documented_one(self) -> None:
        """SHA-256 of label, previous hash and {body, kind, owner, seq}, each after its length in 8 bytes."""
        entry = json.loads(LINES[3])
        content = {name: entry[name] for name in ("body", "kind", "seq")} | {"owner": "hospital-1"}
        said = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        parts = (b"secfed/v1 transcript chain", bytes.fromhex(entry["prev"]), said)
        framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        assert hashlib.sha256(framed).hexdigest() == entry["hash"]

    def test_a_first_entry_that_opens_nothing_is_found(self) -> None:
        lines: list[bytes] = []
        Chain(OWNER, TRANSCRIPT, sink=lines.append).append("note", {"owner": "hospital-1"})
        assert broken_line(lines) == 1

    def test_a_line_above_the_cap_is_refused_even_if_the_owner_signed_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines: list[bytes] = []
        written = transcript(lines.append)
        with monkeypatch.context() as patch:
            patch.setattr("secfed.records.hash_chain.MAX_LINE_BYTES", 1 << 30)
            written.append("note", {"text": "x" * MAX_LINE_BYTES})
        assert broken_line(lines) == 2

    def test_a_transcript_is_not_a_ledger(self) -> None:
        with pytest.raises(BrokenChain, match="ledger, line 1"):
            verify_chain(LINES, OWNER.public_bytes, LEDGER)

    def test_other_labels_make_a_chain_of_their_own(self) -> None:
        lines: list[bytes] = []
        chain = Chain(OWNER, LEDGER, sink=lines.append)
        chain.append("opened", {"owner": "hospital-1"})
        chain.append("spend", {"epsilon": 0.5})
        assert len(verify_chain(lines, OWNER.public_bytes, LEDGER)) == 2

    @pytest.mark.parametrize(
        "respell",
        [
            lambda line: line.replace(b'","', b'", "', 1),
            lambda line: line.replace(b"0.1", b"0.10"),
            lambda line: line.replace(b"0.1", b"1e-1"),
            lambda line: line.replace(b"\\u00e9", "\u00e9".encode()),
            lambda line: line.replace(b"\\t", b"\\u0009"),
            lambda line: (
                json.dumps(dict(reversed(json.loads(line).items())), separators=(",", ":")).encode() + b"\n"
            ),
            lambda line: line.replace(b'{"body":', b'{"body":{},"body":', 1),
            lambda line: line[:-1] + b"\r\n",
            lambda line: (
                json.dumps(
                    {**json.loads(line), "hash": json.loads(line)["hash"].upper()},
                    sort_keys=True,
                    separators=(",", ":"),
                ).encode()
                + b"\n"
            ),
        ],
        ids=["space", "zero", "exponent", "utf8", "escape", "order", "twice", "crlf", "hex"],
    )
    def test_another_spelling_of_the_same_entry_is_refused(self, respell: Callable[[bytes], bytes]) -> None:
        respelt = respell(LINES[1])
        assert respelt != LINES[1]
        assert broken_line([LINES[0], respelt, *LINES[2:]]) == 2

    @pytest.mark.parametrize(
        "line",
        [
            b"\n",
            b"null\n",
            b"[]\n",
            b"{}\n",
            b"[" * 100_000 + b"\n",
            b"1e999\n",
            b"9" * 5000 + b"\n",
            b"\xff\xfe{\x00}\x00\n",
            b"x" * (MAX_LINE_BYTES + 1) + b"\n",
        ],
    )
    def test_garbage_lines_are_refused_without_another_error(self, line: bytes) -> None:
        assert broken_line([LINES[0], line]) == 2

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("seq", True),
            ("seq", "1"),
            ("kind", 3),
            ("body", []),
            ("hash", "0g"),
            ("prev", None),
            ("signature", "aa "),
        ],
    )
    def test_a_field_of_the_wrong_type_is_refused(self, key: str, value: Any) -> None:
        line = canonical_json({**json.loads(LINES[1]), key: value}) + b"\n"
        assert broken_line([LINES[0], line]) == 2

    @pytest.mark.parametrize(
        "value",
        [
            float("nan"),
            float("inf"),
            2**53 + 1,
            b"bytes",
            {1: 2},
            {"deep": [[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]},
        ],
        ids=["nan", "inf", "big", "bytes", "key", "deep"],
    )
    def test_what_json_cannot_express_is_refused_and_leaves_the_chain_as_it_was(self, value: Any) -> None:
        lines: list[bytes] = []
        written = transcript(lines.append)
        head = written.head
        with pytest.raises(TranscriptError):
            written.append("note", {"value": value})
        assert written.head == head
        written.append("note", {"value": 1})
        assert len(verify(lines, OWNER.public_bytes)) == 2

    def test_an_entry_longer_than_the_cap_is_refused(self) -> None:
        with pytest.raises(TranscriptError, match="longer than"):
            transcript().append("note", {"text": "x" * MAX_LINE_BYTES})

    def test_an_entry_counts_only_once_the_sink_has_taken_it(self) -> None:
        written = transcript()
        head = written.head

        def fail(_: bytes) -> None:
            raise TranscriptError("disk full")

        written._chain._sink = fail
        with pytest.raises(TranscriptError, match="disk full"):
            written.append("note", {})
        assert (written.head, len(written)) == (head, 1)

    def test_the_caller_cannot_change_an_entry_afterwards(self) -> None:
        body = {"sites": ["a"]}
        entry = transcript().append("note", body)
        body["sites"].append("b")
        assert entry.body == {"sites": ["a"]}
