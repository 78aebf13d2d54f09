"""A study that is over while the agent was down: its secrets go, also where this site refuses it by now."""

from __future__ import annotations

import re
import subprocess

import torch

from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.agent import control
from secfed.deploy.agent.agent import Agent
from secfed.deploy.agent.status import STATUS_FILE, StatusBoard
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.messages import HelloReply
from secfed.runs.run_folder import TRANSCRIPT_FILE, ledger_file, study_folder
from secfed.site.durable_store import DurableStore
from secfed.site.journal import Journal
from secfed.storage.signed_files import SignedFiles
from secfed.study.limits import study_id
from tests.conftest import ROOT
from tests.deploy.agent_case import NAMES, TOML, Centre, permit


class Crashed:
    """The state of a hospital that was killed while an update was on its way."""

    def __init__(self, centre: Centre) -> None:
        self.site: SiteFolder = centre.folders[NAMES[0]]
        self.study = study_id(centre.study)
        self.folder = study_folder(self.site.state, self.study)
        self.work = self.folder / "work"
        self.files = SignedFiles(self.work, self.site.identity(None), self.study)
        journal = Journal(self.site.state / "journal.sqlite")
        memory = DurableStore(self.files, journal, self.study)
        memory.begin((1, 0), bytes(32))
        memory.keep({"weight": torch.ones(3)}, lambda: {"norm": torch.ones(1)})
        memory.open(0)
        memory.note(0, b"a message")
        journal.close()
        (self.folder / TRANSCRIPT_FILE).write_bytes(b"transcript")
        ledger_file(self.site.state, "wards").write_bytes(b"ledger")

    def encrypted(self) -> None:
        """As encrypted protection leaves it: the study key, and the only state that leads to the model."""
        self.files.write("study-key", b"key")
        self.files.write("replica", b"state")

    @property
    def left(self) -> set[str]:
        return {path.name for path in self.work.iterdir()}

    def agent(self) -> Agent:
        board = StatusBoard(self.site.state / STATUS_FILE, self.site.name)
        return Agent(self.site, passphrase=None, board=board)

    def told_that_it_is_over(self, study: str = "") -> None:
        self.agent()._tidy(HelloReply(study or self.study, TOML.encode(), 1 << 20, finished=True))


def test_a_refused_study_that_is_over_leaves_no_secret_and_all_that_an_audit_needs(centre: Centre) -> None:
    crashed = Crashed(centre)
    assert {"work", "contribution", "attempt-0000000000"} < crashed.left
    Approvals(crashed.site.approvals_path).refuse_what("tiny", utc_now())
    centre.server.finish()
    centre.start(NAMES[0])
    centre.threads[NAMES[0]].join(60)
    assert not centre.errors
    assert crashed.left == {"position"}
    assert (crashed.folder / TRANSCRIPT_FILE).read_bytes() == b"transcript"
    assert ledger_file(crashed.site.state, "wards").read_bytes() == b"ledger"
    journal = Journal(crashed.site.state / "journal.sqlite")
    memory = DurableStore(crashed.files, journal, crashed.study)
    assert memory.position == (1, 0)  # the exchange is not served again
    journal.close()


def test_the_state_that_leads_to_a_model_waits_for_as_long_as_the_study_may_be_opened_again(
    centre: Centre,
) -> None:
    crashed = Crashed(centre)
    crashed.encrypted()
    before = crashed.left
    control.pause(crashed.site.state)
    crashed.told_that_it_is_over()
    assert crashed.left == before
    control.resume(crashed.site.state)
    permit(crashed.site, "manual")  # somebody may approve it yet
    crashed.told_that_it_is_over()
    assert crashed.left == before
    Approvals(crashed.site.approvals_path).refuse_what("tiny", utc_now())
    crashed.told_that_it_is_over()
    assert crashed.left == {"position"}


def test_the_guide_says_how_secrets_go_by_hand(centre: Centre) -> None:
    crashed = Crashed(centre)
    crashed.encrypted()
    for kept in ("position", "stopped"):
        (crashed.work / kept).write_bytes(b"kept")
    other = crashed.folder.with_name("tiny-b-" + 16 * "0") / "work"
    other.mkdir(parents=True)
    (other / "study-key").write_bytes(b"another study's")
    guide = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"(?m)^find .*$", guide)
    command = command.replace("/srv/secfed/site/state", str(crashed.site.state)).replace("heart-1", "tiny")
    subprocess.run(["bash", "-c", command], check=True)
    assert crashed.left == {"position", "stopped"}
    assert (crashed.folder / TRANSCRIPT_FILE).is_file()
    assert (other / "study-key").is_file()


def test_what_is_no_study_id_names_no_folder_to_erase(centre: Centre) -> None:
    crashed = Crashed(centre)
    elsewhere = crashed.site.state / "work"
    elsewhere.mkdir()
    (elsewhere / "attempt-0000000001").write_bytes(b"not a study's")
    crashed.told_that_it_is_over(".." + 48 * "0")  # what is left of it without the 48 digits
    assert (elsewhere / "attempt-0000000001").read_bytes() == b"not a study's"
