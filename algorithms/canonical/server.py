"""The server's half of canonical clustering: small eigenproblems over totals."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from secfed.algorithms.canonical import clusters
from secfed.algorithms.canonical.cubes import peaks
from secfed.algorithms.canonical.discriminants import discriminants
from secfed.algorithms.canonical.moments import Moments
from secfed.algorithms.canonical.plan import CanonicalPlan, CanonicalStage
from secfed.algorithms.canonical.projections import canonical, pairs, shortened
from secfed.algorithms.framework.base import ServerProgram
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.framework.server_state import MODEL, VersionMetrics, copies, model_of
from secfed.algorithms.metrics.clustering import noisy_scores, scores
from secfed.wire.layout import Exchange, State, Totals

_OWN = ("covariance", "spread", "noise", "centres", "parts")  # of no use to whoever has the model
_STEADY = 1e-6  # a feature with a smaller deviation, as a share of the largest value, does not vary


class CanonicalServer(ServerProgram):
    """Moments, projections, centres and discriminants, by the names of broadcasts; reads totals only."""

    def __init__(self, plan: CanonicalPlan) -> None:
        self._plan = plan
        self._metrics = VersionMetrics()
        shapes = {name: shape for stage in self._stages for name, shape in plan.broadcast(stage).items()}
        shapes |= {f"covariance/{v}": (size, size) for v, size in enumerate(plan.sizes)}
        shapes |= {f"spread/{v}": () for v in range(plan.views)}  # of noise over a covariance's eigenvalues
        shapes["noise"] = ()  # deviations of that in moments and in cross-covariances, added up
        shapes["found"] = ()  # 1 once there are clusters
        self._state = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}

    @property
    def _stages(self) -> tuple[CanonicalStage, ...]:
        return (*self._plan.summing, *self._plan.scoring)

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """What this exchange needs, and no more."""
        names = self._plan.broadcast(self._plan.stage(round_number, exchange))
        return {name: self._state[name].clone() for name in names}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange."""
        stage, state = self._plan.stage(round_number, exchange), self._state
        if stage.kind == "scale":
            self._scale(totals)
        elif stage.kind == "moments":
            for v in range(self._plan.views):
                found = _moments(totals, f"view-{v + 1}/")
                means = found.means()
                # No mean of mapped records is longer than 1; noise makes it so.
                state[f"mean/{v}"] = shortened(means[None], 1.0)[0] if totals.noise else means
                state[f"covariance/{v}"] = found.covariances()
                state[f"spread/{v}"] = found.spread()
            state["noise"] = torch.tensor(totals.noise, dtype=torch.float64)
        elif stage.kind == "cross":
            state["noise"] = state["noise"] + totals.noise
            self._project(totals)
            self._projected()
        elif stage.kind == "split":
            before, after = self._plan.parts(stage.iteration - 1), self._plan.parts(stage.iteration)
            found = _moments(totals, "")
            state["parts"] = (
                clusters.split(found, before, after) if before < after else clusters.mended(found)
            )
            if stage.iteration == self._plan.splits:
                state["centres"][0] = state["parts"]
        elif stage.kind == "cubes":
            state["centres"][0] = 0.0
            state["centres"][0, :, : self._plan.leading] = self._peaks(totals["cubes"])
        elif stage.kind == "kmeans":
            state["centres"] = clusters.moved(state["centres"], totals["sums"])
            if self._plan.options.restarts == 1 and stage.iteration == self._plan.options.kmeans_iterations:
                self._choose(0)
        elif stage.kind == "objective":
            self._choose(int(totals["objective"].argmax()))
        elif stage.kind == "refine":
            self._refine(totals)
        elif bool(state["found"]):
            self._metrics.of(self._plan.rounds).update(self._scores(totals))

    def _scale(self, totals: Totals) -> None:
        for v in range(self._plan.views):
            if self._plan.standardised[v]:
                count = max(totals.scalar(f"view-{v + 1}/records"), 1.0)
                mean = totals[f"view-{v + 1}/sum"] / count
                deviation = (totals[f"view-{v + 1}/squares"] / count - mean.square()).clamp(min=0).sqrt()
                varies = deviation > _STEADY * self._plan.options.largest_value
                self._state[f"scale/{v}"] = torch.stack([mean, torch.where(varies, 1 / deviation, 0.0)])

    def _project(self, totals: Totals) -> None:
        plan, state = self._plan, self._state
        crosses = {(u, v): totals[f"cross-{u + 1}-{v + 1}"] for u, v in pairs(plan.views)}
        covariances = [state[f"covariance/{v}"] for v in range(plan.views)]
        floors = self._floors()
        found = canonical(covariances, crosses, plan.dimensions, plan.options.ridge, floors)
        state.update({f"projection/{v}": one for v, one in enumerate(found)})

    def _projected(self) -> None:
        """Draw where k-means starts."""
        sizes = self._plan.options.restarts, self._plan.clusters, self._plan.dimensions
        self._state["centres"] = clusters.simplexes(*sizes, derive_seed(self._plan.seed, "canonical starts"))

    def _peaks(self, summed: torch.Tensor) -> torch.Tensor:
        seed = derive_seed(self._plan.seed, "canonical starts")
        return peaks(summed, self._plan.leading, self._plan.clusters, seed)

    def _choose(self, run: int) -> None:
        """The centres of this run of k-means are the clusters."""
        self._state["best"] = self._state["centres"][run].clone()
        self._state["found"] = torch.ones_like(self._state["found"])

    def _floors(self) -> list[float]:
        """The least that is added to the variances of each view."""
        least = self._plan.options.noise_ridge * self._state["noise"]
        return [float(least * self._state[f"spread/{v}"]) for v in range(self._plan.views)]

    def _refine(self, totals: Totals) -> None:
        plan, state, each = self._plan, self._state, range(self._plan.views)
        found = discriminants(
            [totals[f"view-{v + 1}/sums"] for v in each],
            [totals[f"view-{v + 1}/counts"] for v in each],
            [state[f"mean/{v}"] for v in each],
            [state[f"covariance/{v}"] for v in each],
            plan.options.refinement_ridge,
            floors=self._floors(),
            noise=totals.noise,
        )
        state.update({f"directions/{v}": one for v, one in enumerate(found.directions)})
        state.update({f"offsets/{v}": one for v, one in enumerate(found.offsets)})
        state["sizes"] = found.sizes

    def _scores(self, totals: Totals) -> Mapping[str, float]:
        """What the closing sum says."""
        return noisy_scores(totals["table"], totals.noise) if totals.noise else scores(totals["table"])

    def model(self) -> State:
        """What assigns a record to a cluster, and its embedding: float32 copies."""
        names = [name for name in self._state if name.partition("/")[0] not in _OWN]
        return {name: self._state[name].to(torch.float32) for name in names if name != "found"}

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


def _moments(totals: Totals, start: str) -> Moments:
    return Moments(totals[f"{start}outer"], totals[f"{start}sum"], totals[f"{start}records"])
