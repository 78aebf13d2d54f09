"""The ``[algorithm]`` table of ``feddmvc``, and which sums a study of it consists of.

rounds 1 .. P      pretrain-view-1, .., pretrain-view-V         sites that hold the view
rounds P+1 .. R    moments, kmeans-01 .., frequencies           sites that hold all views
                   train-view-1, .., train-view-V               sites that hold the view, of large kinds
round R+1          moments, kmeans-01 .., table                 the table: all sites of large kinds

A kind is all sites with the same views. In pre-training all of a sum read the same; where they do not, a kind
that is too small stays out (:mod:`secfed.algorithms.framework.kinds`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from pydantic import Field as Key

from secfed.algorithms.data.multiview.base import ViewHolders
from secfed.algorithms.framework.base import LOSS_BOUND, SiteId
from secfed.algorithms.framework.kinds import KindOptions, Parts, of_large_kinds, parts_by_kind
from secfed.algorithms.framework.staged import RoundPlan
from secfed.algorithms.framework.step_options import DeviceOptions
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, Field

Kind = Literal["train", "moments", "kmeans", "frequencies", "table"]

_SQUARED_DISTANCE: Final = 64.0  # of a view's features, norm 1, to a centre: starts may lie a little outside


class FedDmvcOptions(DeviceOptions, KindOptions):
    """Options of ``feddmvc``."""

    pretrain_rounds: int = Key(default=20, ge=1, description="rounds of pre-training, part of study.rounds")
    pretrain_epochs: int = Key(default=20, ge=1, description="passes per pre-training round, at least 1")
    local_epochs: int = Key(default=20, ge=1, description="passes over the records per round, at least 1")
    learning_rate: float = Key(default=1e-3, gt=0, description="Adam's step size, above 0")
    batch_size: int = Key(default=256, ge=1, description="records per step, at least 1")
    self_supervision: float = Key(
        default=0.1, ge=0, description="what the clusters weigh beside the reconstruction; 0: nothing"
    )
    restarts: int = Key(default=20, ge=1, description="starts of k-means side by side, at least 1")
    kmeans_iterations: int = Key(default=15, ge=1, description="sums of k-means per round, at least 1")
    max_records: int = Key(default=100_000, ge=1, description="the most records of a site; bounds k-means")
    min_group: int = Key(default=3, ge=3, description="the fewest sites in a sum, at least 3")


@dataclass(frozen=True)
class FedDmvcStage:
    """One exchange and what it is for."""

    kind: Kind
    exchange: Exchange
    view: int = -1  # of training
    last: bool = False  # of k-means


@dataclass(frozen=True, kw_only=True)
class FedDmvcPlan(ViewHolders, RoundPlan[FedDmvcStage]):
    """The plan of one study."""

    options: FedDmvcOptions
    view_of: Mapping[SiteId, int | None]
    views: int
    clusters: int
    features: int  # of one view
    shapes: Mapping[str, tuple[int, ...]]  # of the autoencoders' parameters

    def __post_init__(self) -> None:
        if self.rounds <= self.options.pretrain_rounds:
            raise ConfigError(
                f"study.rounds: {self.rounds} rounds leave none for the clusters after the "
                f"{self.options.pretrain_rounds} of pre-training",
                remedy="raise study.rounds, or lower algorithm.pretrain_rounds",
            )
        groups = {"all views": self.full, **{f"view {at + 1}": self.owners(at) for at in range(self.views)}}
        least = max(self.fewest, self.least_sites(self.options.min_group))
        for name, members in groups.items():
            if len(members) < least:
                raise ConfigError(
                    f"data: {len(members)} sites hold {name}, too few for a sum over them",
                    remedy="add such sites, or lower protection.colluders, protection.min_cohort or "
                    "protection.threshold",
                )

    @property
    def fewest(self) -> int:
        """Fewest sites of a kind in a sum with others."""
        return self.fewest_of_a_kind(self.options, self.options.min_group)

    @cached_property
    def mixing(self) -> tuple[SiteId, ...]:
        """Sites that may be in a sum with another kind that reads something else."""
        return of_large_kinds(self.view_of, self.sites, self.fewest)

    def owners(self, view: int) -> tuple[SiteId, ...]:
        """Sites that hold a view, alone or beside the others."""
        return tuple(site for site, held in self.view_of.items() if held in (None, view))

    @property
    def size(self) -> int:
        """Numbers of a record that is clustered: the features of all views."""
        return self.views * self.features

    def columns(self, view: int) -> slice:
        """Where a view's features lie among them."""
        return slice(view * self.features, (view + 1) * self.features)

    def pretrains(self, round_number: int) -> bool:
        """Whether a round only reconstructs."""
        return round_number <= self.options.pretrain_rounds

    def left_out(self) -> tuple[SiteId, ...]:
        """Sites of kinds that are too small."""
        return tuple(site for site in self.sites if site not in self.mixing)

    def members(self, stage: FedDmvcStage, round_number: int) -> tuple[SiteId, ...]:
        """Only sites with all views find clusters; others, of large kinds, are assigned to them."""
        if stage.kind == "train":
            owners = self.owners(stage.view)
            return owners if self.pretrains(round_number) else tuple(s for s in owners if s in self.mixing)
        return self.mixing if stage.kind == "table" else self.full

    def contributors(self, stage: FedDmvcStage, round_number: int) -> Parts:
        """Each kind where they read other features and centres; in pre-training they read the same."""
        alike = stage.kind == "train" and self.pretrains(round_number)
        return () if alike else parts_by_kind(self.view_of, self.members(stage, round_number), self.fewest)

    def builds_on(self, stage: FedDmvcStage, round_number: int) -> tuple[str, ...]:
        """Features of the first sum are clustered, and teach."""
        uses = stage.kind in ("kmeans", "frequencies") or (
            stage.kind == "train" and not self.pretrains(round_number)
        )
        return ("moments",) if uses else ()

    def round_stages(self, round_number: int) -> Sequence[FedDmvcStage]:
        """Pre-training; clusters and training; or clusters and their scores."""
        if round_number > self.rounds:
            return (*self._clustering, *self.scoring)
        if self.pretrains(round_number):
            return self._training("pretrain")
        return (*self._clustering, self._frequencies, *self._training("train"))

    def _training(self, name: str) -> tuple[FedDmvcStage, ...]:
        stages = []
        for view in range(self.views):
            fields = [*self.updates(self.shapes, self.names(view)), Field("loss", (), LOSS_BOUND, 64)]
            exchange = self.exchange(f"{name}-view-{view + 1}", f"view-{view + 1}", fields)
            stages.append(FedDmvcStage("train", exchange, view))
        return tuple(stages)

    def names(self, view: int) -> tuple[str, ...]:
        """Parameters of a view's autoencoder."""
        return tuple(name for name in self.shapes if name.startswith((f"enc.{view}.", f"dec.{view}.")))

    @cached_property
    def _clustering(self) -> tuple[FedDmvcStage, ...]:
        most, runs = float(self.options.max_records), (self.options.restarts, self.clusters)
        moments = [
            Field("sum", (self.size,), most, 64),
            Field("outer", (self.size, self.size), most, 64),
            Field("records", (), most, 64),
        ]
        sums = [
            Field("sums", (*runs, self.size), most, 64),
            Field("counts", runs, most, 64),
            Field("inertia", runs[:1], _SQUARED_DISTANCE * self.views * most, 64),
        ]
        count = self.options.kmeans_iterations
        names = [f"kmeans-{number:02}" for number in range(1, count + 1)]
        return (
            FedDmvcStage("moments", self.exchange("moments", "multi", moments)),
            *(
                FedDmvcStage("kmeans", self.exchange(one, "multi", sums), last=one == names[-1])
                for one in names
            ),
        )

    @cached_property
    def _frequencies(self) -> FedDmvcStage:
        most = Field("frequencies", (self.clusters,), float(self.options.max_records), 64)
        return FedDmvcStage("frequencies", self.exchange("frequencies", "multi", [most]))

    @cached_property
    def scoring(self) -> tuple[FedDmvcStage, ...]:
        """The stage that scores clusters."""
        table = Field("table", (self.clusters, self.clusters), float(self.options.max_records), 64)
        return (FedDmvcStage("table", self.exchange("table", "all", [table])),)

    def broadcast(self, stage: FedDmvcStage, round_number: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what members of an exchange are given."""
        centres: dict[str, tuple[int, ...]] = {"best": (self.clusters, self.size)}
        if stage.kind == "kmeans":
            return {"centres": (self.options.restarts, *centres["best"])}
        if stage.kind == "train":
            own = {name: self.shapes[name] for name in self.names(stage.view)}
            if self.pretrains(round_number):
                return own
            return {**own, **centres, "scale": (), "frequencies": (self.clusters,)}
        if stage.kind == "frequencies":
            return {**centres, "scale": ()}
        encoders = {name: shape for name, shape in self.shapes.items() if name.startswith("enc.")}
        return encoders if stage.kind == "moments" else {**encoders, **centres}
