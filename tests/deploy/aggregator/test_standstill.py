"""A run whose rounds can come to no sum any more stops after the first of them, and can go on or be ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from secfed.crypto.codec import Buffer
from secfed.deploy.aggregator.standstill import Refusal, standstill
from secfed.errors import StudyStopped
from secfed.records.chain_file import verify_file
from secfed.records.transcript import MODEL, SUMMED, TRANSCRIPT
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE
from secfed.runs.run_report import RunReport
from secfed.wire.transport import OnReply
from tests.deploy.central_case import Hospitals, LocalCarrier

ASKED = ("a", "b", "c", "d", "e")
ROSTER = Refusal("advertise", "RosterError", "refusal 4")
BUDGET = Refusal("train", "BudgetExceeded", "")
CLOSED = Refusal("train", "PolicyRefused", "hours")


@pytest.mark.parametrize(
    ("refusals", "stops"),
    [
        ({}, False),
        (dict.fromkeys("ab", ROSTER), False),  # three are left, and three are enough
        (dict.fromkeys("abc", ROSTER), True),
        (dict.fromkeys("abc", BUDGET), True),
        (dict.fromkeys("abc", CLOSED), False),  # nothing is begun until they are back
        ({"a": ROSTER, "b": ROSTER, "c": BUDGET}, False),  # not one and the same reason
        ({"x": ROSTER, "y": ROSTER, "a": ROSTER}, False),  # of those that were asked
    ],
)
def test_too_few_are_left_when_too_many_refuse_alike(refusals: Mapping[str, Refusal], stops: bool) -> None:
    assert (standstill(3, ASKED, 3, refusals) is not None) is stops


FULL = Refusal("mask", "SecfedError", "this site cannot do this now")


@pytest.mark.parametrize(
    ("refusals", "failed", "stops"),
    [
        (dict.fromkeys("abc", FULL), "abc", False),  # no exchange begins without them
        (dict.fromkeys("abc", FULL), "ab", True),  # one says that it is there, and would refuse again
        (dict.fromkeys("abc", BUDGET), "abc", True),  # that takes no part either, and time does not end it
    ],
)
def test_hospitals_that_have_to_put_something_right_are_waited_for(
    refusals: Mapping[str, Refusal], failed: str, stops: bool
) -> None:
    found = standstill(3, ASKED, 3, refusals, lambda sites: set(sites) & set(failed))
    assert (found is not None) is stops


def test_the_reason_and_what_to_do_are_named() -> None:
    found = standstill(3, ASKED, 3, dict.fromkeys("abc", ROSTER))
    assert "round 3: 3 of 5 hospitals refused alike, and a sum needs 3: refusal 4" in found.message
    assert "secfed site trust ROSTER" in found.remedy
    budget = standstill(3, ASKED, 3, dict.fromkeys("abc", BUDGET))
    assert "--end" in budget.remedy


class Refusing(LocalCarrier):
    """Three of four hospitals refuse every message of the rounds that are named."""

    rounds: frozenset[int]
    trained: list[int]
    reason: Refusal = ROSTER

    def ask(self, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
        if stage == "train":
            self.trained.append(self.round)
        refuse = stage == "advertise" and self.round in self.rounds
        gone = set(sorted(requests)[:3]) if refuse else set()
        self.refusals = dict.fromkeys(gone, self.reason) if gone else self.refusals
        super().ask(stage, {site: frame for site, frame in requests.items() if site not in gone}, on_reply)

    def failed(self, sites: Collection[str]) -> Collection[str]:
        return sites if self.reason is FULL else ()

    def start_round(self, number: int) -> None:
        super().start_round(number)
        self.refusals = {}


def run(
    hospitals: Hospitals,
    refusing: set[int],
    trained: list[int],
    *,
    end: bool = False,
    reason: Refusal = ROSTER,
) -> RunReport:
    def carrier(log: object) -> LocalCarrier:
        made = Refusing(hospitals, log)  # type: ignore[arg-type]
        made.rounds, made.trained, made.reason = frozenset(refusing), trained, reason
        return made

    return hospitals.run(carrier=carrier, end=end)


def test_no_round_is_begun_after_one_that_too_many_refused_alike(tmp_path: Path) -> None:
    hospitals, trained = Hospitals(tmp_path, rounds=4), list[int]()
    with pytest.raises(StudyStopped, match="round 1: 3 of 4 hospitals refused alike"):
        run(hospitals, {1, 2, 3, 4}, trained)
    assert trained == [1]
    assert not (hospitals.out / MODEL_FILE).exists()
    report = run(hospitals, set(), trained)  # whatever it was is mended: the run goes on
    assert trained == [1, 2, 3, 4, 5]
    assert [row.round for row in report.rounds if row.aborted is None] == [2, 3, 4]


def test_a_hospital_that_fails_again_after_it_came_back_is_not_waited_for_once_more(tmp_path: Path) -> None:
    hospitals, trained = Hospitals(tmp_path, rounds=4), list[int]()
    with pytest.raises(StudyStopped, match="round 3: 3 of 4 hospitals refused alike"):
        run(hospitals, {1, 3, 4}, trained, reason=FULL)
    assert trained == [1, 2, 3]
    report = run(hospitals, set(), trained, reason=FULL)
    assert [row.round for row in report.rounds if row.aborted is None] == [2, 4]


def test_a_study_that_was_stopped_can_be_ended_with_the_model_it_has(tmp_path: Path) -> None:
    hospitals, trained = Hospitals(tmp_path, rounds=4), list[int]()
    with pytest.raises(StudyStopped):
        run(hospitals, {2, 3, 4}, trained)
    report = run(hospitals, {2, 3, 4}, trained, end=True)
    assert trained == [1, 2]
    assert [row.round for row in report.rounds if row.aborted is None] == [1]
    assert (hospitals.out / MODEL_FILE).is_file()
    entries = verify_file(hospitals.out / TRANSCRIPT_FILE, hospitals.aggregator.public_bytes, TRANSCRIPT)
    assert [entry.body["round"] for entry in entries if entry.kind == SUMMED] == [1]
    assert [entry.kind for entry in entries][-1] == MODEL  # what its hospitals are then given
