"""``secfed transcript verify``: every disagreement between two parties is found, named and exits non-zero."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secfed.audit.transcript_check import verify_run
from secfed.cli.app import app
from secfed.crypto import labels
from secfed.crypto.identity import Identity, Roster, grouped
from secfed.crypto.messages import Result, Specification
from secfed.errors import TranscriptError
from secfed.records.roster_file import ROSTER_FILE, write_roster
from secfed.records.transcript import CLOSED, FOLLOWED, SUMMED, SumRecord, Transcript
from secfed.runs.run_folder import TRANSCRIPT_FILE, site_folder

AGGREGATOR = Identity.from_seed("aggregator", bytes([9]) * 32)
SITES = {name: Identity.from_seed(name, bytes([n]) * 32) for n, name in enumerate(("a", "b", "c", "d"), 1)}
ROSTER = Roster.of(AGGREGATOR, list(SITES.values()))
STUDY = "heart-study"
Change = Callable[[str, SumRecord], SumRecord | None]


def a_sum(number: int, survivors: tuple[str, ...] = ("a", "b", "c"), attempt: int = 0) -> SumRecord:
    spec = Specification(
        STUDY, number, 0, "fit", attempt, tuple(SITES), 3, ROSTER.digest, bytes(32), bytes([number]) * 32
    )
    result = Result(spec.digest, survivors, bytes([number + 100]) * 32)
    return SumRecord.of(spec, replace(result, signature=AGGREGATOR.sign(labels.SIGN_RESULT, result.body())))


def signed(record: SumRecord) -> SumRecord:
    """The record with the aggregator's signature over what it now says."""
    body = Result(record.spec_digest, record.survivors, record.totals_digest).body()
    return replace(record, result_signature=AGGREGATOR.sign(labels.SIGN_RESULT, body))


def write(
    folder: Path,
    change: Change = lambda owner, record: record,
    *,
    study: Callable[[str], str] = lambda owner: STUDY,
    roster_digest: Callable[[str], bytes] = lambda owner: ROSTER.digest,
    sums: tuple[SumRecord, ...] = (a_sum(1), a_sum(2, ("a", "b", "c", "d")), a_sum(3)),
) -> Path:
    """A run's folder in which ``change`` may alter (or drop) what an owner records."""
    for owner, identity in {"": AGGREGATOR, **SITES}.items():
        path = (site_folder(folder, owner) if owner else folder) / TRANSCRIPT_FILE
        with Transcript(identity, study=study(owner), roster_digest=roster_digest(owner), sink=path) as log:
            for record in sums:
                told = change(owner, record) if not owner or owner in record.survivors else None
                if told is not None:
                    log.append(SUMMED, told.to_body())
    write_roster(folder / ROSTER_FILE, ROSTER)
    return folder


def append(folder: Path, owner: str, kind: str, body: dict[str, Any]) -> None:
    """One more entry in a transcript; the aggregator's owner is empty."""
    path = (site_folder(folder, owner) if owner else folder) / TRANSCRIPT_FILE
    identity = SITES.get(owner, AGGREGATOR)
    with Transcript(identity, study=STUDY, roster_digest=ROSTER.digest, sink=path) as log:
        log.append(kind, body)


def problems(folder: Path) -> list[tuple[str, int | None, str]]:
    verdict = verify_run(folder, ROSTER)
    return [(item.file.removeprefix(f"{folder}/"), item.line, item.why) for item in verdict.problems]


def only(owner: str, round_number: int, **changes: Any) -> Change:
    """Change one owner's record of one round and let the aggregator sign it."""

    def change(who: str, record: SumRecord) -> SumRecord:
        here = who == owner and record.round == round_number
        return signed(replace(record, **changes)) if here else record

    return change


class TestAgreement:
    def test_an_honest_run_verifies(self, tmp_path: Path) -> None:
        verdict = verify_run(write(tmp_path), ROSTER)
        assert (verdict.problems, verdict.parties[0].study, verdict.absent) == ([], STUDY, [])
        counts = {
            one.owner: (len(one.entries), len(one.summed), verdict.expected(one)) for one in verdict.parties
        }
        assert counts == {**dict.fromkeys(("aggregator", "a", "b", "c"), (4, 3, 3)), "d": (2, 1, 1)}

    def test_a_transcript_is_open_until_it_is_closed_behind_its_last_sum(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        for owner in ("", *SITES):
            append(folder, owner, CLOSED, {"sums": 1 if owner == "d" else 3})
        assert (problems(folder), verify_run(folder, ROSTER).notes) == ([], [])
        append(folder, "a", SUMMED, a_sum(9, ("a", "b", "c")).to_body())
        verdict = verify_run(folder, ROSTER)
        assert [party.owner for party in verdict.parties if party.is_open] == ["a"]
        assert any("open, without a closing entry" in note for note in verdict.notes)
        append(folder, "d", CLOSED, {"sums": 2})
        assert ("sites/d/transcript.jsonl", 4, "it was closed after 2 sums, and it has 1") in problems(folder)

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"survivors": ("a", "b")}, "survivors differs from the aggregator's line 3"),
            ({"totals_digest": bytes(32)}, "totals digest differs from the aggregator's line 3"),
            ({"spec_digest": bytes(32)}, "another specification than the aggregator's line 3"),
            ({"attempt": 5}, "attempt differs from the aggregator's line 3"),
            ({"round": 7}, "round differs from the aggregator's line 3"),
        ],
    )
    def test_a_site_that_was_told_something_else_is_found(
        self, tmp_path: Path, changes: dict[str, Any], why: str
    ) -> None:
        ((path, line, reason),) = problems(write(tmp_path, only("b", 2, **changes)))
        assert (path, line) == ("sites/b/transcript.jsonl", 3)
        assert why in reason

    def test_a_sum_that_the_aggregator_hides_is_found(self, tmp_path: Path) -> None:
        folder = write(tmp_path, lambda owner, record: None if not owner and record.round == 3 else record)
        found = problems(folder)
        assert {path for path, _, _ in found} == {f"sites/{site}/transcript.jsonl" for site in "abc"}
        assert all(line == 4 and "no such sum" in why for _, line, why in found)

    def test_a_site_that_is_not_among_the_survivors_it_was_shown_is_found(self, tmp_path: Path) -> None:
        record = a_sum(2, ("b", "c", "d"))
        folder = write(tmp_path, sums=(record,))
        append(folder, "a", SUMMED, record.to_body())
        assert problems(folder) == [
            ("sites/a/transcript.jsonl", 2, "round 2, exchange 'fit': this site is not among the survivors")
        ]

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({}, None),
            ({"totals_digest": bytes(32)}, "totals digest differs from the aggregator's line 2"),
            ({"survivors": ("a", "b")}, "survivors differs from the aggregator's line 2"),
            ({"spec_digest": bytes(32)}, "another specification than the aggregator's line 2"),
            ({"result_signature": bytes(64)}, "a signature of 'aggregator' does not verify"),
        ],
    )
    def test_a_site_that_followed_another_sum_than_the_aggregators_is_found(
        self, tmp_path: Path, changes: dict[str, Any], why: str | None
    ) -> None:
        """Under encrypted protection a site takes sums that it is not in: another one is another model."""
        record = a_sum(1)
        folder = write(tmp_path, sums=(record,))
        told = replace(record, **changes)
        told = told if "result_signature" in changes else signed(told)
        append(folder, "d", FOLLOWED, told.to_body())
        assert [(name, line) for name, line, _ in problems(folder)] == (
            [] if why is None else [("sites/d/transcript.jsonl", 2)]
        )
        assert all(why in reason for _, _, reason in problems(folder) if why is not None)

    def test_a_name_that_no_message_can_carry_is_found(self, tmp_path: Path) -> None:
        """JSON permits half of a surrogate pair; the other transcripts are verified all the same."""
        record = replace(a_sum(1), survivors=("a", "b", "c", "\ud800"))
        folder = write(tmp_path, lambda owner, told: record if owner == "b" else told, sums=(a_sum(1),))
        found = problems(folder)
        assert [(name, line) for name, line, _ in found] == [("sites/b/transcript.jsonl", 2)]

    def test_an_exchange_that_was_summed_twice_is_found(self, tmp_path: Path) -> None:
        """The difference of the two sums would be hospital c's values."""
        found = problems(write(tmp_path, sums=(a_sum(1), a_sum(1, ("a", "b"), attempt=1))))
        assert found[0] == ("transcript.jsonl", 3, "round 1, exchange 'fit' was already summed in line 2")

    def test_a_result_that_the_aggregator_did_not_sign_is_found(self, tmp_path: Path) -> None:
        forged = replace(a_sum(1), result_signature=bytes(64))
        why = "a signature of 'aggregator' does not verify under the pinned identity"
        folder = write(tmp_path, lambda owner, told: forged if (owner, told.round) == ("a", 1) else told)
        assert problems(folder) == [("sites/a/transcript.jsonl", 2, why)]

    def test_a_survivor_outside_the_roster_is_found(self, tmp_path: Path) -> None:
        found = problems(write(tmp_path, sums=(a_sum(1, ("a", "b", "mallory")),)))
        assert ("transcript.jsonl", 2, "a survivor is not in the roster") in found

    def test_a_sum_record_without_its_fields_is_found(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        append(folder, "", SUMMED, {"round": 4})
        assert problems(folder) == [("transcript.jsonl", 5, "an entry about a sum is incomplete")]

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (
                {"study": lambda owner: "other" if owner == "c" else STUDY},
                "it was opened for another study than the aggregator's",
            ),
            (
                {"roster_digest": lambda owner: bytes(32) if owner == "c" else ROSTER.digest},
                "it was opened for another roster",
            ),
        ],
    )
    def test_another_study_or_roster_is_found(self, tmp_path: Path, change: dict[str, Any], why: str) -> None:
        assert problems(write(tmp_path, **change)) == [("sites/c/transcript.jsonl", 1, why)]

    def test_a_transcript_in_another_sites_folder_is_found(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        shutil.copy(site_folder(folder, "a") / TRANSCRIPT_FILE, site_folder(folder, "b") / TRANSCRIPT_FILE)
        assert problems(folder) == [("sites/b/transcript.jsonl", 1, "it belongs to 'a', not to 'b'")]

    def test_a_site_that_the_roster_does_not_know_is_found(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        shutil.copytree(site_folder(folder, "a"), site_folder(folder, "mallory"))
        assert problems(folder) == [("sites/mallory/transcript.jsonl", None, "the roster has no such site")]

    def test_a_missing_aggregator_transcript_is_found(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        (folder / TRANSCRIPT_FILE).unlink()
        assert [(path, line) for path, line, _ in problems(folder)] == [("transcript.jsonl", None)]

    def test_a_broken_chain_is_reported_once_with_its_first_bad_line(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        path = site_folder(folder, "a") / TRANSCRIPT_FILE
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(lines[0] + lines[1].replace(b'"round":1', b'"round":9') + lines[2])
        assert problems(folder) == [("sites/a/transcript.jsonl", 2, "its content does not match its hash")]

    def test_sites_whose_transcript_is_elsewhere_are_named(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        shutil.rmtree(site_folder(folder, "d"))
        verdict = verify_run(folder, ROSTER)
        assert (verdict.absent, verdict.problems) == (["d"], [])

    def test_a_folder_without_transcripts_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(TranscriptError, match="no transcript here"):
            verify_run(tmp_path, ROSTER)


def verify(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["transcript", "verify", *map(str, arguments)], terminal_width=200)
    return result.exit_code, result.stdout, result.stderr


class TestCommand:
    @pytest.fixture(autouse=True)
    def wide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "120")

    def test_tells_what_was_checked(self, tmp_path: Path) -> None:
        code, out, err = verify(write(tmp_path))
        assert (code, err) == (0, "")
        assert out.count(" verified") == 5
        assert "the aggregator and 4 hospitals recorded the same 3 sums" in out
        assert grouped(ROSTER.digest.hex()) in out

    def test_names_file_and_line_and_exits_non_zero(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        path = site_folder(folder, "c") / TRANSCRIPT_FILE
        data = bytearray(path.read_bytes())
        data[data.index(b"\n") + 40] ^= 1
        path.write_bytes(data)
        code, out, err = verify(folder)
        assert code == 24
        assert f"{path}, line 2" in err
        assert f"{path}, line 2" in out
        assert "Verified" not in out
        assert "Remedy:" in err

    def test_believes_the_pinned_roster_and_not_the_folders(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "run")
        others = [Identity.generate(name) for name in SITES]
        write_roster(tmp_path / "pinned.json", Roster.of(AGGREGATOR, others))
        code, out, _ = verify(folder, "--roster", tmp_path / "pinned.json")
        assert code == 24
        assert "does not verify under the pinned identity" in out
        write_roster(tmp_path / "pinned.json", ROSTER)
        assert verify(folder, "--roster", tmp_path / "pinned.json")[0] == 0

    def test_notes_a_site_whose_record_is_shorter_than_the_aggregators(self, tmp_path: Path) -> None:
        folder = write(tmp_path, lambda owner, record: None if (owner, record.round) == ("b", 3) else record)
        verdict = verify_run(folder, ROSTER)
        (site,) = [party for party in verdict.parties if party.owner == "b"]
        assert (verdict.problems, len(site.summed), verdict.expected(site)) == ([], 2, 3)
        code, out, _ = verify(folder)
        assert code == 0
        assert "b did not record 1 sum that it is in" in out

    def test_a_missing_folder_or_roster_is_one_line_with_a_remedy(self, tmp_path: Path) -> None:
        run = write(tmp_path / "run")
        for arguments, why in (
            ((tmp_path / "none",), "no such folder"),
            ((tmp_path,), "--roster"),
            ((run, "--roster", tmp_path / "rooster.json"), "check the path"),
        ):
            code, _, err = verify(*arguments)
            assert (code, err.count("\n")) == (2, 2)
            assert why in err

    def test_without_the_aggregators_transcript_there_is_nothing_to_compare_with(
        self, tmp_path: Path
    ) -> None:
        folder = write(tmp_path)
        path = folder / TRANSCRIPT_FILE
        path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":9', 1))
        code, out, _ = verify(folder)
        assert code == 24
        rows = [line for line in out.splitlines() if "chain verified" in line]
        assert len(rows) == len(SITES)
        assert all(" of – " in line for line in rows)
        assert "of 0" not in out

    def test_a_damaged_roster_is_an_error(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        content = json.loads((folder / ROSTER_FILE).read_text())
        content["aggregator"] = SITES["a"].public_bytes.hex()
        (folder / ROSTER_FILE).write_text(json.dumps(content))
        assert verify(folder)[0] == 13

    def test_control_characters_of_a_hostile_file_do_not_reach_the_terminal(self, tmp_path: Path) -> None:
        folder = write(tmp_path)
        shutil.copytree(site_folder(folder, "a"), site_folder(folder, "x").with_name("\x1b[31mred\x07"))
        code, out, err = verify(folder)
        assert code == 24
        assert "\x1b[31m" not in out + err
        assert "\x07" not in out + err


def test_records_are_checked_without_torch(tmp_path: Path) -> None:
    """An auditor needs neither its seconds nor its memory, and SciPy only to recompute an epsilon."""
    folder = write(tmp_path / "run")
    commands = [["transcript", "verify", str(folder)], ["audit", "verify", str(folder)]]
    heavy = {"torch", "sklearn", "scipy", "matplotlib", "opacus"}
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom secfed.cli.app import app\n"
        f"codes = [CliRunner().invoke(app, command).exit_code for command in {commands}]\n"
        f"sys.exit(str(codes) if any(codes) else ', '.join({heavy} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
