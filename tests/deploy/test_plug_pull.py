"""Kill -9 at every named point of agent and aggregator; started again, the study ends as if nothing had been.

One study goes through all points of a party: whenever the process dies, the next start is told to die at the
next point. So processes die while they repeat what their predecessors began, too.

Compared with the same study in one process, byte for byte: the model (so every total), which sums there were
and over whom, and what was paid. All transcripts and ledgers must verify together.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from secfed.dp.ledger.ledger import SPENT, verify
from secfed.records.chain_file import verify_file
from secfed.records.decision_log import DECISIONS
from secfed.records.decision_state import ACCEPTED, FINISHED, POLICY, REFUSAL, ROSTER
from secfed.records.hash_chain import OPENED
from secfed.records.roster_file import read_roster
from secfed.runs.run_folder import DECISIONS_FILE, ledger_file, site_folder
from secfed.study.study import Study
from tests.conftest import ROOT
from tests.deploy.deployment_case import STUDY, Deployment, sums
from tests.deploy.simulated import model_in, simulated

VICTIM: Final = "hospital-1"
ROUNDS: Final = 6
DATA: Final = "breast-cancer"

# In the order in which an exchange comes by.
AGENT_POINTS: Final = (
    "agent: request arrived",
    "site: frame arrived",
    "site: before work noted",
    "site: after work noted",
    "site: after paid",
    "agent: before payment",
    "agent: after payment",
    "site: before contribution noted",
    "site: after contribution noted",
    "site: before answer noted",
    "site: after answer noted",
    "agent: before answer leaves",
    "site: after attempt opened",
    "site: after message noted",
    "site: before record ended",
    "site: before begin journalled",
    "site: after begin journalled",
    "site: before upload journalled",
    "site: after upload journalled",
    "site: before unmask journalled",
    "site: after unmask journalled",
    "site: before secrets erased",
    "site: after position noted",
    "site: after secrets erased",
)
AGGREGATOR_POINTS: Final = (
    "aggregate: before the settings are in the transcript",
    "aggregate: before a checkpoint is written",
    "aggregate: after a checkpoint is written",
    "aggregate: after a checkpoint is in the transcript",
    "aggregate: after a checkpoint is in place",
    "aggregate: before an ask is recorded",
    "aggregate: after an ask is recorded",
    "aggregate: before a reply is recorded",
    "aggregate: after a reply is recorded",
    "aggregate: after a reply is used",
    "aggregate: before a step is closed",
    "aggregate: after a step is closed",
    # Five messages later in the same exchange, with replies of several steps on the disk.
    "aggregate: before a reply is recorded:11",
    "aggregate: after a step is closed:3",
    "aggregate: before an ask is recorded:4",
    "aggregate: after a reply is used:7",
    "aggregate: before summed is in the transcript",
    "aggregate: after summed is in the transcript",
    "aggregate: before the results are written",
    "aggregate: after the model is written",
    "aggregate: after the results are written",
)
ELSEWHERE: Final = {
    "site: before upload noted": "encrypted protection: tests/secfed",
    "site: after upload noted": "encrypted protection: tests/secfed",
    "site: after sum noted": "encrypted protection: tests/secfed",
    "site: before state noted": "encrypted protection: tests/secfed",
    "site: after state noted": "encrypted protection: tests/secfed",
    "site: before model written": "at the end of a study: tests/secfed/runs/test_final_model.py",
    "site: after model written": "at the end of a study: tests/secfed/runs/test_final_model.py",
    "site: after model recorded": "at the end of a study: tests/secfed/runs/test_final_model.py",
    "simulation: before its state is written": "tests/secfed/simulation/test_unfinished.py",
    "simulation: after its state is written": "tests/secfed/simulation/test_unfinished.py",
    "simulation: after its state is in place": "tests/secfed/simulation/test_unfinished.py",
    "site: before task taken": "sums that build on others: tests/algorithms/framework/test_links_kept.py",
    "agent: after an offer is kept": "a study that waits: tests/deploy/admission/test_kept_offers.py",
    "notification: queued": "not in a study: tests/deploy/notification/test_notifier.py",
    "notification: delivered": "not in a study: tests/deploy/notification/test_notifier.py",
    "aggregate: before a sum is stored": "encrypted protection: test_aggregator_crashes.py",
    "aggregate: after a sum is stored": "encrypted protection: test_aggregator_crashes.py",
    "aggregate: before aborted is in the transcript": "no round is aborted here: test_aggregator_crashes.py",
    "aggregate: after aborted is in the transcript": "no round is aborted here: test_aggregator_crashes.py",
}


def named_points() -> set[str]:
    """Every crash point in the sources."""
    found: set[str] = set()
    for folder in ("secfed", "deploy", "dp", "algorithms"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"\bfailpoint\(\s*f?\"([^\"]+)\"", path.read_text(encoding="utf-8")):
                kinds = ("summed", "aborted") if "{kind}" in name else ("",)
                found |= {name.replace("{kind}", kind) for kind in kinds}
    return found


def test_every_named_point_is_pulled_here_or_elsewhere() -> None:
    here = {re.sub(r":\d+$", "", point) for point in (*AGENT_POINTS, *AGGREGATOR_POINTS)}
    assert here | set(ELSEWHERE) == named_points()
    assert not here & set(ELSEWHERE)
    assert len(AGENT_POINTS) + len(AGGREGATOR_POINTS) >= 40


def spent(path: Path, key: bytes, owner: str) -> list[tuple[Any, ...]]:
    """What a ledger says was paid for, and what was spent after each payment."""
    with path.open("rb") as lines:
        entries = verify(lines, key, owner=owner)
    return [
        (entry.body["round"], entry.body["exchange"], str(entry.body["event"]))
        for entry in entries
        if entry.kind == SPENT
    ]


class Undisturbed:
    """The study in one process, with the same seeds."""

    def __init__(self, folder: Path) -> None:
        study = Study.parse(STUDY.format(rounds=ROUNDS, sites=3))
        self.model = simulated(study, folder)
        roster = read_roster(folder / "roster.json")
        self.sums = sums(folder / "transcript.jsonl", roster.aggregator, "attempt")
        self.spent = {
            name: spent(ledger_file(site_folder(folder, name), DATA), key, name)
            for name, key in roster.members
        }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    # Nobody is given up: a busy machine may need minutes for forty starts.
    options = ["--silent", "600", "--farewell", "300"]
    return Deployment(tmp_path, STUDY.format(rounds=ROUNDS, sites=3), options=options)


def check(deployment: Deployment, undisturbed: Undisturbed) -> None:
    assert model_in(deployment.out) == undisturbed.model
    assert deployment.sums() == undisturbed.sums
    roster = read_roster(deployment.folder / "centre" / "roster.json")
    for name, key in roster.members:
        ledger = ledger_file(deployment.folder / name / "state", DATA)
        assert spent(ledger, key, name) == undisturbed.spent[name]
        decisions = deployment.folder / name / "state" / DECISIONS_FILE
        decided = [entry.kind for entry in verify_file(decisions, key, DECISIONS, owner=name)]
        # However often it was started: what was decided is decided once.
        assert [kind for kind in decided if kind != REFUSAL] == [OPENED, ROSTER, POLICY, ACCEPTED, FINISHED]
    deployment.verify()


@pytest.mark.slow
def test_an_agent_killed_at_every_point(deployment: Deployment, undisturbed: Undisturbed) -> None:
    victim = deployment.agents[VICTIM]
    victim.points = list(AGENT_POINTS)
    deployment.run()
    assert (victim.deaths, victim.points) == (list(AGENT_POINTS), [])
    check(deployment, undisturbed)


@pytest.mark.slow
def test_the_aggregator_killed_at_every_point(deployment: Deployment, undisturbed: Undisturbed) -> None:
    victim = deployment.aggregator
    victim.points = list(AGGREGATOR_POINTS)
    deployment.run()
    assert (victim.deaths, victim.points) == (list(AGGREGATOR_POINTS), [])
    check(deployment, undisturbed)


@pytest.mark.slow
def test_everybody_killed_in_turn(deployment: Deployment, undisturbed: Undisturbed) -> None:
    """Aggregator and all hospitals die in the same study, not seldom at the same time."""
    parties = [deployment.aggregator, *deployment.agents.values()]
    parties[0].points = [point for point in AGGREGATOR_POINTS if "recorded" in point or "checkpoint" in point]
    for at, agent in enumerate(parties[1:]):
        agent.points = list(AGENT_POINTS[at::5])
    wanted = [list(party.points) for party in parties]
    deployment.run()
    assert [party.deaths for party in parties] == wanted
    check(deployment, undisturbed)
