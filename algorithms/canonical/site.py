"""The site's half of canonical clustering: sums over the site's records, and nothing that is kept.

A record whose values fail anywhere counts as zeros from there on: it is still counted, and adds nothing else.
Where a group of records, or all of a patient's, is to be hidden, each counts as one: its records share a
weight of 1 in every sum, so what they add together is a mean of what single records add, and no longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from secfed.algorithms.canonical import clusters, cubes, discriminants
from secfed.algorithms.canonical.moments import HALF, moments, weighted
from secfed.algorithms.canonical.plan import CanonicalPlan, CanonicalStage
from secfed.algorithms.canonical.projections import embedded, pairs, shortened
from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.algorithms.framework.base import SiteProgram
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.metrics.clustering import contingency
from secfed.algorithms.models.feature_maps import FeatureMap
from secfed.dp.training.unit_sums import UnitSums
from secfed.wire.layout import Exchange, State, Summands
from secfed.wire.parts import all_finite, otherwise

_Views = Sequence[torch.Tensor | None]


class CanonicalSite(SiteProgram):
    """Runs inside one hospital; everything but its records comes with each broadcast."""

    def __init__(self, plan: CanonicalPlan, maps: Sequence[FeatureMap], data: MultiviewSite) -> None:
        self._plan, self._maps, self._data = plan, maps, data
        self._records, self._view = len(data.labels), data.held[0] if len(data.held) < plan.views else None
        self._weights: torch.Tensor | None = None  # of each record in every sum; 1 if left out

    def use_unit_sums(self, sums: UnitSums) -> None:
        """Nothing is to be clipped: what a record adds is bounded as it is, and a group adds the mean."""
        self._weights = sums.weights(self._records, self._data.patients)

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """How many records it has, per view that it holds."""
        stage = self._plan.stage(round_number, exchange)
        factor = {"scale": 1.0, "moments": HALF}.get(stage.kind)
        if factor is None or self._plan.adds_zeros(stage, self._view):
            return {}
        names = {field.name for field in exchange.layout.fields}
        records = self._records if self._weights is None else float(self._weights.sum())
        counts = {
            f"view-{v + 1}/records": factor * (0 if view is None else records)
            for v, view in enumerate(self._data.views)
        }
        return {name: count for name, count in counts.items() if name in names}

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """One sum's part; zeros for views that the site does not hold, or where its kind is left out."""
        stage = self._plan.stage(round_number, exchange)
        given = {name: value.to(torch.float64) for name, value in broadcast.items()}
        found: dict[str, torch.Tensor | float] = {
            field.name: torch.zeros(field.shape, dtype=torch.float64) for field in exchange.layout.fields
        }
        if self._plan.adds_zeros(stage, self._view):
            return found
        if stage.kind == "scale":
            found.update(self._scale())
        else:
            found.update(self._sums(stage, self._mapped(given), given))
        return {**found, **self.settled(round_number, exchange)}

    def _sums(self, stage: CanonicalStage, views: _Views, given: State) -> dict[str, torch.Tensor]:
        if stage.kind == "moments":
            return self._moments(views)
        if stage.kind == "cross":
            return self._cross(views, given)
        if stage.kind == "refine":
            return self._by_cluster(views, self._assigned(views, given))
        if stage.kind == "table":
            size, labels = self._plan.clusters, self._data.labels
            return {"table": contingency(self._assigned(views, given), labels, size, size, self._weights)}
        records = self._embedded(views, given)
        if stage.kind == "split":
            parts = self._plan.parts(stage.iteration - 1)
            part = clusters.parts_moments(records, given["parts"], parts, self._weights)
            return {"outer": part.outer, "sum": part.sums, "records": part.records}
        if stage.kind == "cubes":
            return {"cubes": cubes.cubes(records[:, : self._plan.leading], self._weights)}
        if stage.kind == "kmeans":
            return {"sums": clusters.local_sums(records, given["centres"], self._weights)}
        cosines = clusters.assigned(records, given["centres"])[1].clamp(-1.0, 1.0)  # whatever was broadcast
        return {"objective": weighted(cosines, self._weights).sum(dim=0)}

    def _scale(self) -> dict[str, torch.Tensor]:
        found, most = {}, self._plan.options.largest_value
        for number, view in enumerate(self._data.views, start=1):
            if view is not None and self._plan.standardised[number - 1]:
                values = view.to(torch.float64).clamp(-most, most)
                found[f"view-{number}/sum"] = values.sum(dim=0)
                found[f"view-{number}/squares"] = values.square().sum(dim=0)
        return found

    @cached_property
    def _fixed(self) -> _Views:
        """The views under maps that look at one record only."""
        return [self._map(v, {}) if not self._plan.standardised[v] else None for v in range(self._plan.views)]

    def _mapped(self, given: State) -> _Views:
        standardised = self._plan.standardised
        return [self._map(v, given) if standardised[v] else view for v, view in enumerate(self._fixed)]

    def _map(self, view: int, given: State) -> torch.Tensor | None:
        records = self._data.views[view]
        if records is None:
            return None
        zeros = torch.zeros(self._records, self._plan.sizes[view], dtype=torch.float64)
        seed = derive_seed(self._plan.seed, "canonical map", view)
        mapped = otherwise(zeros, self._maps[view], records, seed, given.get(f"scale/{view}"))
        return finite(mapped, "mapped features of records")

    def _moments(self, views: _Views) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for number, view in enumerate(views, start=1):
            if view is not None:
                part = moments(view, self._weights)
                found |= {f"view-{number}/outer": part.outer, f"view-{number}/sum": part.sums}
        return found

    def _cross(self, views: _Views, given: State) -> dict[str, torch.Tensor]:
        radius = self._plan.options.cross_radius
        short = [
            None if view is None else shortened(view - given[f"mean/{v}"], radius)
            for v, view in enumerate(views)
        ]
        found = {}
        for u, v in pairs(self._plan.views):
            one, other = short[u], short[v]
            if one is not None and other is not None:
                found[f"cross-{u + 1}-{v + 1}"] = weighted(one, self._weights).T @ other
        return found

    def _embedded(self, views: _Views, given: State) -> torch.Tensor:
        each = range(self._plan.views)
        means, projections = ([given[f"{what}/{v}"] for v in each] for what in ("mean", "projection"))
        zeros = torch.zeros(self._records, self._plan.dimensions, dtype=torch.float64)
        return finite(otherwise(zeros, embedded, views, means, projections), "embedded records")

    def _assigned(self, views: _Views, given: State) -> torch.Tensor:
        zeros = torch.zeros(self._records, dtype=torch.int64)
        return otherwise(zeros, self._clusters_of, views, given)

    def _clusters_of(self, views: _Views, given: State) -> torch.Tensor:
        if "best" in given:
            return clusters.assigned(self._embedded(views, given), given["best"][None])[0][:, 0]
        each = range(self._plan.views)
        found = discriminants.Discriminants(
            [given[f"directions/{v}"] for v in each], [given[f"offsets/{v}"] for v in each], given["sizes"]
        )
        return found.assigned(views, [given[f"mean/{v}"] for v in each])

    def _by_cluster(self, views: _Views, assigned: torch.Tensor) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for number, view in enumerate(views, start=1):
            if view is not None:
                sums, counts = discriminants.class_sums(view, assigned, self._plan.clusters, self._weights)
                found |= {f"view-{number}/sums": sums, f"view-{number}/counts": counts}
        return found


def finite(records: torch.Tensor, what: str) -> torch.Tensor:
    """The records, with zeros for those that are not all finite."""
    whole = torch.isfinite(records).all(dim=1, keepdim=True)
    return records if all_finite(whole, what) else torch.where(whole, records, 0.0)
