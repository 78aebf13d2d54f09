"""k-means on concatenated views by sums: what clustering of several views is compared with.

    round 1   moments          over sites with all views: sums, outer products and counts of records
              kmeans-01, ..    over all sites: every restart of k-means in one sum
    round 2   table            records by cluster and class, for the scores

A record is all its views side by side, in the leading principal directions of the hospitals with all views.
What a hospital with one view lacks is completed, by the other views' means or by a ridge regression from its
own view; both follow from the same moments. That is the plain form of methods for incomplete views, which
the FMCSC paper compares with; its nine are networks or need records of several hospitals in one place.

Source: Lloyd, IEEE Transactions on Information Theory 28, 1982; Ding, He, "K-means clustering via principal
component analysis", ICML 2004; Hoerl, Kennard, "Ridge regression", Technometrics 12, 1970.

Security: who holds which view is public. The totals are exact, as those of canonical clustering are: where
all hospitals together have fewer records than features, moments tell the records up to a rotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal

import torch
from pydantic import Field as Key

from secfed.algorithms.canonical.algorithm import check_protection
from secfed.algorithms.data.multiview.base import MultiviewData, MultiviewSite, check_multiview
from secfed.algorithms.fmcsc import kmeans
from secfed.algorithms.framework.base import ServerProgram, SiteId, SiteProgram
from secfed.algorithms.framework.parameters import check_shapes
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.server_state import MODEL, VersionMetrics, copies, model_of
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.staged import PlannedStages, RoundPlan
from secfed.algorithms.metrics.clustering import contingency, scores
from secfed.config.schema import Options
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, Field, State, Summands, Totals
from secfed.wire.parts import otherwise

_SAME: Final = 1e-4  # restarts whose inertia differs by less found the same clusters
_DIMENSIONS: Final = 4  # times the number of clusters
_Kind = Literal["moments", "kmeans", "table"]


class ViewKmeansOptions(Options):
    """Options of ``view-kmeans``."""

    completion: Literal["mean", "regression"] = Key(
        default="regression",
        description='what stands for a view that a site lacks: "mean" (of the sites with all views) or '
        '"regression" (from the view it has)',
    )
    ridge: float = Key(
        default=0.01, gt=0, le=1, description="added to every variance, as a share of the view's largest"
    )
    restarts: int = Key(default=20, ge=1, description="starts of k-means side by side, at least 1")
    kmeans_iterations: int = Key(default=30, ge=1, description="sums of k-means, at least 1")
    largest_value: float = Key(
        default=100.0, gt=0, le=1e6, description="above 0: larger features are cut off at this"
    )
    max_records: int = Key(default=100_000, ge=1, description="the most records of a site; bounds the sums")
    min_group: int = Key(default=3, ge=3, description="the fewest sites in a sum, at least 3")


@dataclass(frozen=True)
class _Stage:
    """One exchange and what it is for."""

    kind: _Kind
    exchange: Exchange
    last: bool = False


@dataclass(frozen=True, kw_only=True)
class ViewKmeansPlan(RoundPlan[_Stage]):
    """The plan of one study."""

    options: ViewKmeansOptions
    view_of: Mapping[SiteId, int | None]
    sizes: tuple[int, ...]  # features of each view
    clusters: int

    def __post_init__(self) -> None:
        if self.rounds != 1:
            message = f"study.rounds: view-kmeans takes one round of sums, not {self.rounds}"
            raise ConfigError(message, remedy="set study.rounds = 1")
        if len(self.full) < self.least_sites(self.options.min_group):
            raise ConfigError(
                f"data: {len(self.full)} sites hold all views, too few for a sum over them",
                remedy="add sites that hold all views, or lower protection.colluders, protection.min_cohort "
                "or protection.threshold",
            )

    @property
    def sites(self) -> tuple[SiteId, ...]:
        """All sites."""
        return tuple(self.view_of)

    @cached_property
    def full(self) -> tuple[SiteId, ...]:
        """Sites that hold all views."""
        return tuple(site for site, view in self.view_of.items() if view is None)

    @property
    def dimensions(self) -> int:
        """Numbers of a record that is clustered."""
        return min(_DIMENSIONS * self.clusters, sum(self.sizes))

    @property
    def columns(self) -> list[slice]:
        """Where each view lies among the features of a record."""
        ends = [sum(self.sizes[:view]) for view in range(len(self.sizes) + 1)]
        return [slice(low, high) for low, high in pairwise(ends)]

    def members(self, stage: _Stage, round_number: int) -> tuple[SiteId, ...]:
        """Only sites with all views know how views vary together."""
        del round_number
        return self.full if stage.kind == "moments" else self.sites

    @cached_property
    def summing(self) -> tuple[_Stage, ...]:
        """The stages that find clusters."""
        options, size, most = self.options, sum(self.sizes), float(self.options.max_records)
        value = options.largest_value
        fields = [
            Field("sum", (size,), most * value, 64),
            Field("outer", (size, size), most * value**2, 64),
            Field("records", (), most, 64),
        ]
        far = (2 * value) ** 2 * size  # squared distance, at most; projections do not lengthen
        runs = (options.restarts, self.clusters)
        sums = [
            Field("sums", (*runs, self.dimensions), most * far**0.5, 64),
            Field("counts", runs, most, 64),
            Field("inertia", runs[:1], most * 16 * far, 64),
        ]
        names = [f"kmeans-{number:02}" for number in range(1, options.kmeans_iterations + 1)]
        return (
            _Stage("moments", self.exchange("moments", "multi", fields)),
            *(_Stage("kmeans", self.exchange(name, "all", sums), name == names[-1]) for name in names),
        )

    @cached_property
    def scoring(self) -> tuple[_Stage, ...]:
        """The stage that scores clusters."""
        table = Field("table", (self.clusters, self.clusters), float(self.options.max_records), 64)
        return (_Stage("table", self.exchange("table", "all", [table])),)

    def round_stages(self, round_number: int) -> Sequence[_Stage]:
        """All sums in round 1; the scores afterwards."""
        return self.summing if round_number == 1 else self.scoring

    def broadcast(self, stage: _Stage) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what members of an exchange are given."""
        if stage.kind == "moments":
            return {}
        shapes: dict[str, tuple[int, ...]] = {"mean": (sum(self.sizes),)}
        shapes["projection/all"] = (sum(self.sizes), self.dimensions)
        shapes |= {f"projection/{view}": (size, self.dimensions) for view, size in enumerate(self.sizes)}
        runs = (self.options.restarts,) if stage.kind == "kmeans" else ()
        name = "centres" if stage.kind == "kmeans" else "best"
        return {**shapes, name: (*runs, self.clusters, self.dimensions)}


@register("view-kmeans", options=ViewKmeansOptions)
class ViewKmeans(PlannedStages[_Stage]):
    """k-means on concatenated views, bound to one study."""

    private_units = ()
    plan: ViewKmeansPlan

    def __init__(self, setting: Setting, options: ViewKmeansOptions) -> None:
        study, data = setting.study, setting.data
        if not isinstance(data, MultiviewData):
            raise ConfigError(
                f"data.name: view-kmeans needs views of a record, which {study.data.name} does not give",
                remedy="use a multi-view data set, for example digits-views or multiview",
            )
        if study.model.name != "none":
            message = f"model.name: view-kmeans has no network, so {study.model.name!r} would have no effect"
            raise ConfigError(message, remedy='set model.name = "none"')
        check_protection(study.protection)
        self.setting, self.options, self.data = setting, options, data
        self.plan = ViewKmeansPlan(
            options=options,
            protection=study.protection,
            rounds=study.rounds,
            seed=study.seed,
            view_of=data.view_of,
            sizes=tuple(data.view_sizes),
            clusters=data.classes,
        )

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse other names or shapes than the server gives."""
        check_shapes(broadcast, self.plan.broadcast(self.stage(round_number, exchange)))

    def server(self) -> ViewKmeansServer:
        """A fresh server program."""
        return ViewKmeansServer(self.plan)

    def site(self, site_id: SiteId) -> ViewKmeansSite:
        """One site's program, bound to that site's records."""
        return ViewKmeansSite(self.plan, self.site_data(site_id))

    def site_data(self, site_id: SiteId) -> MultiviewSite:
        """One site's checked records."""
        data = check_multiview(site_id, self.data.site(site_id), self.data)
        return data.first(self.options.max_records, site_id)


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
        given = {name: value.to(torch.float64) for name, value in broadcast.items()}
        none = torch.zeros(len(self._records), self._plan.dimensions, dtype=torch.float64)
        records = otherwise(none, self._projected, given)
        if stage.kind == "table":
            size = self._plan.clusters
            return {"table": contingency(kmeans.assign(records, given["best"]), self._labels, size, size)}
        sums, counts, inertia = kmeans.local_sums(records, given["centres"])
        return {"sums": sums, "counts": counts, "inertia": inertia}

    def _projected(self, given: State) -> torch.Tensor:
        columns = slice(None) if self._view is None else self._plan.columns[self._view]
        name = "all" if self._view is None else str(self._view)
        return (self._records - given["mean"][columns]) @ given[f"projection/{name}"]


class ViewKmeansServer(ServerProgram):
    """Moments, projections and centres; reads totals only."""

    def __init__(self, plan: ViewKmeansPlan) -> None:
        self._plan, self._metrics = plan, VersionMetrics()
        shapes = plan.broadcast(plan.summing[-1]) | plan.broadcast(plan.scoring[0])
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
