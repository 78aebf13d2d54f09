"""The server's half of vision-language pre-training: plain means.

The answer to a sum for robust weights travels with every broadcast until the next one replaces it, so a site
that missed a broadcast catches up; a site uses an answer once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from secfed.algorithms.dro.answer import DroAnswer
from secfed.algorithms.dro.rule import DroRule
from secfed.algorithms.framework.server_state import MODEL, ModelServer, moved, part_of
from secfed.algorithms.metrics import retrieval
from secfed.algorithms.vision_language.plan import Stage
from secfed.wire.layout import Exchange, State, Totals

_ANSWER: Final = "answer/"


class VlpServer(ModelServer):
    """Moves the model by the mean update over the survivors of each sum; reads totals only."""

    def __init__(
        self, initial: State, stage_of: Callable[[int, Exchange], Stage], rule: DroRule | None
    ) -> None:
        super().__init__(initial)
        self._stage_of, self._rule = stage_of, rule
        self._answer: DroAnswer | None = None

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """The current model as ``model/parameter``, and the latest answer to the sum for robust weights."""
        self._stage_of(round_number, exchange)
        state = {MODEL + name: value for name, value in self._model.items()}
        return state if self._answer is None else {**state, **self._answer.to_state()}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange: metrics of the model that was broadcast, then the step to the next."""
        stage, sites = self._stage_of(round_number, exchange), len(totals.survivors)
        metrics = self._metrics.of(round_number - 1)
        metrics.update(retrieval.finish(totals))
        if "loss" in totals:
            metrics["loss"] = totals.scalar("loss") / sites
        if stage.measures is not None and self._rule is not None:
            self._answer = self._rule.answer(round_number, totals)  # None keeps all weights as they are
        for name in stage.summed:
            self._model[name] = moved(self._model[name], totals[f"update/{name}"], sites)

    def save(self) -> State:
        """Model, answer and metrics."""
        answer = {} if self._answer is None else self._answer.to_state()
        return {**super().save(), **{_ANSWER + name: value for name, value in answer.items()}}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        super().load(state)
        self._answer = DroAnswer.from_state(part_of(state, _ANSWER))
