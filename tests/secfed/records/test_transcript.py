"""Transcripts and their files: a crash loses at most one unfinished line, and never silently."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secfed.crypto import labels
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.messages import Result, Specification
from secfed.errors import BadSignature, DiskFull, RosterError, TranscriptError
from secfed.records import chain_file
from secfed.records.chain_file import is_torn_entry, verify_file
from secfed.records.hash_chain import BrokenChain
from secfed.records.roster_file import ROSTER_FILE, read_roster, write_roster
from secfed.records.transcript import RECOVERED, SUMMED, TRANSCRIPT, SumRecord, Transcript
from tests.kill import failing
from tests.secfed.chain_case import DATA, LINES, OTHER, OWNER, ROSTER_DIGEST, transcript, verify


class TestFile:
    def test_a_file_is_continued(self, tmp_path: Path) -> None:
        path = tmp_path / "sites" / "hospital-1" / "transcript.jsonl"
        with transcript(path) as first:
            first.append("note", {"n": 1})
            head = first.head
        with transcript(path) as second:
            assert (second.head, len(second)) == (head, 2)
            second.append("note", {"n": 2})
        entries = verify_file(path, OWNER.public_bytes, TRANSCRIPT, owner="hospital-1")
        assert [entry.kind for entry in entries] == ["opened", "note", "note"]

    def test_an_entry_is_synchronised_before_append_returns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "t.jsonl"
        synchronised: list[int] = []
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            synchronised.append(os.path.getsize(path))

        monkeypatch.setattr(chain_file.os, "fsync", fsync)
        with transcript(path) as written:
            for number in range(3):
                written.append("note", {"n": number})
                assert synchronised[-1] == path.stat().st_size

    @settings(max_examples=60)
    @given(kept=st.integers(1, len(LINES[-1]) - 2))
    def test_an_unfinished_last_line_is_dropped_and_recorded(
        self, tmp_path_factory: pytest.TempPathFactory, kept: int
    ) -> None:
        path = tmp_path_factory.mktemp("torn") / "t.jsonl"
        path.write_bytes(b"".join(LINES[:-1]) + LINES[-1][:kept])
        with pytest.raises(BrokenChain, match="line 5: incomplete"):
            verify_file(path, OWNER.public_bytes, TRANSCRIPT)
        with transcript(path) as written:
            written.append("note", {"after": "the crash"})
        entries = verify_file(path, OWNER.public_bytes, TRANSCRIPT)
        assert [entry.line() for entry in entries[:4]] == LINES[:4]
        assert (entries[4].kind, entries[4].body["dropped_bytes"]) == (RECOVERED, kept)
        assert len(entries) == 6

    def test_a_last_line_without_its_newline_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        path.write_bytes(DATA[:-1])
        with transcript(path) as written:
            written.append("note", {"n": 5})
        entries = verify_file(path, OWNER.public_bytes, TRANSCRIPT)
        assert [entry.line() for entry in entries[:5]] == LINES
        assert len(entries) == 6

    def test_an_unfinished_first_line_gives_a_fresh_transcript(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        path.write_bytes(LINES[0][:40])
        transcript(path).close()
        assert [entry.kind for entry in verify_file(path, OWNER.public_bytes, TRANSCRIPT)] == [
            "opened",
            RECOVERED,
        ]

    @pytest.mark.parametrize(
        "tail",
        [
            b"\0" * 64 + b"\n",
            b"garbage",
            LINES[-1][:-1] + b"}",
            b"{}",
            b'{"body":\xc3',
            LINES[-1][:20] + b"\0",
        ],
        ids=["zeros", "text", "closed", "empty", "bytes", "mixed"],
    )
    def test_a_tail_that_is_no_torn_entry_is_reported_and_left_alone(
        self, tmp_path: Path, tail: bytes
    ) -> None:
        path = tmp_path / "t.jsonl"
        before = b"".join(LINES[:-1]) + tail
        path.write_bytes(before)
        with pytest.raises(BrokenChain, match="line 5"):
            transcript(path)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("count", [1, 500, 3 << 20])
    def test_zeros_that_a_power_cut_left_are_dropped_and_recorded(self, tmp_path: Path, count: int) -> None:
        path = tmp_path / "t.jsonl"
        path.write_bytes(DATA + b"\0" * count)
        with transcript(path) as written:
            written.append("note", {"after": "the power cut"})
        entries = verify_file(path, OWNER.public_bytes, TRANSCRIPT)
        assert [entry.line() for entry in entries[:5]] == LINES
        assert (entries[5].kind, entries[5].body["dropped_bytes"]) == (RECOVERED, count)
        assert len(entries) == 7

    def test_a_file_that_does_not_verify_is_named_with_a_remedy_for_its_owner(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        path.write_bytes(LINES[0] + b"garbage\n")
        for use in (lambda: transcript(path), lambda: verify_file(path, OWNER.public_bytes, TRANSCRIPT)):
            with pytest.raises(BrokenChain) as caught:
                use()
            assert caught.value.message == f"{path}, line 2: not a JSON entry."
            assert "docs/operators.md, back up and restore" in caught.value.remedy
            assert caught.value.line == 2

    def test_a_pipe_is_refused_and_keeps_nobody_waiting(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        os.mkfifo(path)
        for use in (lambda: transcript(path), lambda: verify_file(path, OWNER.public_bytes, TRANSCRIPT)):
            with pytest.raises(TranscriptError, match=r"t\.jsonl: it is not a regular file"):
                use()

    def test_a_damaged_middle_is_not_repaired_even_if_the_tail_is_torn(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        before = LINES[0] + LINES[2] + LINES[3][:50]
        path.write_bytes(before)
        with pytest.raises(BrokenChain, match="line 2"):
            transcript(path)
        assert path.read_bytes() == before

    @given(
        fragment=st.sampled_from(LINES).flatmap(
            lambda line: st.integers(1, len(line) - 2).map(lambda n: line[:n])
        )
    )
    def test_every_beginning_of_an_entry_is_recognised_as_torn(self, fragment: bytes) -> None:
        assert is_torn_entry(fragment)

    def test_a_full_disk_is_reported_and_leaves_no_half_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "t.jsonl"
        with transcript(path) as written:
            written.append("note", {"n": 1})
            before = path.read_bytes()
            with monkeypatch.context() as patch:
                patch.setattr(chain_file.os, "fsync", failing(errno.ENOSPC))
                with pytest.raises(TranscriptError, match="No space left") as caught:
                    written.append("note", {"n": 2})
                assert "free space" in caught.value.remedy
                assert caught.value.exit_code == DiskFull.exit_code  # its unit starts it again
            assert path.read_bytes() == before
            with pytest.raises(TranscriptError, match="earlier write failed"):
                written.append("note", {"n": 2})
        with transcript(path) as again:
            again.append("note", {"n": 2})
        assert len(verify_file(path, OWNER.public_bytes, TRANSCRIPT)) == 3

    @pytest.mark.parametrize("left", ["nothing", "a beginning", "the line"])
    def test_after_a_failed_write_it_is_mended_only_where_it_holds_what_was_added(
        self, left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "t.jsonl"
        with transcript(path) as written:
            written.mend()  # nothing has failed
            before = path.stat().st_size
            with monkeypatch.context() as patch:
                patch.setattr(chain_file.os, "fsync", failing(errno.ENOSPC))
                if left != "nothing":
                    patch.setattr(chain_file.os, "ftruncate", failing(errno.EIO))
                with pytest.raises(TranscriptError, match="No space left"):
                    written.append("note", {"n": 1})
            if left == "a beginning":
                os.truncate(path, before + 9)
            if left == "the line":
                with pytest.raises(TranscriptError, match="ends with another entry"):
                    written.mend()
                with pytest.raises(TranscriptError, match="earlier write failed"):
                    written.append("note", {"n": 1})
                return
            written.mend()
            written.append("note", {"n": 1})
        kinds = [entry.kind for entry in verify_file(path, OWNER.public_bytes, TRANSCRIPT)]
        assert kinds == ["opened", *([RECOVERED] if left == "a beginning" else []), "note"]

    def test_two_writers_are_refused(self, tmp_path: Path) -> None:
        with transcript(tmp_path / "t.jsonl"), pytest.raises(TranscriptError, match="another process"):
            transcript(tmp_path / "t.jsonl")
        transcript(tmp_path / "t.jsonl").close()

    @pytest.mark.parametrize(
        ("changes", "what"),
        [({"study": "another"}, "another study"), ({"roster_digest": bytes(32)}, "another roster digest")],
    )
    def test_a_file_of_another_study_or_roster_is_not_continued(
        self, tmp_path: Path, changes: dict[str, Any], what: str
    ) -> None:
        path = tmp_path / "t.jsonl"
        transcript(path).close()
        with pytest.raises(TranscriptError, match=what):
            Transcript(OWNER, **{"study": "a-study", "roster_digest": ROSTER_DIGEST, "sink": path, **changes})
        transcript(path).close()  # the failed attempt gave up its lock

    def test_a_file_of_another_owner_is_not_continued(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        transcript(path).close()
        with pytest.raises(BrokenChain, match="line 1: it belongs to 'hospital-1'"):
            transcript(path, identity=OTHER)

    def test_a_missing_file_is_one_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(TranscriptError, match="No such file"):
            verify_file(tmp_path / "none.jsonl", OWNER.public_bytes, TRANSCRIPT)

    def test_a_killed_writer_loses_no_finished_entry(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        program = (
            "import sys; from pathlib import Path; from secfed.crypto.identity import Identity\n"
            "from secfed.records.transcript import Transcript\n"
            "t = Transcript(Identity.from_seed('hospital-1', bytes([1]) * 32), study='a-study',"
            " roster_digest=bytes([7]) * 32, sink=Path(sys.argv[1]))\n"
            "for n in range(10**6):\n"
            "    t.append('note', {'n': n}); print(n, flush=True)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            reported = [int(writer.stdout.readline()) for _ in range(20)]
            writer.send_signal(signal.SIGKILL)
            reported += [int(line) for line in writer.stdout if line.endswith("\n")]
        transcript(path).close()
        entries = verify_file(path, OWNER.public_bytes, TRANSCRIPT)
        noted = [entry.body["n"] for entry in entries if entry.kind == "note"]
        assert noted[: len(reported)] == reported


AGGREGATOR = Identity.from_seed("aggregator", bytes([9]) * 32)


def summed() -> SumRecord:
    spec = Specification("a-study", 3, 0, "fit", 1, ("a", "b", "c"), 3, bytes(32), bytes(32), bytes(32))
    survivors, totals = ("a", "c"), bytes([5]) * 32
    signature = AGGREGATOR.sign(labels.SIGN_RESULT, Result(spec.digest, survivors, totals).body())
    return SumRecord.of(spec, Result(spec.digest, survivors, totals, signature))


class TestSumRecord:
    def test_survives_the_way_through_a_transcript(self) -> None:
        lines: list[bytes] = []
        transcript(lines.append).append(SUMMED, {**summed().to_body(), "threshold": 3})
        assert SumRecord.from_body(verify(lines, OWNER.public_bytes)[1].body) == summed()

    def test_carries_the_aggregators_signature_over_the_result(self) -> None:
        summed().check_signature(AGGREGATOR.public_bytes)
        with pytest.raises(BadSignature):
            summed().check_signature(OTHER.public_bytes)

    @pytest.mark.parametrize(
        "changed", [{"survivors": ("a", "b")}, {"totals_digest": bytes(32)}, {"spec_digest": bytes(32)}]
    )
    def test_a_changed_result_has_no_valid_signature(self, changed: dict[str, Any]) -> None:
        with pytest.raises(BadSignature):
            replace(summed(), **changed).check_signature(AGGREGATOR.public_bytes)

    @pytest.mark.parametrize(
        "changed",
        [
            {"round": "3"},
            {"attempt": None},
            {"survivors": "abc"},
            {"survivors": [1]},
            {"spec_digest": "zz"},
            {"totals_digest": "00"},
            {"result_signature": 5},
        ],
    )
    def test_a_malformed_body_is_one_clear_error(self, changed: dict[str, Any]) -> None:
        with pytest.raises(TranscriptError):
            SumRecord.from_body({**summed().to_body(), **changed})

    def test_an_entry_of_an_older_version_has_no_exchange_index(self) -> None:
        body = summed().to_body()
        assert SumRecord.from_body(body).exchange_index == body.pop("exchange_index")
        old = SumRecord.from_body(body)
        assert old.exchange_index is None
        assert old.to_body() == body
        with pytest.raises(TranscriptError, match="exchange index"):
            SumRecord.from_body({**body, "exchange_index": "0"})

    def test_a_missing_key_is_one_clear_error(self) -> None:
        for name in summed().to_body().keys() - {"exchange_index"}:
            body = summed().to_body()
            del body[name]
            with pytest.raises(TranscriptError):
                SumRecord.from_body(body)


def test_no_roster_is_written_in_which_a_site_has_the_aggregators_name(tmp_path: Path) -> None:
    """Records are kept by owner: the site's would be taken for the aggregator's. One that exists is read."""
    people = [Identity.generate("aggregator"), Identity.generate("hospital-1")]
    roster = Roster.of(Identity.generate("aggregator"), people)
    with pytest.raises(RosterError, match="no site may be called 'aggregator'"):
        write_roster(tmp_path / ROSTER_FILE, roster)
    content = {"aggregator": roster.aggregator.hex(), "digest": roster.digest.hex()}
    sites = {site: public.hex() for site, public in roster.members}
    (tmp_path / ROSTER_FILE).write_text(json.dumps({**content, "sites": sites}))
    assert read_roster(tmp_path / ROSTER_FILE) == roster
