"""The server's half of FMCSC: a model per group, moved by sums."""

from __future__ import annotations

from typing import Final

from secfed.algorithms.fmcsc.plan import FmcscPlan
from secfed.algorithms.fmcsc.scoring import ServerScoring
from secfed.algorithms.framework.server_state import ModelServer, moved, part_of
from secfed.wire.layout import Exchange, State, Totals

_SCORING: Final = "scoring/"
_NO_WEIGHT: Final = 1e-9  # fixed point leaves about 1e-13 of one site's weight


class FmcscServer(ModelServer):
    """Moves every group's model by its weighted mean update; reads totals only."""

    def __init__(self, plan: FmcscPlan, initial: State) -> None:
        super().__init__({f"{group}/{name}": one for group in plan.groups for name, one in initial.items()})
        self._plan, self._scoring = plan, ServerScoring(plan)

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """What this exchange needs, and no more: models as ``group/parameter``, centres."""
        stage, plan = self._plan.stage(round_number, exchange), self._plan
        state = {} if stage.kind in ("pretrain", "train") else self._scoring.broadcast(stage)
        wanted = tuple(f"{plan.groups[group]}/" for group in plan.broadcast_groups(stage))
        return state | {name: value for name, value in self._model.items() if name.startswith(wanted)}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange: losses of the model that training began with, scores of the one measured."""
        stage = self._plan.stage(round_number, exchange)
        if stage.kind == "pretrain":
            self._pretrain(totals)
            self._note_loss(round_number, "pretrain_loss", totals, "sites")
        elif stage.kind == "train":
            name = self._plan.groups[stage.group]
            self._move(round_number, stage.group, totals)
            self._note_loss(round_number, f"{name.replace('-', '_')}_loss", totals)
        else:
            scores = self._scoring.absorb(round_number, stage, totals)
            if scores:
                self._metrics.of(min(round_number, self._plan.rounds)).update(scores)

    def _note_loss(self, round_number: int, name: str, totals: Totals, weights: str = "weight") -> None:
        if "loss" not in totals:  # under [privacy] none leaves
            return
        weight = totals.scalar(weights)
        if weight > _NO_WEIGHT:
            self._metrics.of(round_number - 1)[name] = totals.scalar("loss") / weight

    def _pretrain(self, totals: Totals) -> None:
        plan = self._plan
        for view, group in enumerate(plan.groups[1:]):
            if f"sites/{group}" in totals:
                owners = totals.scalar(f"sites/{group}")
            else:  # the layout of site-level privacy: every survivor that holds the view counts
                owners = float(plan.owners(totals.survivors, view))
            if owners < plan.options.min_group - 0.5:
                continue
            for name in (one for one in plan.pretrained if int(one.split(".")[1]) == view):
                value = moved(self._model[f"full/{name}"], totals[f"update/{name}"], owners)
                self._model.update({f"{each}/{name}": value for each in plan.groups})

    def _move(self, round_number: int, group: int, totals: Totals) -> None:
        if "weight" in totals:
            weight, sites = totals.scalar("weight"), totals.scalar("sites")
        else:  # the layout of site-level privacy; who survived, and how each counts, is public
            weights = [self._plan.weight(site, group, round_number) for site in totals.survivors]
            weight, sites = sum(weights), float(sum(one > 0 for one in weights))
        if weight <= _NO_WEIGHT or sites < self._plan.options.min_group - 0.5:
            return
        for one in self._plan.shapes:
            name = f"{self._plan.groups[group]}/{one}"
            self._model[name] = moved(self._model[name], totals[f"update/{one}"], weight)

    def save(self) -> State:
        """Models, scoring and metrics."""
        scoring = {_SCORING + name: value for name, value in self._scoring.save().items()}
        return {**super().save(), **scoring}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        super().load(state)
        self._scoring.load(part_of(state, _SCORING))
