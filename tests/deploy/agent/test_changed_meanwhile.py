"""What a person at the hospital changes while a study is open counts with the next work that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secfed.crypto import labels
from secfed.crypto.identity import Roster
from secfed.crypto.messages import Specification, Upload
from secfed.deploy.admission.admission import admit, still_permitted
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.decision_recorder import SiteDecisions
from secfed.deploy.admission.person import Person
from secfed.deploy.agent.control import pause, resume
from secfed.deploy.agent.status import STATUS_FILE, StatusBoard
from secfed.deploy.agent.study_handler import StudyHandler
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.client import LinkRequest
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import BUDGETS, Ledger, verify
from secfed.errors import BudgetExceeded, ConfigError, DiskFull, PolicyRefused, RosterError, SecfedError
from secfed.site.runtime import SiteStudy
from secfed.study.limits import study_id
from secfed.wire.frames import Step, Task
from tests.deploy.agent_case import BUDGETED, NAMES, PRIVATE, Centre, permit

POLICY = BUDGETED.format(approve="automatic")
REQUEST = LinkRequest("s", b"", memoryview(Task("s", 1, 0, "update", b"").encode()))


class Open:
    """A study that hospital-1 has open, with nothing behind it."""

    def __init__(self, centre: Centre) -> None:
        self.folder = centre.folders[NAMES[0]]
        self.budgets: Sequence[Budget] = ()
        text = PRIVATE.encode()
        admitted = admit(self.folder, centre.roster, study_id(centre.study), text, utc_now())
        opened: Any = SimpleNamespace(
            site=SimpleNamespace(handle=lambda _frame: b"done"),
            set_budgets=lambda budgets: setattr(self, "budgets", budgets),
        )
        self.handler = StudyHandler(
            self.folder,
            admitted.terms,
            admitted.granted,
            opened,
            centre.roster,
            centre.roster,
            StatusBoard(self.folder.state / STATUS_FILE, self.folder.name),
            utc_now,
            SiteDecisions(self.folder, self.folder.identity(None)),
        )

    def refused(self, error: type[SecfedError], match: str) -> None:
        with pytest.raises(error, match=match) as caught:
            self.handler.handle(REQUEST)
        assert self.handler.withdrawn is caught.value


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, PRIVATE, policy=BUDGETED)
    yield made
    made.close()


def test_every_task_is_held_against_policy_and_pinned_roster_as_they_are_now(centre: Centre) -> None:
    study = Open(centre)
    assert study.handler.handle(REQUEST) == b"done"
    assert [budget.epsilon for budget in study.budgets] == [20.0]
    permit(study.folder, policy=BUDGETED.replace("epsilon = 20.0", "epsilon = 9.5"))
    assert study.handler.handle(REQUEST) == b"done"
    assert [budget.epsilon for budget in study.budgets] == [9.5]

    larger = Roster(
        centre.roster.aggregator, tuple(sorted([*centre.roster.members, ("hospital-9", bytes(32))]))
    )
    SiteFolder(study.folder.folder).trust(larger, utc_now())
    assert study.handler.handle(REQUEST) == b"done"
    assert study.handler.pinned == larger
    smaller = Roster(centre.roster.aggregator, centre.roster.members[:2])
    SiteFolder(study.folder.folder).trust(smaller, utc_now())
    study.refused(RosterError, "lacks a member of this study")
    (study.folder.folder / "pinned-roster.json").write_text("{}", encoding="utf-8")
    study.refused(ConfigError, "damaged")  # and not an error whose words leave this site


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name = "wards"', 'name = "beds"'),
        ("max_epsilon = 8.0", "max_epsilon = 8.0\nmax_delta_times_records = 0.001"),
        ("[studies]", "[protection]\nmax_elements = 7\n[studies]"),
        ("[studies]", "[compute]\ngpu = true\n[studies]"),
    ],
)
def test_a_study_that_would_be_opened_otherwise_now_is_opened_again(
    centre: Centre, old: str, new: str
) -> None:
    study = Open(centre)
    permit(study.folder, policy=BUDGETED.replace(old, new))
    study.refused(ConfigError, "other limits than it was opened with")
    now = still_permitted(study.folder, centre.study, len(NAMES), utc_now())
    assert now.digest != study.handler.granted.digest
    assert replace(now, budgets=()).digest == now.digest


def _message(kind: int) -> LinkRequest:
    frame = Step(1, 0, 1, labels.PROTOCOL + bytes([kind])).encode()
    return replace(REQUEST, frame=memoryview(frame))


def _refuse(study: Open) -> None:
    Approvals(study.folder.approvals_path).refuse_what("tiny", utc_now(), by=Person("a person"))


def _shrink_roster(study: Open) -> None:
    aggregator, members = study.handler.roster.aggregator, study.handler.roster.members
    SiteFolder(study.folder.folder).trust(Roster(aggregator, members[:2]), utc_now())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_refuse, PolicyRefused),
        (_shrink_roster, RosterError),
        (lambda study: permit(study.folder, policy=BUDGETED.replace('"tiny"', '"other"')), PolicyRefused),
        (lambda study: permit(study.folder, policy=BUDGETED.replace('"wards"', '"beds"')), ConfigError),
    ],
)
def test_no_attempt_begins_that_a_person_does_not_permit_any_more_and_one_that_began_is_finished(
    centre: Centre, change: Callable[[Open], None], error: type[SecfedError]
) -> None:
    study = Open(centre)
    begins, goes_on = _message(Specification.TYPE), _message(Upload.TYPE)
    assert study.handler.handle(begins) == b"done"
    change(study)
    assert study.handler.handle(goes_on) == b"done"
    with pytest.raises(error) as caught:
        study.handler.handle(begins)
    assert study.handler.withdrawn is caught.value


def test_what_was_begun_within_the_hours_is_finished_after_them_and_in_a_pause(centre: Centre) -> None:
    study = Open(centre)
    today = utc_now().astimezone(UTC).strftime("%a").lower()
    days = sorted({"mon", "tue", "wed", "thu", "fri", "sat", "sun"} - {today})
    hours = f'[[hours]]\ndays = {json.dumps(days)}\nstart = "10:00"\nend = "10:01"\n'
    permit(study.folder, policy=BUDGETED.replace("[[data.budget]]", hours + "[[data.budget]]"))
    pause(study.folder.state)
    begins = replace(
        REQUEST, frame=memoryview(Step(1, 0, 0, labels.PROTOCOL + bytes([Specification.TYPE])).encode())
    )
    assert study.handler.handle(begins) == b"done"
    resume(study.folder.state)
    study.refused(PolicyRefused, "waits for the hours")


def test_whatever_met_a_full_disk_the_agent_takes_no_part_until_there_is_room(centre: Centre) -> None:
    study, step = Open(centre), Step(1, 0, 0, labels.PROTOCOL + bytes([Upload.TYPE])).encode()

    def refuses(error: SecfedError) -> SecfedError | None:
        def fails(_frame: object) -> bytes:
            raise error

        study.handler.opened.site.handle = fails  # type: ignore[method-assign]
        study.handler.withdrawn = None
        with pytest.raises(type(error)):
            study.handler.handle(replace(REQUEST, frame=memoryview(step)))
        return study.handler.withdrawn

    full = DiskFull("no space left")
    assert refuses(full) is full
    assert refuses(ConfigError("another fault, of this attempt")) is None


def test_a_budget_that_was_lowered_meanwhile_covers_no_more_payment_and_the_ledger_says_when(
    centre: Centre, tmp_path: Path
) -> None:
    identity = centre.folders[NAMES[0]].identity(None)
    budget = Budget(20.0, 1e-4)
    ledger = Ledger(tmp_path / "ledger-wards.jsonl", identity, "wards", [budget], accountant=Rdp())
    privacy = SimpleNamespace(settings=centre.study.privacy, ledger=ledger)
    nothing: Any = None
    site: Any = SimpleNamespace(privacy=privacy)
    study = SiteStudy(site, centre.terms, nothing, tmp_path, nothing, nothing, nothing, nothing)
    event = Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 1.0, 1)
    ledger.spend(event, study="s", round_number=1, exchange="update")
    study.set_budgets([Budget(0.5, 1e-3), budget])
    with pytest.raises(BudgetExceeded, match=r"epsilon 0\.5"):
        ledger.spend(event, study="s", round_number=2, exchange="update")
    study.set_budgets([])
    ledger.spend(event, study="s", round_number=2, exchange="update")
    entries = verify(ledger.path.read_bytes().splitlines(keepends=True), identity.public_bytes)
    told = [[one["epsilon"] for one in entry.body["budgets"]] for entry in entries if entry.kind == BUDGETS]
    assert told == [[20.0], [0.5, 20.0], [None]]
