"""The aggregator: runs the rounds of one study, records what was summed, goes on when a round fails.

It holds totals and the server program's state; under encrypted protection not even those. It never holds
anything finer; the only places where one site's (masked or encrypted) bytes pass are the protection's
server session and the link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from secfed.algorithms.base import Algorithm, ServerProgram
from secfed.crypto.messages import Result, Specification
from secfed.errors import RoundAborted
from secfed.round import Ask, Rules, run_round
from secfed.site import Log
from secfed.transcript import ABORTED, SUMMED, SumRecord


class FinishedSum(Protocol):
    """One finished exchange, whatever its protection."""

    @property
    def spec(self) -> Specification:
        """What was asked for."""
        ...

    @property
    def result(self) -> Result:
        """What came of it."""
        ...


@dataclass
class RoundOutcome:
    """What one round came to."""

    round: int
    sums: list[FinishedSum] = field(default_factory=list)
    aborted: RoundAborted | None = None

    @property
    def survivors(self) -> tuple[str, ...]:
        """Sites in the round's last sum."""
        return self.sums[-1].result.survivors if self.sums else ()


class StudyRun:
    """The rounds of one study, in order; each protection says what a round is.

    Args:
        rounds: training rounds; one closing evaluation follows.
        log: the aggregator's transcript.
    """

    def __init__(self, rounds: int, log: Log) -> None:
        self._rounds, self._log = rounds, log

    def run(self, finished: Callable[[RoundOutcome], None]) -> Sequence[RoundOutcome]:
        """Run all rounds; ``finished`` is told of each. An aborted round leaves the model as it was."""
        outcomes = []
        for number in range(1, self._rounds + 2):
            outcome = RoundOutcome(number)
            try:
                self._round(number, outcome)
            except RoundAborted as error:
                outcome.aborted = error
                self._log.append(ABORTED, {"round": number, "reason": error.message})
            outcomes.append(outcome)
            finished(outcome)
        return outcomes

    def _round(self, number: int, outcome: RoundOutcome) -> None:
        raise NotImplementedError

    def _record(self, outcome: RoundOutcome, summed: FinishedSum, more: Mapping[str, Any]) -> None:
        outcome.sums.append(summed)
        spec = summed.spec
        facts = {
            "cohort": list(spec.cohort),
            "threshold": spec.threshold,
            "layout": spec.layout_digest.hex(),
            "broadcast": spec.broadcast_digest.hex(),
        }
        self._log.append(SUMMED, {**SumRecord.of(spec, summed.result).to_body(), **facts, **more})


class Coordinator(StudyRun):
    """One study at an aggregator that learns the totals (plain and masked protection).

    Args:
        algorithm: the study's plan.
        rounds: training rounds; one closing evaluation follows.
        rules: identities, protection, thresholds.
        ask: carries requests to sites.
        log: the aggregator's transcript.
    """

    def __init__(self, algorithm: Algorithm, rounds: int, rules: Rules, ask: Ask, log: Log) -> None:
        super().__init__(rounds, log)
        self._algorithm, self._rules, self._ask = algorithm, rules, ask
        self.server: ServerProgram = algorithm.server()

    def _round(self, number: int, outcome: RoundOutcome) -> None:
        run_round(
            number,
            self._algorithm,
            self.server,
            self._rules,
            self._ask,
            lambda summed: self._record(outcome, summed, {}),
        )
