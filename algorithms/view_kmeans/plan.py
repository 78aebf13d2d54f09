"""The ``[algorithm]`` table of ``view-kmeans``, and which sums a study of it consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal, Self

from pydantic import Field as Key
from pydantic import model_validator

from secfed.algorithms.data.multiview.base import ViewHolders
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.kinds import KindOptions, Parts, of_large_kinds, parts_by_kind
from secfed.algorithms.framework.staged import RoundPlan
from secfed.config.schema import LATER, Options
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, Field

_DIMENSIONS: Final = 4  # times the number of clusters
_PROTOTYPES: Final = 10  # times the number of clusters
Kind = Literal["moments", "prototypes", "kmeans", "table"]


class ViewKmeansOptions(Options, KindOptions):
    """Options of ``view-kmeans``."""

    completion: Literal["mean", "regression", "prototypes"] = Key(
        default="regression",
        description='what stands for a view that a site lacks: "mean" (of the sites with all views), '
        '"regression" (from the view it has) or "prototypes" (that of the nearest of many centres)',
    )
    sharing: Literal["sums", "none"] = Key(
        default="sums",
        json_schema_extra=LATER,
        description='"sums", or "none" for hospitals that cluster their own records alone, to compare with',
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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sharing == "none" and self.model_fields_set & {"completion", "ridge"}:
            message = 'algorithm.completion: has no effect with sharing = "none", which completes nothing'
            raise ConfigError(message, remedy="remove it and algorithm.ridge")
        return self


@dataclass(frozen=True)
class KmeansStage:
    """One exchange and what it is for."""

    kind: Kind
    exchange: Exchange
    last: bool = False


@dataclass(frozen=True, kw_only=True)
class ViewKmeansPlan(ViewHolders, RoundPlan[KmeansStage]):
    """The plan of one study."""

    options: ViewKmeansOptions
    view_of: Mapping[SiteId, int | None]
    sizes: tuple[int, ...]  # features of each view
    clusters: int

    def __post_init__(self) -> None:
        if self.rounds != 1:
            message = f"study.rounds: view-kmeans takes one round of sums, not {self.rounds}"
            raise ConfigError(message, remedy="set study.rounds = 1")
        if len(self.full) < max(self._fewest, self.least_sites(self.options.min_group)):
            raise ConfigError(
                f"data: {len(self.full)} sites hold all views, too few for a sum over them",
                remedy="add sites that hold all views, or lower protection.colluders, protection.min_cohort "
                "or protection.threshold",
            )

    @property
    def dimensions(self) -> int:
        """Numbers of a record that is clustered."""
        return min(_DIMENSIONS * self.clusters, sum(self.sizes))

    @property
    def columns(self) -> list[slice]:
        """Where each view lies among the features of a record."""
        ends = [sum(self.sizes[:view]) for view in range(len(self.sizes) + 1)]
        return [slice(low, high) for low, high in pairwise(ends)]

    def left_out(self) -> tuple[SiteId, ...]:
        """Sites of kinds that are too small."""
        return tuple(site for site in self.sites if site not in self._kmeans_sites)

    @cached_property
    def _fewest(self) -> int:
        return self.fewest_of_a_kind(self.options, self.options.min_group)

    @cached_property
    def _kmeans_sites(self) -> tuple[SiteId, ...]:
        if self.options.sharing == "none":
            return self.sites
        return of_large_kinds(self.view_of, self.sites, self._fewest)

    def members(self, stage: KmeansStage, round_number: int) -> tuple[SiteId, ...]:
        """Only sites with all views know how views vary together; kinds too small find no clusters."""
        del round_number
        return self.full if stage.kind in ("moments", "prototypes") else self._kmeans_sites

    def contributors(self, stage: KmeansStage, round_number: int) -> Parts:
        """Each kind, by the projection that it reads; without sharing nothing is broadcast."""
        if self.options.sharing == "none":
            return ()
        members = self.members(stage, round_number)
        return parts_by_kind(self.view_of, members, self._fewest)

    @cached_property
    def summing(self) -> tuple[KmeansStage, ...]:
        """The stages that find clusters."""
        if self.options.sharing == "none":
            return ()
        options, size, most = self.options, sum(self.sizes), float(self.options.max_records)
        value = options.largest_value
        fields = [
            Field("sum", (size,), most * value, 64),
            Field("outer", (size, size), most * value**2, 64),
            Field("records", (), most, 64),
        ]
        sums = self._kmeans_fields(options.restarts, self.clusters, self.dimensions)
        names = [f"kmeans-{number:02}" for number in range(1, options.kmeans_iterations + 1)]
        return (
            KmeansStage("moments", self.exchange("moments", "multi", fields)),
            *self._prototypes(),
            *(KmeansStage("kmeans", self.exchange(name, "all", sums), name == names[-1]) for name in names),
        )

    def _prototypes(self) -> tuple[KmeansStage, ...]:
        if self.options.completion != "prototypes":
            return ()
        fields = self._kmeans_fields(1, self.prototypes, self.dimensions * len(self.sizes))
        names = [f"prototypes-{number:02}" for number in range(1, self.options.kmeans_iterations + 1)]
        return tuple(KmeansStage("prototypes", self.exchange(name, "multi", fields)) for name in names)

    def _kmeans_fields(self, restarts: int, clusters: int, size: int) -> list[Field]:
        options, runs = self.options, (restarts, clusters)
        most = float(options.max_records)
        far = (2 * options.largest_value) ** 2 * sum(self.sizes)  # squared distance, at most
        return [  # projections do not lengthen
            Field("sums", (*runs, size), most * far**0.5, 64),
            Field("counts", runs, most, 64),
            Field("inertia", runs[:1], most * 16 * far, 64),
        ]

    @property
    def prototypes(self) -> int:
        """How many centres complete records."""
        return _PROTOTYPES * self.clusters

    @cached_property
    def scoring(self) -> tuple[KmeansStage, ...]:
        """The stage that scores clusters."""
        table = Field("table", (self.clusters, self.clusters), float(self.options.max_records), 64)
        return (KmeansStage("table", self.exchange("table", "all", [table])),)

    def round_stages(self, round_number: int) -> Sequence[KmeansStage]:
        """All sums in round 1; the scores afterwards, or at once where nothing else is summed."""
        if self.options.sharing == "none":
            return self.scoring if round_number == 1 else ()
        return self.summing if round_number == 1 else self.scoring

    def broadcast(self, stage: KmeansStage) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what members of an exchange are given."""
        if stage.kind == "moments" or self.options.sharing == "none":
            return {}
        shapes: dict[str, tuple[int, ...]] = {"mean": (sum(self.sizes),)}
        shapes["projection/all"] = (sum(self.sizes), self.dimensions)
        shapes |= {f"projection/{view}": (size, self.dimensions) for view, size in enumerate(self.sizes)}
        if self.options.completion == "prototypes":
            shapes["prototypes"] = (1, self.prototypes, self.dimensions * len(self.sizes))
        if stage.kind == "prototypes":
            return shapes
        runs = (self.options.restarts,) if stage.kind == "kmeans" else ()
        name = "centres" if stage.kind == "kmeans" else "best"
        return {**shapes, name: (*runs, self.clusters, self.dimensions)}
