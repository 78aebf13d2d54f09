"""What is held of a run while it goes on: of no exchange the totals, the ciphertext or the state."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from secfed.errors import RangeError, RoundAborted
from secfed.protection.plain import PlainServer
from secfed.runs.run_report import SilentObserver
from secfed.server.coordinator import Coordinator, RoundOutcome, StudyRun
from secfed.simulation.dropouts import Dropout
from secfed.simulation.simulate import simulate
from secfed.study.study import Study

STUDY = """
study = {{ name = "small", rounds = 4, seed = 11 }}
algorithm = {{ name = "fedavg", learning_rate = 0.05, batch_size = 64 }}
model = {{ name = "logistic-regression" }}
data = {{ name = "breast-cancer", sites = 4, partition = "iid" }}
protection = {{ name = "{protection}" }}
"""


class Large:
    """As large as a model."""


@pytest.mark.parametrize("protection", ["plain", "encrypted"])
def test_a_finished_sum_is_not_held_until_the_run_ends(
    protection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if protection == "encrypted":
        pytest.importorskip("tenseal")
    sums: list[weakref.ref[Any]] = []
    held: list[int] = []
    record, run = StudyRun._record, StudyRun.run

    def noted(self: StudyRun, outcome: RoundOutcome, summed: Any, more: Any) -> None:
        sums.append(weakref.ref(summed))
        record(self, outcome, summed, more)

    def watched(self: StudyRun, finished: Any) -> Any:
        def counted(outcome: RoundOutcome) -> None:
            gc.collect()
            held.append(sum(one() is not None for one in sums))
            finished(outcome)

        return run(self, counted)

    monkeypatch.setattr(StudyRun, "_record", noted)
    monkeypatch.setattr(StudyRun, "run", watched)
    text = STUDY.format(protection=protection)
    report = simulate(Study.parse(text), out=None, drops=[], observer=SilentObserver())
    assert report.saw  # the report needs none of them
    assert len(sums) == 5
    assert held == [0] * 5


def test_nor_is_the_session_of_a_round_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[weakref.ref[PlainServer]] = []
    outcomes: list[RoundOutcome] = []
    make, run = PlainServer.__init__, Coordinator.run

    def noted(self: PlainServer, *arguments: Any) -> None:
        make(self, *arguments)
        sessions.append(weakref.ref(self))

    monkeypatch.setattr(PlainServer, "__init__", noted)

    def watched(self: Coordinator, finished: Any) -> Any:
        outcomes.extend(run(self, finished))

    monkeypatch.setattr(Coordinator, "run", watched)
    drops = [Dropout.parse(f"hospital-{number}@mask:2") for number in (1, 2, 3)]
    plan = Study.parse(STUDY.format(protection="plain"))
    report = simulate(plan, out=None, drops=drops, observer=SilentObserver())
    gc.collect()
    error = outcomes[1].aborted
    assert error is not None
    assert (error.message, error.remedy) == (report.rounds[1].aborted, "wait for more sites")
    assert len(sessions) >= 5
    assert [session() for session in sessions] == [None] * len(sessions)


def test_nor_is_what_an_abort_followed_from() -> None:
    made: list[weakref.ref[Large]] = []

    class Aborting(StudyRun):
        def _round(self, number: int, outcome: RoundOutcome) -> None:
            del outcome
            try:
                self._decode()
            except RangeError as error:
                raise RoundAborted(f"round {number}: {error.message}", remedy="discard it") from None

        def _decode(self) -> None:
            totals = Large()
            made.append(weakref.ref(totals))
            raise RangeError("out of range")

        def _saved(self) -> Any:
            return {}, {}

    class Ignored:
        def append(self, kind: str, body: Any) -> None:
            """Nothing is kept."""

    outcomes = Aborting(3, Ignored()).run(lambda _: None)
    gc.collect()
    assert [str(outcome.aborted) for outcome in outcomes] == [
        f"round {number}: out of range. Remedy: discard it" for number in (1, 2, 3, 4)
    ]
    assert [one() for one in made] == [None] * 4
