"""Which round's model is kept, and when training has gone on for long enough: decided from summed metrics.

Whoever runs the server program decides alike: the aggregator, or every site where only sites read sums. A
round's model is measured in the next round, together with the next update, so the model that a study stops
with is one update further than the measurement that stopped it; the closing evaluation measures it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from secfed.algorithms.framework.base import Metrics
from secfed.algorithms.framework.server_state import copies, model_of
from secfed.wire.layout import State

if TYPE_CHECKING:
    from secfed.algorithms.federated_averaging.options import MeanOptions

BEST: Final = "best/"  # of a checkpoint
_NOT_YET: Final = -1.0


class BestRound:
    """The best round so far, by ``algorithm.best_by``; does nothing where the study does not ask for it."""

    def __init__(self, options: MeanOptions, initial: State) -> None:
        self._metric, self._patience = options.best_by, options.patience
        self._lower = options.best_by.endswith("loss")
        self.keeps = options.keep == "best"
        self._asked = self.keeps or self._patience is not None
        self._model = copies(initial) if self.keeps else {}
        # Of the best model: its round and its metric. Of the newest that was measured: its round, and how
        # many in a row were no better. The round that training stopped after.
        self._facts = dict.fromkeys(("round", "newest", "stopped"), _NOT_YET) | {
            "metric": math.nan,
            "worse": 0.0,
        }

    @property
    def stopped(self) -> int | None:
        """The last round whose update moved the model; None while training goes on."""
        return None if self._facts["stopped"] < 0 else int(self._facts["stopped"])

    @property
    def round(self) -> int | None:
        """The round of the best model; None where none is kept, or none was measured."""
        return None if not self.keeps or self._facts["round"] < 0 else int(self._facts["round"])

    def kept(self, newest: State) -> State:
        """The model that the study gives."""
        return copies(self._model) if self.round is not None else copies(newest)

    def measured(self, after: int, metrics: Metrics, model: State) -> None:
        """The metrics of the model after this round, in the course of the next."""
        value, facts = metrics.get(self._metric, math.nan), self._facts
        if not self._asked or not math.isfinite(value) or after <= facts["newest"]:
            return
        facts["newest"] = float(after)
        best = facts["metric"]
        if math.isnan(best) or (value < best if self._lower else value > best):
            facts |= {"round": float(after), "metric": value, "worse": 0.0}
            self._model = copies(model) if self.keeps else {}
            return
        facts["worse"] += 1
        if self._patience is not None and facts["worse"] >= self._patience and self.stopped is None:
            facts["stopped"] = float(after + 1)

    def save(self) -> State:
        """For a checkpoint; empty where the study does not ask for it."""
        if not self._asked:
            return {}
        facts = {f"{BEST}{name}": torch.tensor(one, dtype=torch.float64) for name, one in self._facts.items()}
        return {**facts, **{f"{BEST}model/{name}": value.clone() for name, value in self._model.items()}}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        if self._asked:
            self._facts = {name: float(state[f"{BEST}{name}"]) for name in self._facts}
            self._model = model_of(state, self._model, f"{BEST}model/")
