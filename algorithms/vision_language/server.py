"""The server's half of vision-language pre-training: plain means.

The answer to a sum for robust weights travels with every broadcast until the next one replaces it, so a site
that missed a broadcast catches up; a site uses an answer once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import torch

from secfed.algorithms.dro.answer import DroAnswer
from secfed.algorithms.framework.base import ServerProgram
from secfed.algorithms.framework.server_state import MODEL, VersionMetrics, model_of, part_of
from secfed.algorithms.metrics import retrieval
from secfed.wire.layout import Exchange, State, Totals

if TYPE_CHECKING:
    from secfed.algorithms.dro.rule import DroRule
    from secfed.algorithms.vision_language.plan import Stage

_ANSWER: Final = "answer/"


class VlpServer(ServerProgram):
    """Moves the model by the mean update over the survivors of each sum; reads totals only.

    Args:
        initial: the model before round 1.
        stage_of: what an exchange of a round is for.
        rule: of the robust weights, or None.
    """

    def __init__(
        self,
        initial: State,
        stage_of: Callable[[int, Exchange], Stage],
        rule: DroRule | None,
    ) -> None:
        self._model = {name: value.clone() for name, value in initial.items()}
        self._stage_of = stage_of
        self._rule = rule
        self._answer: DroAnswer | None = None
        self._metrics = VersionMetrics()

    def begin(self, model: State) -> None:
        """Begin with this model instead of the seed's."""
        self._model = {name: value.clone() for name, value in model.items()}

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """The current model as ``model/parameter``, and the latest answer to the sum for robust weights.

        Raises:
            WrongState: the study has no such exchange.
        """
        self._stage_of(round_number, exchange)
        state = {MODEL + name: value for name, value in self._model.items()}
        return state if self._answer is None else {**state, **self._answer.to_state()}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange: metrics of the model that was broadcast, then the step to the next.

        Raises:
            WrongState: the study has no such exchange.
        """
        stage, sites = self._stage_of(round_number, exchange), len(totals.survivors)
        metrics = self._metrics.of(round_number - 1)
        metrics.update(retrieval.finish(totals))
        if "loss" in totals:
            metrics["loss"] = totals.scalar("loss") / sites
        if stage.measures is not None and self._rule is not None:
            self._answer = self._rule.answer(round_number, totals)  # None keeps all weights as they are
        for name in stage.summed:
            moved = self._model[name].to(torch.float64) + totals[f"update/{name}"] / sites
            self._model[name] = moved.to(torch.float32)

    def model(self) -> State:
        """The current parameters, by name: float32 copies."""
        return {name: value.clone() for name, value in self._model.items()}

    def metrics(self) -> Mapping[int, Mapping[str, float]]:
        """By model version: those of retrieval, and ``loss``, the mean while training from that model."""
        return self._metrics.all()

    def save(self) -> State:
        """Model, answer and metrics."""
        state = {MODEL + name: value for name, value in self.model().items()}
        if self._answer is not None:
            state.update({_ANSWER + name: value for name, value in self._answer.to_state().items()})
        return state | self._metrics.save()

    def load(self, state: State) -> None:
        """Continue from :meth:`save`.

        Raises:
            MalformedMessage: a checkpoint of another study.
        """
        self._model = model_of(state, self._model)
        self._answer = DroAnswer.from_state(part_of(state, _ANSWER))
        self._metrics.load(state)
