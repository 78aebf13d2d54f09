"""The aggregator: runs the rounds of one study, records what was summed, goes on when a round fails.

It holds totals and the server program's state. It never holds anything finer; the only places where one
site's (masked or encrypted) bytes pass are the protection's server session and the link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from secfed.algorithms.base import Algorithm, ServerProgram
from secfed.errors import RoundAborted
from secfed.round import Ask, Rules, Summed, run_round
from secfed.site import Log
from secfed.transcript import ABORTED, SUMMED, SumRecord


@dataclass
class RoundOutcome:
    """What one round came to."""

    round: int
    sums: list[Summed] = field(default_factory=list)
    aborted: RoundAborted | None = None

    @property
    def survivors(self) -> tuple[str, ...]:
        """Sites in the round's last sum."""
        return self.sums[-1].totals.survivors if self.sums else ()


class Coordinator:
    """One study at the aggregator.

    Args:
        algorithm: the study's plan.
        rounds: training rounds; one closing evaluation follows.
        rules: identities, protection, thresholds.
        ask: carries requests to sites.
        log: the aggregator's transcript.
    """

    def __init__(self, algorithm: Algorithm, rounds: int, rules: Rules, ask: Ask, log: Log) -> None:
        self._algorithm, self._rounds, self._rules = algorithm, rounds, rules
        self._ask, self._log = ask, log
        self.server: ServerProgram = algorithm.server()

    def run(self, finished: Callable[[RoundOutcome], None]) -> Sequence[RoundOutcome]:
        """Run all rounds; ``finished`` is told of each. An aborted round leaves the model as it was."""
        outcomes = []
        for number in range(1, self._rounds + 2):
            outcome = RoundOutcome(number)
            try:
                run_round(
                    number,
                    self._algorithm,
                    self.server,
                    self._rules,
                    self._ask,
                    lambda summed, outcome=outcome: self._record(outcome, summed),  # type: ignore[misc]
                )
            except RoundAborted as error:
                outcome.aborted = error
                self._log.append(ABORTED, {"round": number, "reason": error.message})
            outcomes.append(outcome)
            finished(outcome)
        return outcomes

    def _record(self, outcome: RoundOutcome, summed: Summed) -> None:
        outcome.sums.append(summed)
        spec = summed.spec
        more = {
            "cohort": list(spec.cohort),
            "threshold": spec.threshold,
            "layout": spec.layout_digest.hex(),
            "broadcast": spec.broadcast_digest.hex(),
        }
        self._log.append(SUMMED, {**SumRecord.of(spec, summed.result).to_body(), **more})
