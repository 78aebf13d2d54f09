"""A site's half of ``view-kmeans``. See :mod:`secfed.algorithms.view_kmeans.algorithm`."""

from __future__ import annotations

import torch

from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.algorithms.fmcsc import kmeans
from secfed.algorithms.framework.base import SiteProgram
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.metrics.clustering import best_names, contingency
from secfed.algorithms.view_kmeans.plan import ViewKmeansPlan
from secfed.wire.layout import Exchange, State, Summands
from secfed.wire.parts import otherwise


class ViewKmeansSite(SiteProgram):
    """Runs inside one hospital; keeps nothing."""

    def __init__(self, plan: ViewKmeansPlan, data: MultiviewSite) -> None:
        self._plan, self._labels = plan, data.labels
        most = plan.options.largest_value
        held = [view.to(torch.float64).clamp(-most, most) for view in data.views if view is not None]
        self._records = torch.cat(held, dim=1)
        self._view = data.held[0] if len(data.held) < len(plan.sizes) else None

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """How many records it has."""
        moments = self._plan.stage(round_number, exchange).kind == "moments"
        return {"records": float(len(self._records))} if moments else {}

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """One sum's part."""
        stage = self._plan.stage(round_number, exchange)
        if stage.kind == "moments":
            total, outer, _ = kmeans.moments(self._records)
            return {"sum": total, "outer": outer, **self.settled(round_number, exchange)}
        if self._plan.options.sharing == "none":
            clusters = self._plan.clusters
            found = otherwise(torch.zeros_like(self._labels), self._alone)
            return {"table": contingency(found, self._labels, clusters, clusters)}
        given = {name: value.to(torch.float64) for name, value in broadcast.items()}
        none = torch.zeros(len(self._records), self._plan.dimensions, dtype=torch.float64)
        if stage.kind == "prototypes":
            parts = otherwise(none.repeat(1, len(self._plan.sizes)), self._by_view, given)
            sums, counts, inertia = kmeans.local_sums(parts, given["prototypes"])
            return {"sums": sums, "counts": counts, "inertia": inertia}
        records = otherwise(none, self._projected, given)
        if stage.kind == "table":
            size = self._plan.clusters
            return {"table": contingency(kmeans.assign(records, given["best"]), self._labels, size, size)}
        sums, counts, inertia = kmeans.local_sums(records, given["centres"])
        return {"sums": sums, "counts": counts, "inertia": inertia}

    def _projected(self, given: State) -> torch.Tensor:
        columns = slice(None) if self._view is None else self._plan.columns[self._view]
        name = "all" if self._view is None else str(self._view)
        own = (self._records - given["mean"][columns]) @ given[f"projection/{name}"]
        if self._view is None or self._plan.options.completion != "prototypes":
            return own
        parts = given["prototypes"][0].reshape(-1, len(self._plan.sizes), self._plan.dimensions)
        nearest = kmeans.assign(own, parts[:, self._view])
        rest = parts.sum(dim=1) - parts[:, self._view]
        return own + rest[nearest]

    def _by_view(self, given: State) -> torch.Tensor:
        """What every view adds to a record's projection, side by side: [n, views * dimensions]."""
        centred = self._records - given["mean"]
        views = enumerate(self._plan.columns)
        return torch.cat([centred[:, at] @ given[f"projection/{view}"] for view, at in views], dim=1)

    def _alone(self) -> torch.Tensor:
        """Clusters of this site's own records, each named after the class that fits it best: [n]."""
        plan, options = self._plan, self._plan.options
        total, outer, count = kmeans.moments(self._records)
        mean, covariance = kmeans.mean_and_covariance(total, outer, count)
        vectors = torch.linalg.eigh((covariance + covariance.T) / 2)[1]
        leading = vectors[:, -min(plan.dimensions, len(mean)) :]
        records = (self._records - mean) @ leading
        spread = leading.T @ covariance @ leading
        seed = derive_seed(plan.seed, "view k-means alone")
        centres = kmeans.starts(torch.zeros(len(spread)), spread, options.restarts, plan.clusters, seed)
        inertia = torch.zeros(options.restarts)
        for _ in range(options.kmeans_iterations):
            sums, counts, inertia = kmeans.local_sums(records, centres)
            centres = kmeans.next_centres(centres, sums, counts)
        found = kmeans.assign(records, centres[kmeans.best(inertia)])
        return best_names(contingency(found, self._labels, plan.clusters, plan.clusters))[found]
