"""A hospital begins no study that its budgets cannot carry to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secfed.deploy.agent import agent as agent_module
from secfed.deploy.agent import training
from secfed.deploy.agent.status import STATUS_FILE
from secfed.deploy.agent.whole_study import PLANNED_S, WholeStudies
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import BUDGETS, SPENT, Ledger, verify
from secfed.errors import BudgetExceeded
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
    # A training process that dies on a busy machine is another reason, of one visit.
    wait_until(lambda: centre.declined() == "BudgetExceeded: a privacy budget does not cover this")
    assert kinds(centre) == [OPENED, BUDGETS, SPENT]
    error = status(folder)["last_error"]["text"]
    assert "data set 'wards': the whole of study 'tiny-" in error
    assert "raise epsilon of [[data.budget]] in policy.toml" in error
    opened, processes = len(visits), len(started)
    wait_until(lambda: len(visits) >= opened + 2)
    assert len(started) == processes, "what was refused is refused again without reading the data"

    permit(folder, policy=budget(20.0))
    wait_until(lambda: '"serving"' in (folder.state / STATUS_FILE).read_text(), 60.0)
    assert kinds(centre) == [OPENED, BUDGETS, SPENT, BUDGETS]
    agent.stop()
    centre.ended()
    assert not centre.errors


def test_a_plan_is_made_anew_after_a_while_since_records_may_have_been_added() -> None:
    clock, asked, started = [0.0], [], []

    def check_whole(steps: Any) -> None:
        asked.append(tuple(steps))
        raise BudgetExceeded("no")

    opened: Any = SimpleNamespace(terms=SimpleNamespace(study_id="s"), check_whole=check_whole)
    training: Any = SimpleNamespace(start=lambda: started.append(clock[0]), planned=(BEFORE,))
    whole = WholeStudies(now_s=lambda: clock[0])
    for clock[0] in (0.0, PLANNED_S - 1.0, PLANNED_S):
        with pytest.raises(BudgetExceeded):
            whole.load(opened, training)
    assert started == [0.0, PLANNED_S]
    assert asked == [(BEFORE,)] * 3
