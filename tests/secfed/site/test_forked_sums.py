"""An aggregator that leads two halves of the hospitals apart: no message shows it, and the records do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfile

import pytest

from secfed.audit.transcript_check import verify_run
from secfed.crypto.messages import DIGEST_BYTES
from secfed.errors import InconsistentView
from secfed.protection.opened_at_sites import ExpectedState
from secfed.records.transcript import CLOSED, Transcript
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE, site_folder
from secfed.server.make_run import make_run
from secfed.server.opened_rounds import OpenedRounds, SumStore
from secfed.wire.frames import Task
from tests.secfed import durable_case
from tests.secfed.durable_case import Consortium

PEOPLE = tuple(f"hospital-{number}" for number in range(1, 7))
HALVES = PEOPLE[:3], PEOPLE[3:]


@dataclass
class Fork:
    """A study that is led apart, with what the aggregator shows of each half."""

    made: Consortium
    folder: Path

    def lead(self, rounds: int) -> None:
        """Both halves through these rounds, counted from 1."""
        for half, sites in enumerate(HALVES):
            rules, shown = replace(self.made.rules, sites=sites), self.folder / str(half)
            shown.mkdir()
            identity, digest = rules.identity, rules.roster.digest
            path, plan = shown / TRANSCRIPT_FILE, self.made.terms.algorithm
            with Transcript(identity, study=rules.study, roster_digest=digest, sink=path) as log:
                run = make_run(plan, rounds - 1, rules, self.made.ask, log, sums=shown / "sums")
                run.run(self.made.outcomes.append)  # "rounds" of them, and one that measures
                log.append(CLOSED, log.closing())

    def verified(self, shown: Path, sites: Sequence[str]) -> list[str]:
        """What is wrong by the records of these hospitals, beside what the aggregator shows."""
        for name in sites:
            hospital, target = self.made.hospitals[name], site_folder(shown, name)
            target.mkdir(parents=True)
            assert hospital.open is not None
            for file in (TRANSCRIPT_FILE, MODEL_FILE):
                copyfile(hospital.open.folder / file, target / file)
        return [str(problem) for problem in verify_run(shown, self.made.roster).problems]


@pytest.fixture
def fork(tmp_path: Path) -> Iterator[Fork]:
    study = durable_case.study("closed", None).replace("data.sites", len(PEOPLE))
    made = Fork(Consortium(study, tmp_path / "hospitals", people=PEOPLE), tmp_path)
    yield made
    made.made.close()


def test_halves_that_were_led_apart_cannot_be_led_together_again(fork: Fork) -> None:
    fork.lead(1)
    made = fork.made
    assert [(outcome.aborted, outcome.survivors) for outcome in made.outcomes] == [
        (None, half) for half in HALVES
    ]
    sites = {name: hospital.open.site for name, hospital in made.hospitals.items() if hospital.open}
    tags = [sites[name]._state_tag() for name in PEOPLE]  # type: ignore[attr-defined]
    assert [tags.count(tag) for tag in tags] == [3] * 6

    # One task to all, in the name of one half's state: the other half does not work on it.
    exchange = made.terms.algorithm.exchanges(2)[0]
    for tag, ready in ((tags[0], HALVES[0]), (bytes(DIGEST_BYTES), PEOPLE)):
        state = ExpectedState(1, tag).encode()
        task, answered = Task(made.rules.study, 2, 0, exchange.name, state).encode(), []
        for name, hospital in made.hospitals.items():
            with suppress(InconsistentView):
                hospital.handle(task)
                answered.append(name)
        assert tuple(answered) == ready
    # In the name of none it works, and then takes no part: the specification names one state.
    store, rules = SumStore(fork.folder, 1), made.rules
    rounds = OpenedRounds(made.terms.algorithm, 1, rules.protection, rules, store, made.ask, NullLog())
    rounds.state = tags[0]
    made.frames.clear()
    summed, _ = rounds.sum_up(2, 0, exchange, list(PEOPLE))
    assert summed.result.survivors == HALVES[0]
    refused = {name for stage, name, _, reply in made.frames if reply is None and "refusal 15:" in stage}
    assert refused == set(HALVES[1])


def test_halves_are_led_to_the_end_and_any_record_of_both_shows_it(fork: Fork) -> None:
    """One half beside what the aggregator shows *it* is as if the other hospitals had been away."""
    fork.lead(2)
    assert all(outcome.aborted is None for outcome in fork.made.outcomes)
    for hospital in fork.made.hospitals.values():
        assert hospital.open is not None
        hospital.open.finish()
    for number, half in enumerate(HALVES):
        assert fork.verified(fork.folder / str(number), half) == []
    # One hospital of the other half is enough, beside the aggregator's transcript and without it.
    wrong = fork.verified(fork.folder / "0", PEOPLE[3:4])
    assert any("another specification than the aggregator's line" in why for why in wrong)
    assert any("names another model" in why for why in wrong)
    wrong = fork.verified(fork.folder / "without", (PEOPLE[0], PEOPLE[5]))
    assert sum("the aggregator signed two results of this exchange" in why for why in wrong) == 2


@pytest.mark.parametrize("where", ["policy", "study"])
def test_hospitals_that_want_more_than_half_of_all_in_every_sum_cannot_be_led_apart(
    where: str, tmp_path: Path
) -> None:
    study = durable_case.study("closed", None).replace("data.sites", len(PEOPLE))
    if where == "study":
        study = study.replace("protection.min_cohort", 4)
    fork = Fork(Consortium(study, tmp_path / "hospitals", people=PEOPLE), tmp_path)
    fork.made.rules = replace(fork.made.rules, min_cohort=3, threshold=lambda _: 3)
    for hospital in fork.made.hospitals.values():
        if where == "policy":
            assert hospital.open is not None
            hospital.open.site._limits = replace(hospital.open.site._limits, min_cohort=4)
    fork.lead(1)
    assert all(outcome.aborted is not None for outcome in fork.made.outcomes)
    reasons = {stage.split(" (")[0] for stage, _, _, reply in fork.made.frames if reply is None}
    assert len(reasons) == 1
    assert "refusal 8:" in reasons.pop()
    fork.made.close()


class NullLog:
    def append(self, kind: str, body: object) -> None:
        pass
