"""What an agent's people are told: each state once, from what the agent keeps anyway."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.agent.budget_watch import BudgetWatch, newest_payment
from secfed.deploy.agent.control import make_state_folder
from secfed.deploy.agent.site_watch import SiteWatch
from secfed.deploy.agent.status import STATUS_FILE, StatusBoard
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.notification.message import Event
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger
from secfed.runs.run_folder import ledger_file
from tests.deploy.agent_case import BUDGETED, permit
from tests.deploy.enrol_case import enrolled
from tests.deploy.notify_case import NOW

DIGEST = "11" * 32
STUDY = f"heart-1-{DIGEST}"


class Watched:
    """A site, its board, and what is told of it; time stands still unless it is set."""

    def __init__(self, site: SiteFolder) -> None:
        self.site = site
        make_state_folder(site.state)
        self.board = StatusBoard(site.state / STATUS_FILE, site.name)
        self.now, self.clock_s = NOW, 0.0
        self.watch = SiteWatch(site, self.board, lambda: self.now, lambda: self.clock_s)
        self.told: set[str] = set()

    def new(self) -> list[Event]:
        """What one more look tells, as the outbox decides it."""
        seen = self.watch.look()
        over = {key for key in self.told if key not in seen.holds and key.startswith(tuple(seen.over))}
        found = [event for key, event in seen.holds.items() if key not in self.told]
        self.told = (self.told - over) | set(seen.holds)
        return found

    def kinds(self) -> list[str]:
        return [event.kind for event in self.new()]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    _, sites = enrolled(tmp_path)
    return Watched(next(iter(sites.values())))


def test_a_fresh_site_has_nothing_to_tell(watched: Watched) -> None:
    assert watched.kinds() == []


def test_a_held_study_is_told_until_a_person_decides(watched: Watched) -> None:
    approvals = Approvals(watched.site.approvals_path)
    approvals.hold("heart-1", bytes.fromhex(DIGEST), NOW)
    (event,) = watched.new()
    assert event.kind == "study.held"
    assert event.text == "study heart-1 waits for your approval"
    assert f"secfed agent approve {DIGEST[:16]}" in event.remedy
    # The agent declines it meanwhile: that is not another state.
    watched.board.set(study=STUDY, state="held", why="it waits")
    assert watched.kinds() == []
    approvals.approve_what("heart-1", NOW)
    watched.board.set(study=STUDY, state="serving", why=None)
    assert watched.kinds() == []
    assert watched.told == set()


def test_a_damaged_file_neither_ends_the_look_nor_a_state(watched: Watched) -> None:
    Approvals(watched.site.approvals_path).hold("heart-1", bytes.fromhex(DIGEST), NOW)
    assert watched.kinds() == ["study.held"]
    before = watched.site.approvals_path.read_bytes()
    watched.site.approvals_path.write_text("{")
    watched.now = NOW + timedelta(days=70)
    assert set(watched.kinds()) == {"certificate.ending"}
    watched.site.approvals_path.write_bytes(before)
    assert watched.kinds() == []


def test_a_refusal_is_told_with_the_policys_words_and_a_failure_without(watched: Watched) -> None:
    board = watched.board
    board.set(study=STUDY, state="refused", why="algorithm.local_epochs: the study has 10")
    (event,) = watched.new()
    assert event.kind == "study.refused"
    assert "local_epochs: the study has 10" in event.text
    assert watched.kinds() == []
    board.set(study=f"lung-{DIGEST}", state="serving", why=None)  # another: nothing is known of the first
    assert watched.kinds() == []
    board.set(study=STUDY, state="refused", why="algorithm.local_epochs: the study has 9")
    assert watched.kinds() == []
    board.set(state="serving", why=None)
    assert watched.kinds() == []
    board.set(state="failed", why="ledger-heart.jsonl: 4711 records")
    (event,) = watched.new()
    assert event.kind == "study.failed"
    assert "4711" not in json.dumps(event.__dict__)
    board.set(state="refused", why="no")
    assert watched.kinds() == ["study.refused"]
    # A restart knows of no study at first.
    watched.watch = SiteWatch(watched.site, StatusBoard(board.path, "x"), lambda: NOW)
    assert watched.kinds() == []
    assert len(watched.told) == 1


@pytest.mark.parametrize("state", ["held", "paused", "waiting", "removed", "idle"])
def test_what_passes_by_itself_is_no_refusal_and_ends_none(watched: Watched, state: str) -> None:
    steps = []
    for now in (state, "refused", state, "refused"):
        watched.board.set(study=STUDY, state=now, why="no")
        steps.append(watched.kinds())
    assert steps == [[], ["study.refused"], [], []]


def paying(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[object]]:
    """Says what the newest payment brought a budget to; what is then told of it: percent that are left."""

    def paid(epsilon: float, *, limit: float = 20.0, ago_days: int = 0) -> list[object]:
        permit(watched.site, policy=BUDGETED.replace("20.0", f"{limit}\nperiod_days = 30"))
        budget = {"epsilon": 20.0, "delta": 1e-4, "period_days": 30, "protects": "record"}
        other = {**budget, "period_days": None, "spent": {"epsilon": 99.0}}
        after = [other, {**budget, "spent": {"epsilon": epsilon}}]
        time_s = NOW.timestamp() - ago_days * 86_400
        monkeypatch.setattr(BudgetWatch, "_payment", lambda *_: {"time_s": time_s, "after": after})
        return [event.facts["left_percent"] for event in watched.new()]

    return paid


def test_a_low_budget_is_told_once_and_again_after_more_was_left(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid = paying(watched, monkeypatch)
    spent = (15.9, 16.0, 16.1, 19.0, 15.8, 16.2, 14.9, 25.0)
    assert [paid(epsilon) for epsilon in spent] == [[], [], [19], [], [], [], [], [0]]
    assert [paid(25.0, limit=limit) for limit in (40.0, 30.0)] == [[], [16]]
    assert [paid(25.0, ago_days=days) for days in (30, 31, 30)] == [[], [], [0]]


def test_the_newest_payment_is_found_in_a_ledger(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    site = watched.site
    permit(site, policy=BUDGETED.replace("20.0", "4.0"))
    path = ledger_file(site.state, "wards")
    assert watched.kinds() == []
    ledger = Ledger(path, site.identity(None), "wards", [Budget(4.0, 1e-4)], accountant=Rdp())
    assert newest_payment(path) == {}
    for number in (1, 2):
        event = Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 1.7, 1)
        entry = ledger.spend(event, study=STUDY, round_number=number, exchange="update")
    (told,) = watched.new()
    assert told.kind == "budget.low"
    assert told.text.endswith("of data set wards: epsilon 4 for each record in all")
    assert newest_payment(path) == entry.body
    with path.open("ab") as stream:  # many other entries, and what a crash leaves
        stream.write(b'{"kind":"unprotected","body":{}}\n' * 4000 + b'{"kind":"sp')
    monkeypatch.setattr("secfed.deploy.agent.budget_watch._TAIL_BYTES", 64)
    assert newest_payment(path) == entry.body


def test_a_policy_that_is_not_valid_is_told_and_mutes_no_budget(watched: Watched) -> None:
    site = watched.site
    permit(site, policy=BUDGETED.replace("20.0", "4.0"))
    assert watched.kinds() == []
    site.policy_path.write_text("[studies", encoding="utf-8")
    (told,) = watched.new()
    assert told.kind == "policy.invalid"
    assert "the last valid one stays in force" in told.text
    assert str(site.folder) not in json.dumps(told.__dict__)  # a mail may go far
    ledger = Ledger(
        ledger_file(site.state, "wards"), site.identity(None), "wards", [Budget(4.0, 1e-4)], accountant=Rdp()
    )
    for number in (1, 2):
        event = Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 1.7, 1)
        ledger.spend(event, study=STUDY, round_number=number, exchange="update")
    assert watched.kinds() == ["budget.low"]
    permit(site, policy=BUDGETED.replace("20.0", "4.0"))
    assert watched.kinds() == []
    site.policy_path.unlink()
    (told,) = watched.new()
    assert "no study may run" in told.text


def test_certificates_are_told_four_weeks_ahead_and_when_they_have_ended(watched: Watched) -> None:
    end = watched.site.tls.certificate()
    assert end is not None
    watched.now = end.not_valid_after_utc - timedelta(days=28, minutes=1)
    assert watched.kinds() == []
    watched.now += timedelta(minutes=2)
    (event,) = watched.new()
    assert event.kind == "certificate.ending"
    assert event.facts["days_left"] == 27
    assert "secfed site renew" in event.remedy
    watched.now += timedelta(days=10)
    assert watched.kinds() == []
    watched.now += timedelta(days=20)
    assert watched.kinds() == ["certificate.expired"]


def test_silence_is_told_after_a_while_and_not_after_the_end_of_a_study(watched: Watched) -> None:
    board, steps = watched.board, []

    def after(seconds: float, **status: Any) -> None:
        watched.clock_s += seconds
        board.set(**status)
        steps.append(watched.kinds())

    after(3599)
    after(1)  # never connected
    after(7200, connection="failing")
    after(1, connection="connected", state="serving")
    after(3000, connection="failing")
    after(1000)
    after(1, connection="connected", state="finished")
    after(9999, connection="failing")
    assert [len(told) for told in steps] == [0, 1, 0, 0, 0, 1, 0, 0]
    after(9999, connection="closed", state="stopped")
    assert steps[-1] == []
