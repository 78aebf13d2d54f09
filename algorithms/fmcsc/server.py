"""The server's half of FMCSC: a model per group, moved by sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from secfed.algorithms.fmcsc.plan import FULL, FmcscPlan
from secfed.algorithms.fmcsc.scoring import ServerScoring
from secfed.algorithms.framework.base import ServerProgram
from secfed.algorithms.framework.server_state import MODEL, VersionMetrics, model_of, moved, part_of
from secfed.wire.layout import Exchange, State, Totals

_SCORING: Final = "scoring/"
_NO_WEIGHT: Final = 1e-9  # fixed point leaves about 1e-13 of one site's weight


class FmcscServer(ServerProgram):
    """Moves every group's model by its weighted mean update; reads totals only.

    A model is replaced, never changed in place: after pre-training all groups share one.
    """

    def __init__(self, plan: FmcscPlan, initial: State) -> None:
        self._plan = plan
        self._models: list[State] = [dict(initial) for _ in plan.groups]
        self._scoring = ServerScoring(plan)
        self._metrics = VersionMetrics()

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """What this exchange needs, and no more: models as ``group/parameter``, centres."""
        stage, plan = self._plan.stage(round_number, exchange), self._plan
        state = {} if stage.kind in ("pretrain", "train") else self._scoring.broadcast(stage)
        for group in plan.broadcast_groups(stage):
            state.update(self._named(group))
        return state

    def _named(self, group: int) -> State:
        name = self._plan.groups[group]
        return {f"{name}/{parameter}": value for parameter, value in self._models[group].items()}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange.

        Losses belong to the model that training started from, scores to the model they were measured on.
        """
        stage = self._plan.stage(round_number, exchange)
        if stage.kind == "pretrain":
            self._pretrain(totals)
            self._note_loss(round_number, "pretrain_loss", totals, "sites")
        elif stage.kind == "train":
            self._move(round_number, stage.group, totals)
            name = self._plan.groups[stage.group].replace("-", "_")
            self._note_loss(round_number, f"{name}_loss", totals)
        else:
            found = self._scoring.absorb(round_number, stage, totals)
            if found:
                version = min(round_number, self._plan.rounds)
                self._metrics.of(version).update(found)

    def _note_loss(self, round_number: int, name: str, totals: Totals, weights: str = "weight") -> None:
        if "loss" not in totals:  # under [privacy] none leaves
            return
        weight = totals.scalar(weights)
        if weight > _NO_WEIGHT:
            self._metrics.of(round_number - 1)[name] = totals.scalar("loss") / weight

    def _pretrain(self, totals: Totals) -> None:
        model = dict(self._models[FULL])
        for view, group in enumerate(self._plan.groups[1:]):
            if f"sites/{group}" in totals:
                owners = totals.scalar(f"sites/{group}")
            else:  # the layout of site-level privacy: every survivor that holds the view counts
                owners = float(self._plan.owners(totals.survivors, view))
            if owners < self._plan.options.min_group - 0.5:
                continue
            for name in self._plan.pretrained:
                if int(name.split(".")[1]) == view:
                    model[name] = moved(model[name], totals[f"update/{name}"], owners)
        self._models = [model for _ in self._models]

    def _move(self, round_number: int, group: int, totals: Totals) -> None:
        if "weight" in totals:
            weight, sites = totals.scalar("weight"), totals.scalar("sites")
        else:  # the layout of site-level privacy; who survived, and how each counts, is public
            weights = [self._plan.weight(site, group, round_number) for site in totals.survivors]
            weight, sites = sum(weights), float(sum(one > 0 for one in weights))
        if weight <= _NO_WEIGHT or sites < self._plan.options.min_group - 0.5:
            return
        self._models[group] = {
            name: moved(value, totals[f"update/{name}"], weight)
            for name, value in self._models[group].items()
        }

    def model(self) -> State:
        """The current parameters of every group, as ``group/parameter``: float32 copies."""
        groups = range(len(self._models))
        return {name: value.clone() for group in groups for name, value in self._named(group).items()}

    def metrics(self) -> Mapping[int, Mapping[str, float]]:
        """By model version: ``acc``, ``nmi``, ``ari`` where scored, and losses while training from it."""
        return self._metrics.all()

    def save(self) -> State:
        """Models, scoring and metrics."""
        state = {MODEL + name: value for name, value in self.model().items()}
        state.update({_SCORING + name: value for name, value in self._scoring.save().items()})
        return state | self._metrics.save()

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        models = model_of(state, self.model())
        self._scoring.load(part_of(state, _SCORING))
        self._models = [
            {name: models[f"{group}/{name}"] for name in self._plan.shapes} for group in self._plan.groups
        ]
        self._metrics.load(state)
