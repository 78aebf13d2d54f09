"""What the pages say, and what their forms do: the same as the command line."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secfed.audit.privacy.phrases import printable
from secfed.console import records as records_module
from secfed.console.centre import Centre
from secfed.console.guard import Guard
from secfed.console.pages import make_app
from secfed.console.serve import opened as opened_folders
from secfed.deploy.admission import near_twins, persons, waiting
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.admission.near_twins import NearTwin
from secfed.deploy.admission.person import Person
from secfed.errors import ConfigError, PolicyRefused
from secfed.site.lost_memory import note_loss
from secfed.study.study import Study
from tests.deploy.agent_case import BUDGETED, NAMES, PRIVATE, permit
from tests.secfed.console.console_case import (
    DIGEST,
    PAST,
    PORT,
    WAITING,
    Opened,
    ask,
)
from tests.secfed.run_case import secfed

STUDY = f"/studies/{DIGEST}"
DECIDE = f"{STUDY}/decide"


def text(client: Any, address: str, status: int = 200) -> str:
    answer = client.get(address)
    assert answer.status_code == status, answer.text
    return " ".join(unescape(answer.text).split())


def log(opened: Opened) -> list[dict[str, Any]]:
    lines = (opened.site.state / "decisions.jsonl").read_text().splitlines()
    return [{"kind": entry["kind"], **entry["body"]} for entry in map(json.loads, lines)]


def test_a_pending_study_says_what_it_would_do_what_leaves_and_what_it_costs(opened: Opened) -> None:
    client = opened.entered()
    assert f'href="{opened.guard.base}{STUDY}"' in text(client, "/")
    page = text(client, STUDY)
    assert "data set “wards”" in page
    assert "together with hospital-2, hospital-3" in page
    assert "epsilon 8 at delta 0.0001, for each record" in page
    assert "The aggregator reads sums over the hospitals, and nothing of a single one." in page
    assert "every round" in page
    assert "of epsilon 20 left" in page
    assert '<th scope="row">algorithm.learning_rate</th>' in page
    assert "has lost part of its memory" not in page
    note_loss(opened.site.state, datetime(2026, 3, 2, tzinfo=UTC))
    assert "has lost part of its memory (2026-03-02)" in text(client, STUDY)


def test_approving_is_what_the_command_line_does_and_the_log_has_the_account(opened: Opened) -> None:
    client = opened.entered()
    answer = opened.answer(client, DECIDE, decision="approve")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"{opened.guard.base}{STUDY}?done=approved"
    assert Approvals(opened.site.approvals_path).state(WAITING.digest()) is ApprovalState.APPROVED
    entry = log(opened)[-1]
    assert (entry["kind"], entry["name"], entry["digest"]) == ("approved", "tiny", DIGEST)
    assert entry["by"] == "dr.weiss"
    assert "approved by dr.weiss" in text(client, "/decisions")
    assert "written into the signed decision log" in text(client, f"{STUDY}?done=approved")
    assert opened.post(client, DECIDE, decision="refuse") == 303
    assert (log(opened)[-1]["kind"], log(opened)[-1]["by"]) == ("withdrawn", "dr.weiss")
    assert opened.post(client, DECIDE, decision="something") == 400
    assert opened.post(client, f"/studies/{'0' * 64}/decide", decision="approve") == 404
    assert secfed("audit", "verify", opened.site.folder).exit_code == 0


def test_the_command_line_writes_the_account_too(opened: Opened) -> None:
    done = secfed("agent", "approve", DIGEST[:16], "--dir", opened.site.folder)
    assert done.exit_code == 0, done.output
    assert log(opened)[-1]["by"] == persons.account()


def test_two_persons_approve_where_the_policy_wants_them(opened: Opened) -> None:
    permit(opened.site, "manual", "four_eyes = true\n" + BUDGETED)
    client, store = opened.entered(), Approvals(opened.site.approvals_path)
    assert opened.post(client, DECIDE, decision="approve") == 303
    assert store.state(WAITING.digest()) is ApprovalState.HELD
    assert "approved by dr.weiss; waits for a second person" in text(client, STUDY)
    assert opened.post(client, DECIDE, decision="approve") == 409  # the same person
    assert store.state(WAITING.digest()) is ApprovalState.HELD
    with pytest.raises(PolicyRefused, match="waits for the approval"):
        store.require("tiny", WAITING.digest(), opened.site.pinned().since, manual=True)  # type: ignore[union-attr]
    persons.approve(opened.site, DIGEST, Person("it.braun"), despite_twins=False)
    persons.record(opened.site, "")
    assert store.state(WAITING.digest()) is ApprovalState.APPROVED
    assert log(opened)[-1]["by"] == "dr.weiss, it.braun"


def test_an_approval_from_before_a_near_twin_does_not_count_as_the_first_of_two(opened: Opened) -> None:
    permit(opened.site, "manual", "four_eyes = true\n" + BUDGETED)
    store = Approvals(opened.site.approvals_path)
    persons.approve(opened.site, DIGEST, Person("dr.weiss"), despite_twins=False)
    near_twins.note(opened.site.state, DIGEST, (NearTwin(f"earlier-{'1' * 64}", "earlier: same data set"),))
    persons.approve(opened.site, DIGEST, Person("it.braun"), despite_twins=True)
    assert store.state(WAITING.digest()) is ApprovalState.HELD
    persons.approve(opened.site, DIGEST, Person("dr.weiss"), despite_twins=True)
    assert store.state(WAITING.digest()) is ApprovalState.APPROVED


def test_what_is_not_kept_to_be_read_cannot_be_approved(opened: Opened) -> None:
    client = opened.entered()
    (opened.site.state / "offers" / f"{DIGEST}.json").unlink()
    assert "Its settings are not kept here" in text(client, STUDY)
    assert opened.post(client, DECIDE, decision="approve") == 409
    assert Approvals(opened.site.approvals_path).state(WAITING.digest()) is ApprovalState.HELD


def test_two_persons_and_an_automatic_policy_do_not_go_together(opened: Opened) -> None:
    permit(opened.site, "automatic", "four_eyes = true\n" + BUDGETED)
    with pytest.raises(ConfigError, match="four_eyes"):
        persons.approve(opened.site, DIGEST, Person("a"), despite_twins=False)


def test_near_twins_are_shown_and_approved_only_by_who_saw_them(opened: Opened) -> None:
    client = opened.entered()
    twins = (NearTwin(f"earlier-{'1' * 64}", "earlier (ended 2026-03-02): same data set wards"),)
    near_twins.note(opened.site.state, DIGEST, twins)
    page = text(client, STUDY)
    assert twins[0].text in page
    assert opened.post(client, DECIDE, decision="approve") == 409
    assert opened.post(client, DECIDE, decision="approve", twins="yes", shown="") == 409  # an older page
    shown = near_twins.fingerprint(twins)
    assert f'value="{shown}"' in page
    assert opened.post(client, DECIDE, decision="approve", twins="yes", shown=shown) == 303
    assert Approvals(opened.site.approvals_path).state(WAITING.digest()) is ApprovalState.APPROVED


def test_what_left_and_what_is_left_and_whether_it_verifies(opened: Opened) -> None:
    client = opened.entered()
    left = text(client, "/left")
    yesterday = left[left.index("Yesterday") :]
    assert yesterday.count("earlier (") == 2
    assert "2,054 exact" in yesterday
    assert "Nothing that was paid for left the hospital." in left[: left.index("Yesterday")]
    assert "Yesterday" in text(client, "/")
    assert "2 sums with numbers of this hospital" in text(client, "/")
    assert "of epsilon 20 left" in text(client, "/budgets")
    assert "more payment" in text(client, "/budgets")
    assert "everything verifies" in text(client, "/records")
    ledger = next(opened.site.state.glob("ledger-*.jsonl"))
    ledger.write_bytes(ledger.read_bytes().replace(b'"round":2', b'"round":3', 1))
    assert opened.post(client, "/records/verify") == 303
    assert "does not verify" in text(client, "/records")
    assert "do not verify" in text(client, "/")


def test_a_decision_that_the_hospital_did_not_sign_is_not_shown(opened: Opened) -> None:
    client = opened.entered()
    assert "roster pinned" in text(client, "/decisions")
    path = opened.site.state / "decisions.jsonl"
    *before, last = path.read_text().splitlines()
    entry = json.loads(last)
    path.write_text("\n".join([*before, last.replace(entry["signature"], "00" * 64)]) + "\n")
    assert opened.post(client, "/records/verify") == 303
    assert "does not verify" in text(client, "/records")
    assert "roster pinned" not in text(client, "/decisions")


def test_exports(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    client = opened.entered()
    assert "What this means" in text(client, "/records/report.html")
    answer = client.get("/records/report.json")
    assert answer.json()["verification"]["verified"] is True
    assert answer.headers["content-disposition"] == 'attachment; filename="audit-report.json"'
    monkeypatch.setattr("secfed.console.pages.browser", lambda: None)
    assert client.get("/records/report.pdf").status_code == 404
    assert "report.pdf" not in text(client, "/records")


def test_setup_has_certificates_and_the_policy(opened: Opened) -> None:
    page = text(opened.entered(), "/setup")
    assert "in order" in page
    assert "[[data.budget]]" in page


HOSTILE = "<script>alert(1)</script><img src=x onerror=y>"


def test_hostile_texts_stay_text(opened: Opened) -> None:
    content = waiting.noted(opened.site.state, DIGEST)
    assert content is not None
    content["data_set"] = content["exchanges"][0]["name"] = HOSTILE
    content["exchanges"][0]["fields"] = [f"{HOSTILE}\N{RIGHT-TO-LEFT OVERRIDE}"]
    (opened.site.state / "waiting" / f"{DIGEST}.json").write_text(json.dumps(content))
    path = opened.site.state / "offers" / f"{DIGEST}.json"
    offer = json.loads(path.read_text())
    offer["tables"]["model"]["name"] = offer["tables"]["study"]["purpose"] = HOSTILE
    path.write_text(json.dumps({**offer, "sites": [HOSTILE]}))
    near_twins.note(opened.site.state, DIGEST, (NearTwin("x", HOSTILE),))
    opened.site.policy_path.write_text(f'# {HOSTILE}\nfour_eyes = "{HOSTILE}"')
    client = opened.entered()
    for address in (STUDY, "/", "/studies", "/setup"):
        raw = client.get(address).text
        assert "<script" not in raw
        assert "<img" not in raw
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in raw
    assert HOSTILE in unescape(client.get(STUDY).text)
    assert HOSTILE in unescape(client.get("/setup").text)
    assert "<script" not in client.get(f"{STUDY}?done=<script>").text


def test_a_hospital_without_a_past_has_all_pages(tmp_path: Path) -> None:
    from tests.deploy.enrol_case import site

    made = site(tmp_path, "charite")
    console = opened_folders([made.folder])
    guard = Guard(make_app(console), PORT)
    client = Opened(made, None, console, guard, None, tmp_path).entered()  # type: ignore[arg-type]
    assert "There are no signed records yet." in text(client, "/")
    assert "No study has asked this hospital yet." in text(client, "/studies")
    for address, _ in console.links:
        assert client.get(address).status_code == 200
    assert "There is no such page." in text(client, "/nothing", 404)
    assert client.get("/records/report.html").status_code == 404


def test_an_admitted_study_is_no_longer_kept_as_waiting(opened: Opened) -> None:
    assert waiting.noted(opened.site.state, DIGEST) is not None
    persons.approve(opened.site, DIGEST, Person("a"), despite_twins=False)
    with pytest.raises(AssertionError, match="let in"):
        ask(opened.site, opened.roster)
    assert waiting.noted(opened.site.state, DIGEST) is None


def test_a_report_is_made_anew_every_hour_because_periods_pass(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = records_module.Records([opened.site.state])
    now_s = 3600.0 * 500_000
    clock = SimpleNamespace(time=lambda: now_s, monotonic=lambda: now_s)
    monkeypatch.setattr(records_module, "time", clock)
    first = records.report()
    now_s += 10.0
    assert records.report() is first
    now_s += 3600.0
    assert records.report() is not first


class TestCentre:
    @pytest.fixture
    def client(self, opened: Opened) -> Any:
        console = opened_folders([opened.centre.folder, opened.run])
        guard = Guard(make_app(console), PORT)
        return Opened(opened.site, opened.roster, console, guard, opened.centre, opened.run).entered()

    def test_it_shows_rounds_and_who_took_part_and_nothing_of_a_single_hospital(
        self, client: Any, opened: Opened
    ) -> None:
        assert "earlier (" in text(client, "/")
        assert "closing evaluation" in text(client, "/")
        run = text(client, f"/runs/{PAST.digest().hex()}")
        assert "3 of 3" in run
        hospitals = text(client, "/hospitals")
        assert all(name in hospitals for name in NAMES)
        assert "in the sum of round 2" in hospitals
        pages = run + hospitals + text(client, "/") + text(client, "/records/report.html")
        for secret in ("2,054", "spent of", DIGEST, "eval/records", "0.weight"):
            assert secret not in pages
        for page in ("/budgets", "/left", "/decisions", "/studies", f"/runs/{DIGEST}"):
            assert client.get(page).status_code == 404

    def test_two_runs_of_one_study_have_a_page_each(self, opened: Opened) -> None:
        shutil.copytree(opened.run, opened.run / "again")
        centre = Centre(None, [opened.run])
        runs = centre.runs()
        assert [run.digest for run in runs] == 2 * [PAST.digest().hex()]
        found = [centre.run(run.address) for run in runs]
        assert [run and run.folder for run in found] == [run.folder for run in runs]
        assert len({run.folder for run in runs}) == 2

    def test_a_hospitals_own_transcript_is_not_for_the_centre(self, opened: Opened) -> None:
        assert [run.folder.name for run in Centre(None, [opened.site.state / "studies"]).runs()] == []
        assert len(Centre(None, [opened.run]).runs()) == 1

    def test_a_hospitals_own_records_are_not_even_in_the_report(self, opened: Opened) -> None:
        shutil.copytree(opened.site.state, opened.run / "from-hospital-1")
        for folders in ([opened.centre.folder, opened.run], [opened.run]):
            records = opened_folders(folders).records
            assert records is not None
            report = records.report()
            assert report is not None
            assert len(report.verification.files) == 1
            assert (report.ledgers, report.decisions) == ((), ())
            # Without the consortium's folder there is no roster here, whose keys could be believed.
            assert report.verification.pinned is (len(folders) == 2)
            assert report.verification.files[0].verified is (len(folders) == 2)

    def test_a_line_that_is_being_written_is_left_out(self, opened: Opened) -> None:
        path = opened.run / "transcript.jsonl"
        path.write_bytes(path.read_bytes() + b'{"body": {"round"')
        (opened.run / "run.json").write_text('{"final": {"accuracy": 0.9}, "rounds": [{"round": 1}]}')
        (run,) = Centre(None, [opened.run]).runs()
        assert (len(run.rounds), [(one.name, one.text) for one in run.final]) == (2, [("accuracy", "0.900")])

    def test_a_metric_stands_beside_its_error_and_one_that_noise_drowns_has_no_number(
        self, client: Any, opened: Opened
    ) -> None:
        noisy = {"accuracy": 0.71, "accuracy_error_95": 0.083, "old_error_95": 1, "auc": None, "loss": "x"}
        rounds = [{"round": 1, "metrics": {"accuracy": None, "accuracy_error_95": 0.9}}]
        (opened.run / "run.json").write_text(json.dumps({"final": noisy, "rounds": rounds}))
        page = text(client, f"/runs/{PAST.digest().hex()}")
        cards = re.findall(r'<h3>(.*?)</h3><p class="big">(.*?)</p>', page)
        assert cards == [
            ("accuracy", "0.710 ± 0.083"),
            ("old error 95", "1.000"),
            ("auc", "–"),
            ("loss", "–"),
        ]
        assert '<td data-label="Metrics">accuracy –</td>' in page


def test_letters_that_are_drawn_as_nothing_are_marked() -> None:
    assert printable("heart\u3164\u2800\u200b 1") == "heart\ufffd\ufffd\ufffd 1"


def test_a_record_that_goes_away_while_it_is_looked_at_is_left_out(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = records_module.Records([opened.site.state])
    gone = opened.site.folder / "gone.json"
    monkeypatch.setattr(records_module, "files_below", lambda _folder: [gone])
    assert records._files() == []


def test_folders_that_are_no_console(opened: Opened, tmp_path: Path) -> None:
    for folders, reason in (
        ([tmp_path / "absent"], "no such folder"),
        ([opened.centre.folder / "ca"], "neither a site's folder"),
        ([opened.site.folder, opened.run], "shows one site"),
        ([opened.centre.folder, opened.centre.folder], "several consortia"),
    ):
        with pytest.raises(ConfigError, match=reason):
            opened_folders(folders)


def test_help() -> None:
    done = secfed("console", "--help")
    assert done.exit_code == 0
    assert "Only this machine can open them" in done.output


def test_the_server_listens_on_the_loopback_only(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    from secfed.console import serve

    addresses: list[Any] = []
    monkeypatch.setattr(
        serve.uvicorn.Server, "run", lambda _self, sockets: addresses.extend(s.getsockname() for s in sockets)
    )
    told: list[str] = []
    serve.serve(opened.console, 0, told.append)
    ((host, port),) = addresses
    assert host == "127.0.0.1"
    assert told[0].startswith(f"http://127.0.0.1:{port}/enter?token=")
    assert Study.parse(PRIVATE).name == "tiny"
