"""The server's half of ``view-kmeans``: moments, projections and centres."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from secfed.algorithms.fmcsc import kmeans
from secfed.algorithms.framework.base import ServerProgram
from secfed.algorithms.framework.randomness import derive_seed, numpy_generator
from secfed.algorithms.framework.server_state import MODEL, VersionMetrics, copies, model_of
from secfed.algorithms.metrics.clustering import scores
from secfed.algorithms.view_kmeans.plan import ViewKmeansPlan
from secfed.wire.layout import Exchange, State, Totals

_SAME: Final = 1e-4  # restarts whose inertia differs by less found the same clusters


class ViewKmeansServer(ServerProgram):
    """Moments, projections and centres; reads totals only."""

    def __init__(self, plan: ViewKmeansPlan) -> None:
        self._plan, self._metrics = plan, VersionMetrics()
        shapes = {
            name: one
            for stage in (*plan.summing, *plan.scoring)
            for name, one in plan.broadcast(stage).items()
        }
        self._state = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """What this exchange needs, and no more."""
        names = self._plan.broadcast(self._plan.stage(round_number, exchange))
        return {name: self._state[name].clone() for name in names}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange."""
        stage, state = self._plan.stage(round_number, exchange), self._state
        if stage.kind == "moments":
            self._project(totals)
        elif stage.kind == "prototypes":
            state["prototypes"] = kmeans.next_centres(state["prototypes"], totals["sums"], totals["counts"])
        elif stage.kind == "kmeans":
            state["centres"] = kmeans.next_centres(state["centres"], totals["sums"], totals["counts"])
            if stage.last:
                inertia = totals["inertia"]
                alike = inertia <= inertia.min() * (1 + _SAME)  # the same clusters in another order
                state["best"] = state["centres"][int(alike.to(torch.int64).argmax())].clone()
        else:
            self._metrics.of(self._plan.rounds).update(scores(totals["table"]))

    def _project(self, totals: Totals) -> None:
        plan, state, size = self._plan, self._state, self._plan.dimensions
        count = max(totals.scalar("records"), 1.0)
        mean, covariance = kmeans.mean_and_covariance(totals["sum"], totals["outer"], count)
        values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
        leading = vectors[:, -size:].flip(1)
        ends = leading.gather(0, leading.abs().argmax(dim=0, keepdim=True))
        leading = leading * torch.where(ends < 0, -1.0, 1.0)  # signs are the library's choice
        state["mean"], state["projection/all"] = mean, leading
        for view, columns in enumerate(plan.columns):
            state[f"projection/{view}"] = leading[columns]
            if plan.options.completion == "regression":
                own = covariance[columns, columns]
                held = own + plan.options.ridge * own.diagonal().max().clamp(min=1e-12) * torch.eye(len(own))
                # Completed record times projection; its own view is known and stays as it is.
                lacking = torch.cat([covariance[: columns.start], covariance[columns.stop :]])[:, columns]
                rest = torch.cat([leading[: columns.start], leading[columns.stop :]])
                completed = torch.linalg.solve(held, lacking.T) @ rest
                state[f"projection/{view}"] = leading[columns] + completed
        if plan.options.completion == "prototypes":
            # By the covariance's symmetric root, so that no choice of eigenvectors changes them.
            root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
            rng = numpy_generator(plan.seed, "view k-means prototypes")
            drawn = torch.from_numpy(rng.standard_normal((plan.prototypes, len(root)))) @ root
            views = enumerate(plan.columns)
            parts = [drawn[:, columns] @ state[f"projection/{view}"] for view, columns in views]
            state["prototypes"] = torch.cat(parts, dim=1)[None]
        spread = torch.diag(values[-size:].flip(0).clamp(min=0))
        seed = derive_seed(plan.seed, "view k-means")
        runs, none = plan.options.restarts, torch.zeros(size, dtype=torch.float64)
        state["centres"] = kmeans.starts(none, spread, runs, plan.clusters, seed)

    def model(self) -> State:
        """What assigns a record to a cluster: float32 copies."""
        return {name: value.to(torch.float32) for name, value in self._state.items() if name != "centres"}

    def metrics(self) -> Mapping[int, Mapping[str, float]]:
        """ACC, NMI and ARI."""
        return self._metrics.all()

    def save(self) -> State:
        """Everything that sums have given, and metrics."""
        return {MODEL + name: value for name, value in copies(self._state).items()} | self._metrics.save()

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        self._state = model_of(state, self._state)
        self._metrics.load(state)
