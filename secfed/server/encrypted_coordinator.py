"""The aggregator of a study under encrypted protection: it has no server program and no totals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from secfed.algorithms.framework.base import Algorithm
from secfed.records.transcript import Log
from secfed.server.coordinator import Keeper, RoundOutcome, StudyRun
from secfed.server.encrypted_round import EncryptedRounds
from secfed.wire.layout import State


class EncryptedCoordinator(StudyRun):
    """One study at an aggregator that adds ciphertexts: it uses exchanges and members of the algorithm."""

    def __init__(
        self,
        algorithm: Algorithm,
        rounds: int,
        encrypted: EncryptedRounds,
        log: Log,
        keeper: Keeper | None = None,
    ) -> None:
        super().__init__(rounds, log, keeper)
        self._algorithm, self._encrypted = algorithm, encrypted
        if keeper is not None and keeper.state is not None:
            encrypted.store.count = int(keeper.facts["sums"])
            encrypted.state = bytes.fromhex(keeper.facts["state"])

    def _saved(self) -> tuple[State, Mapping[str, Any]]:
        return {}, {"sums": self._encrypted.store.count, "state": self._encrypted.state.hex()}

    def _round(self, number: int, outcome: RoundOutcome) -> None:
        self._encrypted.run_round(
            number,
            self._algorithm,
            lambda summed, states: self._record(outcome, summed, {"states": states}),
            first=self._first(number),
            keep=partial(self._keep, number),
        )
