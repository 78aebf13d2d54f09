"""A hospital begins no study that its budgets cannot carry to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.agent import agent as agent_module
from secfed.deploy.agent import training
from secfed.deploy.agent.status import STATUS_FILE
from secfed.deploy.agent.study_end import refused_by_person
from secfed.deploy.enrolment.messages import utc_now
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import BUDGETS, REFUSED, SPENT, Ledger, verify
from secfed.dp.ledger.promises import ENDED, PROMISED
from secfed.records.hash_chain import OPENED
from secfed.runs.run_folder import ledger_file
from secfed.site.runtime import SiteStudy
from tests.deploy.agent_case import BUDGETED, NAMES, PRIVATE, Centre, permit, status
from tests.deploy.link_case import wait_until
from tests.forks import Fork

# Of all records: noise for sampled ones is sought for seconds.
THREE_ROUNDS = PRIVATE.replace("rounds = 1", "rounds = 3").replace("batch_size = 64", "batch_size = 256")
BEFORE = Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 1.6, 1)  # earlier; the first round fits beside it


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[float], Centre]]:
    made: list[Centre] = []

    def centre(epsilon: float) -> Centre:
        made.append(Centre(tmp_path, THREE_ROUNDS, policy=budget(epsilon)))
        return made[-1]

    yield centre
    for one in made:
        one.close()


def budget(epsilon: float) -> str:
    return BUDGETED.replace("epsilon = 20.0", f"epsilon = {epsilon}")


def kinds(centre: Centre, name: str = NAMES[0]) -> list[str]:
    folder = centre.folders[name]
    path = ledger_file(folder.state, "wards")
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [entry.kind for entry in verify(lines, folder.identity(None).public_bytes)] if lines else []


def test_a_study_that_would_stop_in_the_middle_is_refused_before_it_pays(
    make: Callable[[float], Centre], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def popen(*arguments: Any, **options: Any) -> Fork:
        started.append(arguments)
        return Fork(*arguments, **options)

    monkeypatch.setattr(training.subprocess, "Popen", popen)
    visits, really = [], agent_module.open_site_study

    def open_site_study(*arguments: Any, **options: Any) -> SiteStudy:
        visits.append(arguments)
        return really(*arguments, **options)

    monkeypatch.setattr(agent_module, "open_site_study", open_site_study)
    centre = make(8.5)
    folder = centre.folders[NAMES[0]]
    ledger = Ledger(
        ledger_file(folder.state, "wards"),
        folder.identity(None),
        "wards",
        [Budget(8.5, 1e-4)],
        accountant=Rdp(),
    )
    ledger.spend(BEFORE, study="earlier", round_number=1, exchange="update")
    agent = centre.start(NAMES[0])
    wait_until(centre.declined, 120.0)
    assert kinds(centre) == [OPENED, BUDGETS, SPENT, REFUSED]
    error = status(folder)["last_error"]["text"]
    assert "data set 'wards': the whole of study 'tiny-" in error
    assert "raise epsilon of [[data.budget]] in policy.toml" in error
    assert centre.declined() == "BudgetExceeded: a privacy budget does not cover this"
    opened = len(visits)
    wait_until(lambda: len(visits) >= opened + 2, 120.0)
    assert len(started) == 1, "what was refused is refused again without reading the data"

    permit(folder, policy=budget(20.0))
    wait_until(lambda: '"serving"' in (folder.state / STATUS_FILE).read_text(), 120.0)
    assert kinds(centre) == [OPENED, BUDGETS, SPENT, REFUSED, BUDGETS, PROMISED]
    agent.stop()
    centre.ended()
    assert not centre.errors


@pytest.mark.slow
def test_what_is_not_used_is_free_when_the_study_is_over(make: Callable[[float], Centre]) -> None:
    centre = make(8.5)
    for name in NAMES:
        centre.start(name)
    centre.complete()
    for name in NAMES:
        found = kinds(centre, name)
        assert found[2] == PROMISED
        assert found[-1] == ENDED


def test_a_study_that_a_person_refused_pays_nothing_more(make: Callable[[float], Centre]) -> None:
    folder = make(8.5).folders[NAMES[0]]
    one, other = "heart-1-" + 64 * "a", "lung-" + 64 * "b"
    approvals = Approvals(folder.approvals_path)
    approvals.hold("heart-1", bytes.fromhex(one[-64:]), utc_now())
    assert not refused_by_person(folder, one)
    assert not refused_by_person(folder, other)
    approvals.refuse_what("heart-1", utc_now())
    approvals.refuse_what("lung", utc_now())  # which has not asked, or was forgotten
    assert refused_by_person(folder, one)
    assert refused_by_person(folder, other)
    assert not refused_by_person(folder, "lung-2-" + 64 * "b")
