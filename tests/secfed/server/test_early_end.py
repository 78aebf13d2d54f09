"""Rounds that the sums call off: left out, and said so once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from secfed.records.transcript import STOPPED
from secfed.server.checkpoints import ReplayedLog
from secfed.server.coordinator import Position, RoundOutcome, StudyRun

ROUNDS, LAST = 6, 2


class Entries:
    """A transcript of what was appended."""

    def __init__(self) -> None:
        self.appended: list[Any] = []

    def append(self, kind: str, body: Any) -> Any:
        self.appended.append(SimpleNamespace(kind=kind, body=body))
        return self.appended[-1]


class Run(StudyRun):
    """Rounds of which the second ends training."""

    def __init__(self, log: Any, begins: int = 1) -> None:
        start = Position(begins)
        kept = SimpleNamespace(start=start, is_due=lambda _: True, keep=lambda *_: None)
        super().__init__(ROUNDS, log, kept)
        self.server: Any = SimpleNamespace(stopped=None if begins <= LAST else LAST)
        self.played: list[int] = []

    def _round(self, number: int, outcome: RoundOutcome) -> None:
        del outcome
        self.played.append(number)
        if number == LAST:
            self.server.stopped = LAST

    def _saved(self) -> Any:
        return {}, {}


def test_rounds_that_are_left_are_left_out() -> None:
    log = Entries()
    run = Run(log)
    told: list[int] = []
    run.run(lambda outcome: told.append(outcome.round))
    assert run.played == told == [1, 2, ROUNDS + 1]
    assert [(entry.kind, entry.body) for entry in log.appended] == [(STOPPED, {"round": LAST})]


def test_a_restart_says_it_no_second_time() -> None:
    first, second = Entries(), Entries()
    Run(first).run(lambda _: None)
    again = Run(ReplayedLog(second, first.appended), LAST + 1)  # it died before the closing evaluation
    again.run(lambda _: None)
    assert again.played == [ROUNDS + 1]
    assert not second.appended
