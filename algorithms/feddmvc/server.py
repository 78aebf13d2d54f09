"""The server's half of ``feddmvc``: autoencoders moved by sums, and centres."""

from __future__ import annotations

import torch

from secfed.algorithms.feddmvc.plan import FedDmvcPlan
from secfed.algorithms.fmcsc import kmeans
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.framework.server_state import ModelServer, copies, model_of, moved
from secfed.algorithms.metrics.clustering import scores
from secfed.wire.layout import Exchange, State, Totals

_CLUSTERS = "clusters/"
_LEAST_SCALE = 1e-6


class FedDmvcServer(ModelServer):
    """Moves every view's autoencoder by its mean update, and finds centres; reads totals only."""

    def __init__(self, plan: FedDmvcPlan, initial: State) -> None:
        super().__init__(initial)
        self._plan = plan
        best = torch.zeros(plan.clusters, plan.size, dtype=torch.float64)
        self._found = {
            "centres": best.repeat(plan.options.restarts, 1, 1),
            "best": best,
            "scale": torch.ones((), dtype=torch.float64),
            "frequencies": torch.ones(plan.clusters, dtype=torch.float64),
        }

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """What this exchange needs, and no more."""
        names = self._plan.broadcast(self._plan.stage(round_number, exchange), round_number)
        return {name: {**self._model, **self._found}[name].clone() for name in names}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange."""
        plan, found, stage = self._plan, self._found, self._plan.stage(round_number, exchange)
        if stage.kind == "train":
            sites = float(len(totals.survivors))
            for name in plan.names(stage.view):
                self._model[name] = moved(self._model[name], totals[f"update/{name}"], sites)
            loss = totals.scalar("loss") / sites
            self._metrics.of(round_number - 1)[f"view_{stage.view + 1}_loss"] = loss
        elif stage.kind == "moments":
            count = max(totals.scalar("records"), 1.0)
            mean, covariance = kmeans.mean_and_covariance(totals["sum"], totals["outer"], count)
            seed = derive_seed(plan.seed, "k-means", round_number)
            found["centres"] = kmeans.starts(mean, covariance, plan.options.restarts, plan.clusters, seed)
        elif stage.kind == "kmeans":
            found["centres"] = kmeans.next_centres(found["centres"], totals["sums"], totals["counts"])
            if stage.last:
                chosen = kmeans.best(totals["inertia"])
                found["best"] = found["centres"][chosen].clone()
                records = totals["counts"][chosen].sum().clamp(min=1.0)
                found["scale"] = (totals["inertia"][chosen] / records).clamp(min=_LEAST_SCALE)
        elif stage.kind == "frequencies":
            found["frequencies"] = totals["frequencies"].to(torch.float64)
        else:
            self._metrics.of(plan.rounds).update(scores(totals["table"]))

    def save(self) -> State:
        """Autoencoders, clusters and metrics."""
        return {**super().save(), **{_CLUSTERS + name: one for name, one in copies(self._found).items()}}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        super().load(state)
        self._found = model_of(state, self._found, _CLUSTERS)
