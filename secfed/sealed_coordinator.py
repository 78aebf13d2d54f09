"""The aggregator of a study under encrypted protection: it has no server program and no totals."""

from __future__ import annotations

from secfed.algorithms.base import Algorithm
from secfed.coordinator import RoundOutcome, StudyRun
from secfed.sealed_round import SealedRounds
from secfed.site import Log


class SealedCoordinator(StudyRun):
    """One study at an aggregator that adds ciphertexts.

    Args:
        algorithm: the study's plan; only its exchanges and members are asked for.
        rounds: training rounds; one closing evaluation follows.
        sealed: the aggregator's side of a round.
        log: the aggregator's transcript.
    """

    def __init__(self, algorithm: Algorithm, rounds: int, sealed: SealedRounds, log: Log) -> None:
        super().__init__(rounds, log)
        self._algorithm, self._sealed = algorithm, sealed

    def _round(self, number: int, outcome: RoundOutcome) -> None:
        self._sealed.run_round(
            number,
            self._algorithm,
            lambda summed, states: self._record(outcome, summed, {"states": states}),
        )
