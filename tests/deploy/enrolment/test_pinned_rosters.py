"""Every roster that was pinned stays: records of the past are checked against the one of their time."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from secfed.audit.privacy import make_report
from secfed.audit.privacy.evidence import Report
from secfed.cli.app import app
from secfed.crypto.identity import Roster
from secfed.deploy.admission.decision_recorder import record_now
from secfed.deploy.agent.control import make_state_folder
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import ConfigError, TranscriptError
from secfed.records.roster_file import PINNED_FILE, PINNED_FOLDER, ROSTER_FILE, read_rosters, write_roster
from secfed.records.transcript import Transcript
from secfed.runs.run_folder import TRANSCRIPT_FILE, ledger_file, study_folder
from tests.conftest import ROOT
from tests.deploy.centre_case import admit, found_consortium

STUDIES = ("heart-" + 64 * "a", "lung-" + 64 * "b")


@dataclass
class Case:
    """A hospital that pinned a second roster between two studies, and the study centre."""

    consortium: Consortium
    site: SiteFolder
    rosters: tuple[Roster, Roster]
    run: Path

    @property
    def pinned(self) -> Path:
        return self.site.folder / PINNED_FILE

    def report(self, *rosters: Path, folder: Path | None = None) -> Report:
        return make_report([folder or self.site.state], rosters)


def work(site: SiteFolder, study: str, roster: Roster) -> None:
    identity = site.identity(None)
    ledger = Ledger(ledger_file(site.state, "wards"), identity, "wards", [Budget(20.0, 1e-4)])
    event = Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 20.0, 1)
    ledger.spend(event, study=study, round_number=1, exchange="update")
    sink = study_folder(site.state, study) / TRANSCRIPT_FILE
    Transcript(identity, study=study, roster_digest=roster.digest, sink=sink).close()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    consortium, folders = found_consortium(tmp_path, ("a", "b", "c"))
    site, before, now = folders["a"], consortium.roster(), utc_now()
    make_state_folder(site.state)
    work(site, STUDIES[0], before)
    admit(consortium, SiteFolder.create(tmp_path / "d", "d", now=now))
    run = tmp_path / "run"  # the study centre's, of the first study
    run.mkdir()
    write_roster(run / ROSTER_FILE, before)
    identity = consortium.aggregator_identity(None)
    sink = run / TRANSCRIPT_FILE
    Transcript(identity, study=STUDIES[0], roster_digest=before.digest, sink=sink).close()
    after = consortium.roster()
    site.trust(after, now)
    record_now(site)
    work(site, STUDIES[1], after)
    return Case(consortium, site, (before, after), run)


def test_records_of_both_rosters_verify_after_pinning_anew(case: Case) -> None:
    for folder in (case.site.state, case.site.folder):
        check = case.report(case.pinned, folder=folder).verification
        assert check.problems == ()
        assert {roster.digest for roster in check.rosters} == {one.digest.hex() for one in case.rosters}
    assert make_report([case.run], [case.consortium.roster_path]).verification.verified
    assert read_rosters(case.pinned)[0] == case.rosters[1]


def test_without_a_roster_those_in_the_folder_are_used(case: Case) -> None:
    check = case.report(folder=case.site.folder).verification
    assert (check.verified, check.pinned) == (True, False)


def test_a_site_that_kept_no_rosters_keeps_the_one_that_is_replaced(case: Case) -> None:
    shutil.rmtree(case.site.folder / PINNED_FOLDER)
    case.site.trust(case.rosters[0], utc_now())
    assert set(read_rosters(case.pinned)) == set(case.rosters)


def test_a_missing_roster_is_called_missing_and_no_number_untrustworthy(case: Case, tmp_path: Path) -> None:
    alone = tmp_path / "copy.json"
    shutil.copy(case.pinned, alone)
    check = case.report(alone).verification
    ((file, why),) = [(problem.file, problem.why) for problem in check.problems]
    assert STUDIES[0][:10] in file
    assert f"the roster {case.rosters[0].digest.hex()[:16]}, under which it was made, is missing" in why
    assert check.is_only_unchecked
    earlier = case.site.folder / PINNED_FOLDER / f"{case.rosters[0].digest.hex()}.json"
    assert case.report(alone, earlier).verification.verified
    for words in (
        ["verify", str(case.site.state)],
        ["verify", str(case.site.state), "--roster", str(alone)],
        ["budget", str(case.site.state)],
        ["decisions", str(case.site.state)],
        ["report", str(case.site.state), "--out", str(tmp_path / "report.html")],
    ):
        done = audit(*words)
        assert done.exit_code == ConfigError.exit_code, done.output
        assert "Not checked, for want of a roster" in done.output
        assert "--roster FILE" in done.output
        assert "do not rely" not in done.output
    assert "NOT CHECKED: the rosters of" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_changed_record_is_still_called_changed(case: Case) -> None:
    path = study_folder(case.site.state, STUDIES[0]) / TRANSCRIPT_FILE
    data = bytearray(path.read_bytes())
    data[data.index(b"roster_digest") + 20] ^= 1
    path.write_bytes(data)
    check = case.report(case.pinned).verification
    assert [problem.line for problem in check.problems] == [1]
    assert not check.is_only_unchecked
    assert audit("verify", str(case.site.state), "--roster", str(case.pinned)).exit_code == (
        TranscriptError.exit_code
    )


def test_a_study_that_has_begun_keeps_its_roster(case: Case) -> None:
    sink = study_folder(case.site.state, STUDIES[0]) / TRANSCRIPT_FILE
    with pytest.raises(TranscriptError, match="opened for another roster digest") as caught:
        Transcript(
            case.site.identity(None), study=STUDIES[0], roster_digest=case.rosters[1].digest, sink=sink
        )
    assert "begin it anew under another name" in caught.value.remedy


# --- commands as they are printed --------------------------------------------------------------------------


def audit(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "1000"}).invoke(app, ["audit", *words])


def test_the_command_that_a_report_prints_works(case: Case, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = audit("report", str(case.site.state), "--roster", str(case.pinned), "--out", str(page))
    assert done.exit_code == 0, done.output
    printed = re.findall(r"<pre>(secfed [^<]+)</pre>", page.read_text(encoding="utf-8"))
    assert printed
    for command in printed:
        words = shlex.split(html.unescape(command))[2:]
        done = audit(*words)
        assert (done.exit_code, "Verified:" in done.output) == (0, True), done.output
        assert "compare the roster's digest" not in done.output, "the roster that was named is named again"


@pytest.mark.parametrize("page", ["dpo.md", "operators.md"])
def test_the_audit_commands_of_the_guides_work(case: Case, tmp_path: Path, page: str) -> None:
    facts = tmp_path / "facts.json"
    made = audit(
        *("report", str(case.site.state), "--roster", str(case.pinned)),
        *("--out", str(tmp_path / "first.html"), "--json", str(facts)),
    )
    assert made.exit_code == 0, made.output
    files = json.loads(facts.read_text(encoding="utf-8"))["verification"]["files"]
    head = next(item["head"] for item in files if item["kind"] == "ledger")
    site, centre = str(case.site.folder), str(case.consortium.folder)
    places = {
        "/srv/secfed/site": site,
        "centre/roster.json": f"{centre}/roster.json",
        "runs/heart-1": str(case.run),
        "DIR/pinned-roster.json": str(case.pinned),
        "DIR...": str(case.site.state),
        "SITE": site,
        "HEAD": head,
        "report.": f"{tmp_path}/report.",
    }
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    commands = re.findall(r"(?m)^(?:    )?secfed audit ([^`#\n]+)", text)
    commands += re.findall(r"`secfed audit ((?:decisions|budget) DIR[^`]*)`", text)
    assert len(commands) >= 4
    for command in commands:
        for name, place in places.items():
            command = command.replace(name, place)
        words = [site if word == "DIR" else word for word in shlex.split(command)]
        done = audit(*words)
        assert done.exit_code == 0, f"secfed audit {command}\n{done.output}"
