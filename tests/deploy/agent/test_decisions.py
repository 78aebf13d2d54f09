"""What an agent decides is in its decision log, and in the audit report, with the numbers of the refusals."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secfed.cli.app import app
from secfed.crypto.codec import Buffer
from secfed.crypto.messages import UnmaskRequest, peek_type
from secfed.crypto.refusals import Refusal
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.decision_recorder import SiteDecisions
from secfed.deploy.agent.status import STATUS_FILE
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.rosters import PINNED_FILE
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.errors import BudgetExceeded, InconsistentView, PolicyRefused, SecfedError, TranscriptError
from secfed.records.chain_file import verify_file
from secfed.records.decision_log import DECISIONS, DecisionLog
from secfed.records.decision_state import (
    ACCEPTED,
    APPROVED,
    BUDGET,
    FINISHED,
    MISSED,
    POLICY,
    REFUSAL,
    REFUSED,
    REJECTED,
    ROSTER,
    WITHDRAWN,
)
from secfed.records.hash_chain import Entry
from secfed.runs.run_folder import DECISIONS_FILE
from secfed.study.limits import study_id
from secfed.wire.frames import Notice, Step, Task, decode
from secfed.wire.transport import OnReply
from tests.deploy.agent_case import NAMES, Centre, asked, permit, status
from tests.deploy.agent_case import POLICY as PERMITTING
from tests.deploy.link_case import wait_until

VICTIM = NAMES[0]


@pytest.fixture
def folder(centre: Centre) -> SiteFolder:
    return centre.folders[VICTIM]


@pytest.fixture
def decisions(folder: SiteFolder) -> SiteDecisions:
    return SiteDecisions(folder, folder.identity(None))


def log_of(folder: SiteFolder) -> Path:
    return folder.state / DECISIONS_FILE


def entries(folder: SiteFolder) -> tuple[Entry, ...]:
    """Its decision log, verified."""
    return verify_file(log_of(folder), folder.request().identity_key, DECISIONS, owner=folder.name)


def kinds(folder: SiteFolder) -> list[str]:
    return [entry.kind for entry in entries(folder)][1:]


def newest(folder: SiteFolder, kind: str) -> Mapping[str, Any]:
    return [entry.body for entry in entries(folder) if entry.kind == kind][-1]


def secfed(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(item) for item in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def unmasks_twice(centre: Centre) -> Any:
    """An aggregator that, once it has everybody's shares, asks one hospital for others."""
    honest = centre.link.ask

    def ask(stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
        honest(stage, requests, on_reply)
        frame = decode(requests.get(VICTIM, Notice(b"nothing").encode()))
        if isinstance(frame, Step) and peek_type(frame.message) == UnmaskRequest.TYPE and frame.round == 1:
            asked = replace(UnmaskRequest.decode(frame.message), dropped=(NAMES[1],))
            again = replace(frame, message=asked.encode()).encode()
            honest(stage, {VICTIM: again}, lambda _site, _frame: None)

    return ask


@pytest.mark.usefixtures("trains_here")
def test_a_refused_study_and_a_double_unmask_stand_in_the_report(
    centre: Centre, folder: SiteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permit(folder, policy=PERMITTING.replace('names = ["tiny"]', 'names = ["other"]'))
    for name in NAMES:
        centre.start(name)
    wait_until(centre.declined)
    wait_until(lambda: REFUSED in kinds(folder))
    assert newest(folder, REFUSED)["keys"] == ["study.name"]

    permit(folder, "manual")  # the administrator changes the policy, and approves the study
    approvals = Approvals(folder.approvals_path)
    wait_until(lambda: approvals.state(centre.study.digest()) is not None)
    assert "Approved tiny" in secfed("agent", "approve", "tiny", "--dir", folder.folder)
    assert newest(folder, APPROVED)["digest"] == centre.study.digest().hex()  # before the agent looked
    monkeypatch.setattr(centre.link, "ask", unmasks_twice(centre))
    centre.complete()

    found = kinds(folder)
    # The policy is recorded by the agent, when the study asks under it again.
    assert found[:5] == [ROSTER, POLICY, REFUSED, APPROVED, POLICY]
    assert found[5:7] == [ACCEPTED, REFUSAL]
    assert found[-1] == FINISHED
    assert newest(folder, POLICY)["policy"] == newest(folder, ACCEPTED)["policy"]
    refusals = [entry.body for entry in entries(folder) if entry.kind == REFUSAL]
    assert refusals[0]["number"] == Refusal.SECOND_UNMASK.number
    assert refusals[0]["text"] == Refusal.SECOND_UNMASK.text
    assert (refusals[0]["round"], refusals[0]["exchange"], refusals[0]["attempt"]) == (1, "update", 0)
    other = centre.folders[NAMES[1]]
    assert kinds(other) == [ROSTER, POLICY, ACCEPTED, FINISHED]

    out, pinned = tmp_path / "report.html", folder.folder / PINNED_FILE
    facts = tmp_path / "report.json"
    secfed("audit", "report", folder.state, "--roster", pinned, "--out", out, "--json", facts)
    page = out.read_text(encoding="utf-8")
    assert "What this hospital decided" in page
    assert "refusal 34: shares were already given out in this attempt" in page
    assert "study.name" in page
    assert f"tiny ({centre.study.digest().hex()[:8]})" in page
    (log,) = json.loads(facts.read_text())["decisions"]
    assert log["site"] == VICTIM
    assert 34 in [item["number"] for item in log["decisions"]]
    shown = secfed("audit", "decisions", folder.state, "--roster", pinned, "--seen", log["head"])
    assert "refusal 34: shares were already given out in this attempt (round 1, update)" in shown


@pytest.mark.usefixtures("trains_here")
def test_a_log_that_does_not_verify_keeps_every_study_away(centre: Centre, folder: SiteFolder) -> None:
    secfed("agent", "refuse", "lung", "--unasked", "--dir", folder.folder)
    log_of(folder).write_bytes(log_of(folder).read_bytes().replace(b'"lung"', b'"long"'))
    centre.start(VICTIM)
    wait_until(centre.declined)
    assert status(folder)["state"] == "failed"
    said = status(folder)["last_error"]["text"]
    assert f"{log_of(folder)}, line " in said
    assert "move it away" in said
    assert str(folder.state) not in centre.declined()
    log_of(folder).unlink()
    wait_until(lambda: '"serving"' in (folder.state / STATUS_FILE).read_text(), 60.0)
    assert not centre.errors
    assert kinds(folder)[:3] == [ROSTER, POLICY, REJECTED]  # what holds is told again


def fail(self: DecisionLog, decide: object) -> None:
    raise TranscriptError("decisions.jsonl: cannot write: No space left on device")


def step(number: int = 1, message: bytes = b"x") -> Step:
    return Step(number, 0, 2, message)


def test_nothing_begins_that_cannot_be_recorded(
    centre: Centre, decisions: SiteDecisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecisionLog, "note", fail)
    with pytest.raises(TranscriptError, match="No space left"):
        decisions.permits(centre.study, centre.roster)


def test_a_refusal_that_cannot_be_recorded_holds_and_is_counted_later(
    centre: Centre,
    folder: SiteFolder,
    decisions: SiteDecisions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    decisions.permits(centre.study, centre.roster)
    with monkeypatch.context() as full, caplog.at_level(logging.ERROR):
        full.setattr(DecisionLog, "note", fail)
        decisions.refuses(centre.terms, step(), Refusal.SECOND_UNMASK.refuse())
        decisions.refuses(centre.terms, step(message=b"y"), Refusal.RESULT_SIGNATURE.refuse())
        decisions.ends(centre.terms.study_id)
    assert len(caplog.records) == 1  # not a line with every message
    assert "No space left" in caplog.text
    decisions.refuses(centre.terms, step(message=b"z"), Refusal.SECOND_UNMASK.refuse())
    assert kinds(folder)[-2:] == [MISSED, REFUSAL]
    assert newest(folder, MISSED)["entries"] == 3
    assert newest(folder, REFUSAL)["count"] == 2


def test_every_kind_of_refusal_has_its_entry_and_no_text_of_the_network(
    centre: Centre, folder: SiteFolder, decisions: SiteDecisions
) -> None:
    decisions.permits(centre.study, centre.roster)
    terms = centre.terms
    decisions.refuses(terms, step(), Refusal.VIEW_SIGNATURE.refuse("EVIL"))
    assert newest(folder, REFUSAL)["number"] == 30
    decisions.refuses(terms, step(), InconsistentView("EVIL"))
    assert newest(folder, REFUSAL)["text"] == "the message does not fit there (InconsistentView)"
    task = Task("EVIL", 1, 0, "EVIL", b"")
    decisions.refuses(terms, task, BudgetExceeded("EVIL"))
    assert newest(folder, BUDGET)["exchange"] == "update"
    decisions.refuses(terms, Task("EVIL", 2**31, 7, "EVIL", b""), BudgetExceeded("EVIL"))
    assert (newest(folder, BUDGET)["round"], newest(folder, BUDGET)["exchange"]) == (2**31, "")
    before = kinds(folder)
    decisions.refuses(terms, task, PolicyRefused("paused EVIL", remedy="wait"))
    decisions.refuses(terms, task, SecfedError("EVIL"))  # its own work failed: no decision
    decisions.declines("EVIL", PolicyRefused("EVIL", keys=("study.name",)))
    decisions.declines(study_id(centre.study), InconsistentView("EVIL"))
    assert kinds(folder) == before
    decisions.refuses(terms, task, PolicyRefused("EVIL", keys=("privacy.epsilon", "EVIL!")))
    assert newest(folder, REFUSED)["keys"] == ["other", "privacy.epsilon"]
    assert b"EVIL" not in log_of(folder).read_bytes()


def test_a_flood_of_refusals_does_not_fill_the_disk(
    centre: Centre, folder: SiteFolder, decisions: SiteDecisions
) -> None:
    decisions.permits(centre.study, centre.roster)
    for number in range(300):
        message = number.to_bytes(2, "big")
        decisions.refuses(centre.terms, step(message=message), Refusal.SECOND_UNMASK.refuse())
        decisions.refuses(
            centre.terms, step(message=message), Refusal.SECOND_UNMASK.refuse()
        )  # a lost answer
        decisions.declines(study_id(centre.study), PolicyRefused("no", keys=("study.rounds",)))
    counts = [entry.body["count"] for entry in entries(folder) if entry.kind == REFUSAL]
    assert counts == [1, 2, 3, 4, 8, 16, 32, 64, 128, 256]
    assert kinds(folder).count(REFUSED) == 1
    assert log_of(folder).stat().st_size < 16_384


class TestCommandLine:
    def test_decisions_of_people_are_signed_at_once(self, folder: SiteFolder) -> None:
        digest = "ab" * 32
        asked(folder, "heart", bytes.fromhex(digest))
        for command in ("approve", "refuse"):
            secfed("agent", command, digest, "--dir", folder.folder)
        assert kinds(folder)[-2:] == [APPROVED, WITHDRAWN]
        assert newest(folder, WITHDRAWN)["name"] == "heart"
        assert newest(folder, ROSTER)["roster"] == folder.roster().digest.hex()

    def test_the_policy_is_the_agents_to_record(self, folder: SiteFolder, decisions: SiteDecisions) -> None:
        """While its file is half written, the agent goes on with the last one, which only it knows."""
        decisions.looked()
        with folder.policy_path.open("a", encoding="utf-8") as stream:
            stream.write("[half")
        asked(folder, "heart", bytes.fromhex("ab" * 32))
        secfed("agent", "refuse", "heart", "--dir", folder.folder)
        decisions.looked()
        assert kinds(folder).count(POLICY) == 1
        assert kinds(folder)[-1] == REJECTED

    def test_what_cannot_be_recorded_is_said_and_a_refusal_holds(
        self, folder: SiteFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(DecisionLog, "note", fail)
        result = CliRunner().invoke(
            app, ["agent", "refuse", "heart", "--unasked", "--dir", str(folder.folder)]
        )
        assert result.exit_code == TranscriptError.exit_code
        assert "not in the decision log" in result.output
        assert [item.name for item in Approvals(folder.approvals_path).refused_names()] == ["heart"]

    def test_a_passphrase_is_not_asked_for_and_the_agent_signs_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SECFED_PASSPHRASE_FILE", raising=False)
        secret = "correct horse battery"
        site = SiteFolder.create(tmp_path / "locked", "locked", now=utc_now(), passphrase=secret)
        shown = secfed("agent", "refuse", "heart", "--unasked", "--dir", site.folder)
        assert "The agent records this, before any study works" in shown
        assert not site.state.exists()  # the agent's to make, under its own account
        site.state.mkdir()
        secfed("agent", "refuse", "lung", "--unasked", "--dir", site.folder)
        assert not log_of(site).exists()
        SiteDecisions(site, site.identity(secret)).looked()
        assert kinds(site) == [POLICY, REJECTED, REJECTED]
