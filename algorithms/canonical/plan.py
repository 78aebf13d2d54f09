"""Which sums a canonical study consists of, and what one record can add to each: from public facts alone.

    round 1   scale                     only with the map "standard": sums and squares of raw features
              moments                   per view: outer products, sums and counts of the records that have it
              cross                     per pair of views: outer products of the records that have both
              split-1, split-2, ..      only with divisive starts: moments of twice as many parts each time,
                                        and twice of all of them, to join and split some
              cubes                     only with starts from cubes: third powers of embedded records
              kmeans-01, .., objective  all restarts of spherical k-means in one sum each; how well each did
              refine-1, ..              per view: sums and counts by cluster
    round 2   table                     records by cluster and class, for the scores

From ``split`` on, sites with one view and those with all read other projections: a kind that is too small
(:mod:`secfed.algorithms.framework.kinds`) adds to no sum, and under noise to those before.

Every sum is one over records, of contributions with a norm of at most the stage's ``sensitivity``, whatever
the records and the broadcast hold: a record that is there or not moves the totals by no more (twice that, if
it is replaced). So noise in the sum protects single records, and ``share`` is the part of mu^2, the squared
parameter of Gaussian differential privacy, that the exchange gets. The table has what ``privacy.metrics``
says; ``scale``, whose sums no norm bounds usefully, has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from secfed.algorithms.canonical.cubes import MOST_DIMENSIONS, size_of_cubes
from secfed.algorithms.canonical.moments import BLOCK_NORM
from secfed.algorithms.canonical.options import CanonicalOptions
from secfed.algorithms.canonical.projections import pairs
from secfed.algorithms.data.multiview.base import ViewHolders
from secfed.algorithms.framework.base import SiteId, planned_for
from secfed.algorithms.framework.kinds import Parts, of_large_kinds, parts_by_kind
from secfed.algorithms.framework.staged import RoundPlan
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, Field

Kind = Literal[
    "scale", "moments", "cross", "split", "cubes", "kmeans", "objective", "refine", "table", "retrieval"
]
Shapes = dict[str, tuple[int, ...]]

# Shares of mu^2: of moments, cross-covariances, clustering and refinement.
_SHARES: Final = (0.2, 0.6, 0.2, 0.0)
_REFINED_SHARES: Final = (0.14, 0.46, 0.12, 0.28)
_MENDED: Final = 2  # times, once there are as many parts as clusters


@dataclass(frozen=True)
class CanonicalStage:
    """One exchange, what it is for, and what noise in its sum would have to hide.

    Attributes:
        iteration: of splits, k-means and refinement, from 1.
        sensitivity: the largest norm of what one record adds to the whole exchange.
        share: of the study's mu^2.
    """

    kind: Kind
    exchange: Exchange
    iteration: int = 0
    sensitivity: float = math.inf
    share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CanonicalPlan(ViewHolders, RoundPlan[CanonicalStage]):
    """The plan of one study."""

    options: CanonicalOptions
    view_of: Mapping[SiteId, int | None]  # the one view of every site, or None for all views
    raw_sizes: tuple[int, ...]  # features of each view as they are stored
    sizes: tuple[int, ...]  # and after its map
    standardised: tuple[bool, ...]  # views whose map begins with "standard"
    clusters: int  # and classes
    dimensions: int  # of an embedded record

    def __post_init__(self) -> None:
        if self.rounds != 1:
            raise ConfigError(
                f"study.rounds: canonical takes one round of sums, not {self.rounds}",
                remedy="set study.rounds = 1",
            )
        least = max(self._fewest_of_kind, self.least if self.privacy is None else self.fewest)
        if len(self.full) < least:
            raise ConfigError(
                f"data: {len(self.full)} sites hold all views, but a sum over them needs {least}",
                remedy="add sites that hold all views, or lower protection.colluders, protection.min_cohort "
                "or protection.threshold",
            )

    @property
    def views(self) -> int:
        """How many views there are."""
        return len(self.sizes)

    @property
    def least(self) -> int:
        """The smallest cohort that a sum is planned for."""
        return self.least_sites(self.options.min_group)

    @property
    def fewest(self) -> int:
        """Fewest sites that may add more than zeros to a part of a sum: two honest ones, whoever colludes."""
        return self.fewest_sites(self.options.min_group)

    @cached_property
    def mixing(self) -> tuple[SiteId, ...]:
        """Sites that add to sums of which several kinds read different projections."""
        return of_large_kinds(self.view_of, self.sites, self._fewest_of_kind)

    @cached_property
    def _fewest_of_kind(self) -> int:
        return self.fewest_of_a_kind(self.options, self.options.min_group)

    def adds_zeros(self, stage: CanonicalStage, view: int | None) -> bool:
        """Whether a site with this one view, or all, adds zeros only: to hide others with its noise."""
        return view not in {self.view_of[site] for site in self.adds(stage)}

    def adds(self, stage: CanonicalStage) -> tuple[SiteId, ...]:
        """Who may add more than zeros to a sum: only sites with all views know how views vary together.

        Of the others those that are in clusters: moments, less the same sums over clusters, would be those
        of who is in no cluster.
        """
        return self.full if stage.kind == "cross" else self.mixing

    def left_out(self) -> tuple[SiteId, ...]:
        """Sites of kinds that are too small."""
        return tuple(site for site in self.sites if site not in self.mixing)

    def members(self, stage: CanonicalStage, round_number: int) -> tuple[SiteId, ...]:
        """Those who add to it.

        Under noise in the sum the others add their shares of it to zeros, so that every share is smaller.
        """
        del round_number
        return self.adds(stage) if self.privacy is None else self.sites

    def contributors(self, stage: CanonicalStage, round_number: int) -> Parts:
        """Each kind, even where all read the same: a view's count tells how many other sites add to it.

        Of one site with one view beside others with all, the counts of two views would differ by its own.
        """
        del round_number
        adding = self.adds(stage)
        kinds = parts_by_kind(self.view_of, adding, self._fewest_of_kind)
        return kinds or (() if self.privacy is None else ((frozenset(adding), self.fewest),))

    def round_stages(self, round_number: int) -> Sequence[CanonicalStage]:
        """All sums in round 1; the scores afterwards."""
        if round_number == 1:
            return self.summing
        withheld = self.privacy is not None and self.privacy.metrics == "withheld"
        return () if withheld else self.scoring

    def stage_of(self, exchange: Exchange) -> CanonicalStage:
        """What an exchange of either round is for."""
        return planned_for(exchange, 1, (*self.summing, *self.scoring))

    def broadcast(self, stage: CanonicalStage) -> Shapes:
        """Names and shapes of what the members of one exchange are given, all of it the server's state."""
        sizes = enumerate(self.raw_sizes)
        scaled: Shapes = {f"scale/{v}": (2, size) for v, size in sizes if self.standardised[v]}
        means: Shapes = {f"mean/{v}": (size,) for v, size in enumerate(self.sizes)}
        if stage.kind == "scale":
            return {}
        if stage.kind == "moments":
            return scaled
        if stage.kind == "cross":
            return scaled | means
        later = stage.kind == "refine" and stage.iteration > 1
        if later or (stage.kind == "table" and self.options.refinements):
            return scaled | means | self.discriminants
        projections = {f"projection/{v}": (size, self.dimensions) for v, size in enumerate(self.sizes)}
        if stage.kind == "cubes":
            return {**scaled, **means, **projections}
        runs = () if stage.kind in ("split", "refine", "table") else (self.options.restarts,)
        name = {"split": "parts", "refine": "best", "table": "best"}.get(stage.kind, "centres")
        return {**scaled, **means, **projections, name: (*runs, self.clusters, self.dimensions)}

    @property
    def discriminants(self) -> Shapes:
        """What refinement finds."""
        directions = {f"directions/{v}": (size, self.clusters) for v, size in enumerate(self.sizes)}
        offsets = {f"offsets/{v}": (self.clusters,) for v in range(self.views)}
        return {**directions, **offsets, "sizes": (self.clusters,)}

    def parts(self, level: int) -> int:
        """How many parts the records are in after this many levels of splits."""
        return min(1 << level, self.clusters)

    @property
    def levels(self) -> int:
        """How often parts are split until there are as many as clusters."""
        return (self.clusters - 1).bit_length() if self.options.starts == "divisive" else 0

    @property
    def leading(self) -> int:
        """In how many of the dimensions, which come in the order of what views share, cubes are summed."""
        return min(self.clusters, self.dimensions, MOST_DIMENSIONS)

    @property
    def splits(self) -> int:
        """How many sums find the parts: one for each level, and those that mend them."""
        return self.levels + _MENDED if self.levels else 0

    @cached_property
    def scoring(self) -> tuple[CanonicalStage, ...]:
        """The stage that scores clusters."""
        table = Field("table", (self.clusters, self.clusters), self._most, 64)
        private = self.privacy is not None and self.privacy.metrics == "private"
        share = self.privacy.metrics_share if self.privacy is not None and private else 0.0
        exchange = self.exchange("table", "all", [table])
        # The shares of the other stages add up to 1.
        return (CanonicalStage("table", exchange, sensitivity=1.0, share=share / (1.0 - share)),)

    @cached_property
    def summing(self) -> tuple[CanonicalStage, ...]:
        """The stages that find clusters, in order."""
        options, views, rows = self.options, self.views, math.sqrt(self.options.restarts)
        of_moments, of_cross, of_clusters, of_refinement = _REFINED_SHARES if options.refinements else _SHARES
        cubes = options.starts == "cubes"
        several = options.restarts > 1  # of a single one nobody asks how well it did
        of_one = of_clusters / (self.splits + cubes + options.kmeans_iterations + several)
        stages = self.aligning(of_moments, of_cross)
        for level in range(1, self.splits + 1):
            fields = self._moment_fields("", self.dimensions, (self.clusters,))
            exchange = self.exchange(f"split-{level}", "all", fields)
            stages.append(CanonicalStage("split", exchange, level, BLOCK_NORM, of_one))
        if cubes:
            found = Field("cubes", (size_of_cubes(self.leading),), self._most, 64)
            stages.append(CanonicalStage("cubes", self.exchange("cubes", "all", [found]), 0, 1.0, of_one))
        sums = Field("sums", (options.restarts, self.clusters, self.dimensions), self._most, 64)
        for number in range(1, options.kmeans_iterations + 1):
            exchange = self.exchange(f"kmeans-{number:02}", "all", [sums])
            stages.append(CanonicalStage("kmeans", exchange, number, rows, of_one))
        if several:
            objective = Field("objective", (options.restarts,), self._most, 64)
            exchange = self.exchange("objective", "all", [objective])
            stages.append(CanonicalStage("objective", exchange, 0, rows, of_one))
        for number in range(1, options.refinements + 1):
            exchange = self.exchange(f"refine-{number}", "all", self._class_fields)
            share = of_refinement / options.refinements
            stages.append(CanonicalStage("refine", exchange, number, math.sqrt(2 * views), share))
        return tuple(stages)

    def aligning(self, of_moments: float, of_cross: float) -> list[CanonicalStage]:
        """The stages that projections come from, with their shares."""
        stages, views = [], self.views
        if any(self.standardised):
            stages.append(CanonicalStage("scale", self.exchange("scale", "all", self._scale_fields)))
        moments = [f for v, d in enumerate(self.sizes) for f in self._moment_fields(f"view-{v + 1}/", d)]
        exchange = self.exchange("moments", "all", moments)
        stages.append(CanonicalStage("moments", exchange, 0, BLOCK_NORM * math.sqrt(views), of_moments))
        most = self.options.cross_radius**2
        crosses = [
            Field(f"cross-{u + 1}-{v + 1}", (self.sizes[u], self.sizes[v]), most * self._most, 64)
            for u, v in pairs(views)
        ]
        norm = most * math.sqrt(len(crosses))
        stages.append(CanonicalStage("cross", self.exchange("cross", "multi", crosses), 0, norm, of_cross))
        return stages

    @property
    def _most(self) -> float:
        return float(self.options.max_records)

    @property
    def _scale_fields(self) -> list[Field]:
        fields, value = [], self.options.largest_value
        for view, size in enumerate(self.raw_sizes):
            if self.standardised[view]:
                fields += [
                    Field(f"view-{view + 1}/sum", (size,), value * self._most, 64),
                    Field(f"view-{view + 1}/squares", (size,), value**2 * self._most, 64),
                    Field(f"view-{view + 1}/records", (), self._most, 64),
                ]
        return fields

    def _moment_fields(self, start: str, size: int, parts: tuple[int, ...] = ()) -> list[Field]:
        half = self._most / 2
        return [
            Field(f"{start}outer", (*parts, size * (size + 1) // 2), self._most, 64),
            Field(f"{start}sum", (*parts, size), half, 64),
            Field(f"{start}records", parts, half, 64),
        ]

    @property
    def _class_fields(self) -> list[Field]:
        fields = []
        for view, size in enumerate(self.sizes):
            fields.append(Field(f"view-{view + 1}/sums", (self.clusters, size), self._most, 64))
            fields.append(Field(f"view-{view + 1}/counts", (self.clusters,), self._most, 64))
        return fields
