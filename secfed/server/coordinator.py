"""The aggregator: runs the rounds of one study, records what was summed, goes on when a round fails.

It holds totals and the server program's state; where sites open the sums not even those. It never holds
anything finer; the only places where one site's (masked or encrypted) bytes pass are the protection's
server session and the link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from secfed.algorithms.framework.base import Algorithm, ServerProgram
from secfed.crypto.encrypted.messages import AnySum
from secfed.crypto.messages import Result, Specification
from secfed.errors import RoundAborted, StudyStopped
from secfed.records.transcript import ABORTED, STOPPED, SUMMED, Log, SumRecord
from secfed.server.round import Ask, RoundSum, Rules, run_round
from secfed.study.warm_start import initial_server
from secfed.wire.layout import State


@dataclass(frozen=True)
class FinishedSum:
    """What is kept of a finished exchange until the run ends: neither totals nor ciphertext."""

    spec: Specification  # what was asked for
    result: Result  # what came of it


@dataclass(frozen=True, order=True)
class Position:
    """The next exchange of a study."""

    round: int = 1  # counted from 1; ``rounds + 2`` when all is done
    exchange_index: int = 0  # counted from 0


class Keeper(Protocol):
    """Where a run is kept, so that another process can go on with it (``checkpoints.py``)."""

    start: Position  # where to begin or go on
    state: State | None  # state, facts: what :meth:`keep` was given there; None for a run that begins
    facts: Mapping[str, Any]

    def is_due(self, position: Position) -> bool:
        """Whether to keep what there is before ``position``; a simulation leaves most of it out."""
        ...

    def keep(self, position: Position, state: State, facts: Mapping[str, Any]) -> None:
        """Keep everything that the exchanges before ``position`` left behind."""
        ...


@dataclass
class RoundOutcome:
    """What one round came to."""

    round: int
    sums: list[FinishedSum] = field(default_factory=list)
    aborted: RoundAborted | None = None

    @property
    def survivors(self) -> tuple[str, ...]:
        """Sites in a sum of the round: its exchanges may be for different sites."""
        return tuple(dict.fromkeys(site for summed in self.sums for site in summed.result.survivors))


class StudyRun:
    """The rounds of one study, in order, and a closing evaluation; subclasses say what a round is.

    ``keeper`` keeps the run, and says where to begin; None for a run that ends with its process.
    """

    server: ServerProgram | None = None  # None where only sites run the server program

    def __init__(self, rounds: int, log: Log, keeper: Keeper | None = None) -> None:
        self._rounds, self._log, self._keeper = rounds, log, keeper
        self._start = Position() if keeper is None else keeper.start

    def run(
        self,
        finished: Callable[[RoundOutcome], None],
        stop: Callable[[RoundOutcome], StudyStopped | None] = lambda _: None,
    ) -> Sequence[RoundOutcome]:
        """Run all rounds; ``finished`` is told of each.

        Args:
            stop: asked after a training round that was aborted: why to go no further, if so; raised. A
                resumed run goes on with the round after it.

        Where a round is aborted, the exchange that was given up and those after it move nothing; exchanges of
        the round that were finished before have moved the model.
        """
        outcomes = []
        stopped_after: int | None = None
        for number in range(self._start.round, self._rounds + 2):
            last = None if self.server is None else self.server.stopped
            if last is not None and last < number <= self._rounds:
                if stopped_after is None:
                    self._log.append(STOPPED, {"round": last})
                stopped_after = last
                continue
            outcome = RoundOutcome(number)
            try:
                self._round(number, outcome)
            except RoundAborted as error:
                # A copy: the error itself holds, by its traceback, the state and the session of the attempt.
                outcome.aborted = RoundAborted(error.message, remedy=error.remedy)
                self._log.append(ABORTED, {"round": number, "reason": error.message})
            outcomes.append(outcome)
            stopped = stop(outcome) if outcome.aborted is not None and number <= self._rounds else None
            finished(outcome)
            if stopped is not None:
                self._keep(number + 1, 0)
                raise stopped
        self._keep(self._rounds + 2, 0)
        return outcomes

    def _round(self, number: int, outcome: RoundOutcome) -> None:
        raise NotImplementedError

    def _saved(self) -> tuple[State, Mapping[str, Any]]:
        """What another process needs to go on from here."""
        raise NotImplementedError

    def _keep(self, number: int, index: int) -> None:
        if self._keeper is not None and self._keeper.is_due(Position(number, index)):
            self._keeper.keep(Position(number, index), *self._saved())

    def _first(self, number: int) -> int:
        """The exchange that a round begins at."""
        return self._start.exchange_index if number == self._start.round else 0

    def _record(self, outcome: RoundOutcome, summed: RoundSum | AnySum, more: Mapping[str, Any]) -> None:
        spec = summed.spec
        outcome.sums.append(FinishedSum(spec, summed.result))
        facts = {
            "cohort": list(spec.cohort),
            "threshold": spec.threshold,
            "layout": spec.layout_digest.hex(),
            "broadcast": spec.broadcast_digest.hex(),
        }
        self._log.append(SUMMED, {**SumRecord.of(spec, summed.result).to_body(), **facts, **more})


class Coordinator(StudyRun):
    """One study at an aggregator that learns the totals."""

    server: ServerProgram

    def __init__(
        self,
        algorithm: Algorithm,
        rounds: int,
        rules: Rules,
        ask: Ask,
        log: Log,
        keeper: Keeper | None = None,
        start: State | None = None,
    ) -> None:
        super().__init__(rounds, log, keeper)
        self._algorithm, self._rules, self._ask = algorithm, rules, ask
        self.server = initial_server(algorithm, start)
        if keeper is not None and keeper.state is not None:
            self.server.load(keeper.state)

    def _saved(self) -> tuple[State, Mapping[str, Any]]:
        return self.server.save(), {}

    def _round(self, number: int, outcome: RoundOutcome) -> None:
        run_round(
            number,
            self._algorithm,
            self.server,
            self._rules,
            self._ask,
            lambda summed: self._record(
                outcome, summed, {"faults": list(summed.faults)} if summed.faults else {}
            ),
            first=self._first(number),
            keep=partial(self._keep, number),
        )
