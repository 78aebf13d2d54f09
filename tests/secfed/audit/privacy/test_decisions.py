"""Decision logs in the audit report: what they say, whether they verify, and heads that were shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secfed.audit.privacy import make_report, to_json
from secfed.audit.privacy.document import Alert, ReportTable, Text
from secfed.audit.privacy.evidence import Report
from secfed.audit.privacy.record_sections import decided
from secfed.audit.render.html import to_html
from secfed.cli.app import app
from secfed.crypto.refusals import Refusal
from secfed.errors import ConfigError
from secfed.records import decision_state as kinds
from secfed.records.decision_log import DecisionLog
from secfed.records.roster_file import ROSTER_FILE, write_roster
from secfed.runs.run_folder import DECISIONS_FILE
from tests.dp.report_case import NOW_S, START_S, Case, problems, report

DIGEST = "0123456789abcdef" * 4
SITE = "st-anna"
REFUSED: Mapping[str, Any] = {
    "digest": DIGEST,
    "name": "heart",
    "number": 34,
    "text": Refusal.SECOND_UNMASK.text,
    "round": 3,
    "exchange": "update",
    "attempt": 1,
    "count": 4,
}
ENTRIES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    (kinds.ROSTER, {"roster": "aa" * 32, "before": ""}),
    (kinds.POLICY, {"policy": "bb" * 32, "before": ""}),
    (kinds.REFUSED, {"digest": DIGEST, "name": "lung", "keys": ["privacy.epsilon", "roster"]}),
    (kinds.APPROVED, {"digest": DIGEST, "name": "heart", "decided_s": START_S - 86_400}),
    (kinds.ACCEPTED, {"digest": DIGEST, "name": "heart", "policy": "bb" * 32, "roster": "aa" * 32}),
    (kinds.REFUSAL, REFUSED),
    (kinds.BUDGET, {"digest": DIGEST, "name": "heart", "round": 4, "exchange": "update", "count": 1}),
    (kinds.LIMITED, {"of": kinds.REFUSAL, "number": 34, "entries": 100}),
    (kinds.MISSED, {"entries": 2}),
    (kinds.FINISHED, {"digest": DIGEST, "name": "heart", "with_model": False}),
    (kinds.WITHDRAWN, {"digest": DIGEST, "name": "heart", "decided_s": START_S}),
    (kinds.LIFTED, {"digest": "", "name": "liver"}),
    (kinds.REJECTED, {"digest": DIGEST, "name": "", "decided_s": START_S}),
    (kinds.REFUSED, {"digest": DIGEST, "name": "heart", "keys": ["approval"], "policy": "bb" * 32}),
)
SAID = (
    "roster pinned: aaaaaaaaaaaaaaaa",
    "policy in force: bbbbbbbbbbbbbbbb",
    "not permitted by policy (not recorded): privacy.epsilon, the pinned roster",
    "approved by a person on 2027-01-14 08:00 UTC",
    "begun, as policy bbbbbbbbbbbbbbbb and roster aaaaaaaaaaaaaaaa permit",
    "refusal 34: shares were already given out in this attempt (4 times so far)",
    "a use of data that its budget did not cover was refused",
    "more entries of this kind on this day are left out (refusal 34)",
    "2 entries before this one could not be written",
    "over, without a model at this site",
    "approval withdrawn",
    "refusal by a person lifted",
    "refused by a person",
    "not permitted: a person's refusal",
)


class Logs:
    """A hospital's folder with a decision log, and the roster beside it."""

    def __init__(self, root: Path) -> None:
        self.case, self.root = Case(root / "case"), root / "state"
        self.root.mkdir(parents=True)
        write_roster(self.root / ROSTER_FILE, self.case.roster)
        self.path = self.root / DECISIONS_FILE

    def write(self, *made: tuple[str, Mapping[str, Any]], site: str = SITE, path: Path | None = None) -> str:
        """Append entries; the head afterwards."""
        log = DecisionLog(path or self.path, self.case.identities[site], clock=lambda: START_S)
        found = log.note(lambda _state, _now_s: [(kind, dict(body)) for kind, body in made])
        return found[-1].hash.hex()


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def alerts(made: Report) -> list[Alert]:
    return [block for block in decided(made).blocks if isinstance(block, Alert)]


def rows(made: Report) -> list[tuple[str, ...]]:
    return [row for block in decided(made).blocks if isinstance(block, ReportTable) for row in block.rows]


def test_every_kind_is_told_in_words_in_order(logs: Logs) -> None:
    head = logs.write(*ENTRIES)
    made = report(logs.root)
    assert made.verification.verified
    assert tuple(row[2] for row in rows(made)) == SAID
    assert [row[1] for row in rows(made)][5] == f"heart-{DIGEST}"
    assert rows(made)[5][3] == "round 3, update, attempt 1"
    assert made.decisions[0].head == head
    assert decided(made).title == "What this hospital decided"
    (file,) = [item for item in made.verification.files if item.kind == "decision log"]
    assert (file.owner, file.entries, file.head, file.verified) == (SITE, 1 + len(ENTRIES), head, True)
    page = to_html(made)
    assert all(text in unescape(page) for text in SAID)
    assert f"heart ({DIGEST[:8]})" in page
    assert made.sites == (SITE,)
    assert "by agents at least 4." in page


def test_two_persons_of_one_name_are_told_apart(logs: Logs) -> None:
    """By the identity provider's own names for them; an account of the machine has none."""
    name, at = "weiss@uk.example (OpenID Connect: https://x)", "https://x console"
    held = {"digest": DIGEST, "name": "heart", "decided_s": START_S}
    logs.write(
        (kinds.APPROVED, {**held, "by": f"{name}, {name}", "subjects": [f"{at} 5f0c", f"{at} 81aa"]}),
        (kinds.REJECTED, {**held, "by": "dr.a, dr.b", "subjects": ["", f"{at} 7"]}),
        (kinds.APPROVED, {**held, "by": f"{name}", "subjects": ["a b", "c d"]}),
    )
    made = report(logs.root)
    assert made.decisions[0].decisions[0].subjects == (f"{at} 5f0c", f"{at} 81aa")
    assert json.loads(to_json(made))["decisions"][0]["decisions"][0]["subjects"] == [
        f"{at} 5f0c",
        f"{at} 81aa",
    ]
    told = [row[2] for row in rows(made)]
    assert told[0] == f"approved by {name} [5f0c], {name} [81aa]"
    assert "dr.a, dr.b [7]" in told[1]
    assert told[2] == f"approved by {name}"
    assert f"{name} [81aa]" in unescape(to_html(made))


def test_json_has_named_values_only(logs: Logs) -> None:
    logs.write((kinds.REFUSAL, {**REFUSED, "secret": "0.735190628"}))
    content = json.loads(to_json(report(logs.root)))
    (entry,) = content["decisions"][0]["decisions"]
    assert (entry["number"], entry["round"], entry["count"]) == (34, 3, 4)
    assert "0.735190628" not in json.dumps(content)


@pytest.mark.parametrize("line", [1, 3, 1 + len(ENTRIES)])
def test_a_changed_byte_is_said_clearly_and_nothing_of_the_log_is_shown(logs: Logs, line: int) -> None:
    logs.write(*ENTRIES)
    lines = logs.path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b'"time_s":1', b'"time_s":2', 1)
    logs.path.write_bytes(b"".join(lines))
    made = report(logs.root)
    assert problems(made) == [(DECISIONS_FILE, line, "its content does not match its hash")]
    (alert,) = alerts(made)
    assert alert.title == f"The decision log of {SITE} DOES NOT VERIFY: do not rely on it"
    assert alert.items == (f"{logs.path}, line {line}: its content does not match its hash",)
    assert not rows(made)
    result = CliRunner().invoke(app, ["audit", "verify", str(logs.root)])
    assert result.exit_code == 24
    assert "The records do not verify" in result.output


def test_a_line_left_out_replayed_or_torn_is_found(logs: Logs) -> None:
    logs.write(*ENTRIES)
    whole = logs.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for data, line in (
        (b"".join([*lines[:4], *lines[5:]]), 5),
        (whole + lines[4], len(lines) + 1),
        (whole[:-40], len(lines)),
    ):
        logs.path.write_bytes(data)
        assert [item[1] for item in problems(report(logs.root))] == [line]


def test_an_end_that_was_cut_off_shows_by_a_head_that_was_shown(logs: Logs) -> None:
    shown = logs.write(*ENTRIES[:6])
    older = logs.path.read_bytes()
    later = logs.write(*ENTRIES[6:])
    assert make_report([logs.root], seen=[shown, later.upper()]).verification.verified
    logs.path.write_bytes(older)
    assert report(logs.root).verification.verified  # by itself it is a good chain
    made = make_report([logs.root], seen=[shown, later])
    ((_, line, why),) = problems(made)
    assert line is None
    assert f"no record below it has the head {later}, which was shown earlier" in why
    # Written anew, with the same key and the same words: another time, another head.
    logs.path.unlink()
    logs.case.now_s += 1
    log = DecisionLog(logs.path, logs.case.identities[SITE], clock=lambda: START_S + 1)
    log.note(lambda _state, _now_s: [(kind, dict(body)) for kind, body in ENTRIES])
    assert report(logs.root).verification.verified
    assert len(problems(make_report([logs.root], seen=[shown]))) == 1
    result = CliRunner().invoke(app, ["audit", "decisions", str(logs.root), "--seen", shown])
    assert result.exit_code == 24
    with pytest.raises(ConfigError, match="is not a head"):
        make_report([logs.root], seen=["0123"])


def test_an_older_copy_is_put_together_and_two_histories_are_a_problem(logs: Logs) -> None:
    logs.write(*ENTRIES[:3])
    (logs.root / "copy").mkdir()
    copy = logs.root / "copy" / DECISIONS_FILE
    shutil.copy(logs.path, copy)
    logs.write(*ENTRIES[3:])
    made = report(logs.root)
    assert made.verification.verified
    assert len(made.decisions) == 1
    assert any("is an older copy of" in note for note in made.verification.notes)
    logs.write(ENTRIES[-1], path=copy)
    ((name, _, why),) = problems(report(logs.root))
    assert name == DECISIONS_FILE
    assert "two histories of one decision log" in why


def test_a_log_whose_first_line_is_cut_or_gone_names_that_line(logs: Logs) -> None:
    logs.write(*ENTRIES)
    whole = logs.path.read_bytes()
    for left in (whole[:40], whole.partition(b"\n")[2]):
        logs.path.write_bytes(left)
        assert problems(report(logs.root)) == [(DECISIONS_FILE, 1, "the first line names no owner")]


def test_whose_log_it_is_follows_from_the_roster(logs: Logs) -> None:
    logs.write(*ENTRIES)
    stranger = Case(logs.root.parent / "other", sites=("elsewhere", "nowhere", "st-otto"))
    write_roster(logs.root / ROSTER_FILE, stranger.roster)
    assert problems(report(logs.root)) == [(DECISIONS_FILE, None, "the roster has no such site")]


@pytest.mark.parametrize(
    "body",
    [
        {"number": "34"},
        {"keys": 5},
        {"time_s": -1},
        {"round": 1.5},
        {"name": None},
        {"decided_s": True},
        {"subjects": "x"},
        {"subjects": [7]},
    ],
)
def test_a_signed_entry_of_the_wrong_form_ends_no_report(logs: Logs, body: dict[str, Any]) -> None:
    logs.write(ENTRIES[0])
    chain_body = {"digest": DIGEST, "name": "heart", "time_s": START_S, **body}
    with DecisionLog(logs.path, logs.case.identities[SITE])._writing(START_S) as (chain, _):
        chain.append("odd", chain_body)
    ((_, line, why),) = problems(report(logs.root))
    assert line == 3
    assert why == "correctly signed, but not what a decision log writes"


def test_several_hospitals_and_kinds_of_a_later_version(logs: Logs) -> None:
    logs.write(*ENTRIES, ("pondered", {"digest": DIGEST, "name": "heart"}))
    (logs.root / "b").mkdir()
    logs.write(ENTRIES[0], site="hospital-b", path=logs.root / "b" / DECISIONS_FILE)
    made = report(logs.root)
    assert [log.site for log in made.decisions] == ["hospital-b", SITE]
    assert decided(made).title == "What these hospitals decided"
    assert rows(made)[-1][2] == "pondered (this version does not know it)"


def test_without_a_log_the_report_says_where_one_would_be(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.ledger(SITE)
    write_roster(tmp_path / ROSTER_FILE, case.roster)
    made = make_report([tmp_path], clock=lambda: NOW_S)
    (block,) = decided(made).blocks
    assert isinstance(block, Text)
    assert "No decision log is among these files" in block.text
    shown = CliRunner().invoke(app, ["audit", "decisions", str(tmp_path)])
    assert "No decision log that verifies is here" in shown.output
