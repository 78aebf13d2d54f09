"""Which sums an FMCSC study consists of, and who takes part in each: computed from public facts alone.

A site with all views trains for every group, one with one view for its own; each is *scored* in its own only.
What sites read depends on their views: kinds that are too small (:mod:`secfed.algorithms.framework.kinds`)
stay out of sums with others; with hidden view types they add zeros.

    rounds 1 .. P        pretrain                                       sampled sites
    rounds P+1 .. R      train-full, train-view-1, .., train-view-V     one sum per group
    round R+1            score-moments, score-split-1 ..,               k-means as sums: start (splits if
                         score-full-01 ..,                              divisive), iterations
                         score-view-1-01 .., score-table                per group, and one table

Under ``[privacy]`` no loss leaves; with the site as the unit a layout holds updates only: all of it gets
noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from secfed.algorithms.data.multiview.base import ViewHolders
from secfed.algorithms.fmcsc import divisive
from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.framework.base import LOSS_BOUND, SiteId
from secfed.algorithms.framework.kinds import Parts, by_kind, drawn, of_large_kinds
from secfed.algorithms.framework.randomness import numpy_generator
from secfed.algorithms.framework.staged import RoundPlan
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, Field

Kind = Literal["pretrain", "train", "moments", "split", "kmeans", "table"]

FULL: Final = 0  # the group of all views; the group of view v is v + 1
_SQUARED_DISTANCE: Final = 64.0  # of a unit vector to a centre; starts lie outside the unit ball, but not far


@dataclass(frozen=True)
class FmcscStage:
    """One exchange and what it is for."""

    kind: Kind
    exchange: Exchange
    group: int = FULL  # whose model or clusters
    iteration: int = 0  # of k-means or of splits, from 1


@dataclass(frozen=True, kw_only=True)
class FmcscPlan(ViewHolders, RoundPlan[FmcscStage]):
    """The plan of one study."""

    options: FmcscOptions
    view_of: Mapping[SiteId, int | None]  # the one view of every site, or None for all views
    views: int
    classes: int  # and clusters
    features: int  # size of h
    shapes: Mapping[str, tuple[int, ...]]  # of the network's parameters

    def __post_init__(self) -> None:
        if 0 < self.rounds < self.options.pretrain_rounds:
            raise ConfigError(
                f"study.rounds: {self.rounds} rounds are fewer than the {self.options.pretrain_rounds} of "
                "pre-training, which they include",
                remedy=f"set study.rounds = {self.options.pretrain_rounds} plus the main rounds, "
                "or lower algorithm.pretrain_rounds",
            )
        # A sum over the group's sites must be possible whoever else is away; see the class's `least`.
        needed = self.fewest if self.hidden else self.least  # hidden, all others add zeros
        for group, name in enumerate(self.groups):
            trainers = self.trainers(group)
            if len(trainers) < needed or len(self.sites) < self.least:
                raise ConfigError(
                    f"algorithm.name: {len(trainers)} sites train the model of group {name!r}, "
                    f"but a sum needs {needed}",
                    remedy="add sites that hold all views, raise algorithm.participation, or lower "
                    "protection.colluders, protection.min_cohort or protection.threshold",
                )

    @property
    def hidden(self) -> bool:
        """Whether every site sends to every group."""
        return self.options.view_types == "hidden"

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups."""
        return ("full", *(f"view-{view + 1}" for view in range(self.views)))

    @property
    def first_main_round(self) -> int:
        """The first round after pre-training."""
        return self.options.pretrain_rounds + 1

    def learning_rate(self, round_number: int) -> float:
        """The step size of one main round."""
        decay = self.options.learning_rate_decay ** (round_number - self.first_main_round)
        return self.options.learning_rate * decay

    @cached_property
    def least(self) -> int:
        """The smallest cohort that a sum is planned for."""
        return self.least_sites(self.options.min_group)

    @property
    def fewest(self) -> int:
        """Fewest sites that may add more than zeros to a part of a sum: two honest ones, whoever colludes."""
        return self.fewest_sites(self.options.min_group)

    @cached_property
    def fewest_of_kind(self) -> int:
        """Fewest sites of a kind in a sum with others."""
        return self.fewest_of_a_kind(self.options, self.options.min_group)

    @cached_property
    def participants(self) -> tuple[SiteId, ...]:
        """Sites that train: a fixed subset, with multi-view and single-view sites in proportion.

        Or more of a kind, so that there are enough of it; none of a kind that is too small.
        """
        count = int(self.options.participation * len(self.sites) + 1e-9)  # 0.29 * 100 is less than 29
        chosen = min(len(self.full), math.ceil(count * len(self.full) / len(self.sites)))
        large = of_large_kinds(self.view_of, self.sites, self.fewest_of_kind)
        single = [site for site in large if self.view_of[site] is not None]
        some = (*self.full[:chosen], *drawn(self.view_of, single, count - chosen, self.fewest_of_kind))
        return tuple(sorted(some, key=self.sites.index))

    def trainers(self, group: int) -> tuple[SiteId, ...]:
        """Sites whose models enter the group's average, as far as public facts say."""
        # A site that counts nothing hides nothing; under privacy it would add noise, or spend budget, too.
        only_full = group == FULL or not self.trains_own_view
        wanted = (None,) if only_full else (None, group - 1)
        return tuple(site for site in self.participants if self.view_of[site] in wanted)

    @property
    def trains_own_view(self) -> bool:
        """Whether what sites with one view train is ever part of a sum; if not, they leave it."""
        return self.options.weights != "public"

    def weight(self, site: SiteId, group: int, round_number: int) -> float:
        """How much a site counts in a group's average, from public facts; "mi" multiplies it by more."""
        view = self.view_of[site]
        if view is None:
            return 1.0
        # The group's first model is what the multi-view sites teach.
        counts = self.trains_own_view and round_number != self.first_main_round
        return float(counts and group == view + 1 and site in self.participants)

    def owners(self, sites: Iterable[SiteId], view: int) -> int:
        """How many of these sites hold a view."""
        return sum(self.view_of[site] in (None, view) for site in sites)

    @property
    def site_level(self) -> bool:
        """Whether noise is added to the sums, one site being the unit."""
        return self.privacy is not None and not self.privacy.in_local_steps

    def scored(self, group: int) -> tuple[SiteId, ...]:
        """Sites that are scored with the group's model."""
        wanted = None if group == FULL else group - 1
        return tuple(site for site, view in self.view_of.items() if view == wanted)

    def clusters_itself(self, group: int) -> bool:
        """Whether a group moves its cluster centres; one that is too small only assigns to given ones."""
        enough = len(self.scored(group)) >= self.least
        return group == FULL or (enough and self.options.group_iterations > 0)

    def broadcast_groups(self, stage: FmcscStage) -> tuple[int, ...]:
        """The groups whose models are broadcast for one exchange."""
        if stage.kind == "table":  # groups without sums of their own have not had their model yet
            others = range(1, len(self.groups))
            views = {self.view_of[site] for site in self.tabled}
            return tuple(group for group in others if not self.clusters_itself(group) and group - 1 in views)
        if stage.kind == "split":
            return ()
        if stage.kind == "kmeans" and (stage.group == FULL or stage.iteration > 1):
            return ()
        return (stage.group,)

    @cached_property
    def scored_apart(self) -> frozenset[SiteId]:
        """Sites that do not train and have a table of their own: enough for a sum, and of each kind.

        The others of them are counted with those that train: they are in sums of k-means over the same
        records, and a table without them would give their numbers by a difference.
        """
        others = [site for site in self.sites if site not in self.participants]
        large = of_large_kinds(self.view_of, others, self.fewest_of_kind)
        return frozenset(large if len(large) >= self.least else ())

    @cached_property
    def scored_as(self) -> Mapping[SiteId, tuple[bool, int | None]]:
        """The table that a site is counted in, and with which model: together, its kind there."""
        return {site: (site in self.scored_apart, view) for site, view in self.view_of.items()}

    @cached_property
    def tabled(self) -> tuple[SiteId, ...]:
        """Sites whose records are counted in the table."""
        return of_large_kinds(self.scored_as, self.sites, self.fewest_of_kind)

    def adds(self, site: SiteId, stage: FmcscStage) -> bool:
        """Whether a member of an exchange may add more than zeros where kinds are summed together."""
        if stage.kind == "table":
            return site in self.tabled
        return stage.kind not in ("pretrain", "train") or site in self.participants

    def runs(self, group: int) -> int:
        """How many k-means run side by side in a group's sums."""
        return self.options.restarts if group == FULL else 1

    def sampled(self, round_number: int) -> tuple[SiteId, ...]:
        """Sites of one pre-training round; enough of them hold all views for each view to have its owners.

        With hidden view types everybody takes part: counts of owners in changing samples are equations that
        can be solved for the view of every site.
        """
        if self.hidden:
            return self.sites
        chosen_from = self.participants
        size = max(self.least, math.ceil(self.options.pretrain_share * len(chosen_from) - 1e-9))
        rng = numpy_generator(self.seed, "pre-training sites", round_number)
        full = [site for site in chosen_from if self.view_of[site] is None]
        single = [site for site in chosen_from if self.view_of[site] is not None]
        share = round(size * len(full) / len(chosen_from))
        most = min(len(full), max(self.fewest, size - len(single), share))
        picked = [full[pick] for pick in rng.permutation(len(full))[:most]]
        order = [single[pick] for pick in rng.permutation(len(single))]
        picked += drawn(self.view_of, order, max(0, size - most), self.fewest_of_kind)
        return tuple(sorted(picked, key=self.sites.index))

    def left_out(self) -> tuple[SiteId, ...]:
        """Sites of kinds that are too small; nobody is named where view types are hidden."""
        large = self.sites if self.hidden else of_large_kinds(self.view_of, self.sites, self.fewest_of_kind)
        return tuple(site for site in self.sites if site not in large)

    def members(self, stage: FmcscStage, round_number: int) -> tuple[SiteId, ...]:
        """The sites that are asked for one exchange."""
        if stage.kind == "pretrain":
            return self.sampled(round_number)
        if self.hidden:
            return self.sites
        if stage.kind == "table":
            return self.tabled
        return self.trainers(stage.group) if stage.kind == "train" else self.scored(stage.group)

    def contributors(self, stage: FmcscStage, round_number: int) -> Parts:
        """The sites that may add more than zeros to a sum: each kind, for none reads what another does."""
        kind_of: Mapping[SiteId, object] = self.view_of
        if stage.kind == "pretrain":
            adding = [site for site in self.sampled(round_number) if site in self.participants]
        elif stage.kind == "train":
            group = stage.group
            adding = [site for site in self.participants if self.weight(site, group, round_number) > 0]
        elif stage.kind == "table":
            adding, kind_of = list(self.tabled), self.scored_as
        else:
            adding = list(self.scored(stage.group))
        fewest = self.fewest_of_kind
        return tuple((frozenset(kind), fewest) for kind in by_kind(kind_of, adding)) if fewest > 1 else ()

    def builds_on(self, stage: FmcscStage, round_number: int) -> tuple[str, ...]:
        """What the full model knows is taught; clusters are of features of the model that came first."""
        del round_number
        first = "score-moments"
        if stage.kind == "train":
            return ("train-full",) if stage.group != FULL else ()
        if stage.kind == "table":
            own = (name for group, name in enumerate(self.groups) if group and self.clusters_itself(group))
            return (first, *(f"score-{name}-01" for name in own))
        if stage.kind == "kmeans" and stage.group != FULL:
            return (f"score-{self.groups[stage.group]}-01",) if stage.iteration > 1 else ()
        return (first,) if stage.kind in ("split", "kmeans") else ()

    def round_stages(self, round_number: int) -> Sequence[FmcscStage]:
        """Pre-training, training or scoring; see the module."""
        if round_number > self.rounds:
            return self.scoring if self.scores else ()
        if round_number < self.first_main_round:
            return (self._pretrain,)
        every = self.scores and self.options.evaluate == "every" and round_number < self.rounds
        return (*self._training, *(self.scoring if every else ()))

    @property
    def pretrained(self) -> tuple[str, ...]:
        """Names of the parameters that pre-training changes."""
        return tuple(name for name in self.shapes if name.startswith(("enc.", "dec.")))

    @cached_property
    def _pretrain(self) -> FmcscStage:
        fields = self.updates(self.shapes, self.pretrained)
        if not self.site_level:
            fields += [Field(f"sites/{group}", (), 1.0, 64) for group in self.groups[1:]]
        # Samples differ in size as well: one of everybody says nothing of the next.
        samples = {self.sampled(number) for number in range(1, self.first_main_round)}
        if self.sums_losses(drawn=len(samples) > 1):
            fields += [Field("sites", (), 1.0, 64), Field("loss", (), LOSS_BOUND, 64)]
        return FmcscStage("pretrain", self.exchange("pretrain", "sampled", fields))

    @cached_property
    def _training(self) -> tuple[FmcscStage, ...]:
        fields = self.updates(self.shapes, tuple(self.shapes))
        if not self.site_level:
            fields += [Field("weight", (), 1.0, 64), Field("sites", (), 1.0, 64)]
        if self.sums_losses(drawn=False):
            fields.append(Field("loss", (), LOSS_BOUND, 64))
        return tuple(
            FmcscStage("train", self.exchange(f"train-{name}", self._cohort(group), fields), group)
            for group, name in enumerate(self.groups)
        )

    def _cohort(self, group: int) -> str:
        if self.hidden:
            return "all"
        return "multi" if group == FULL else self.groups[group]

    @property
    def splits(self) -> int:
        """How many sums find the parts that k-means starts from; moments of all records give the first."""
        if self.options.starts != "divisive" or self.classes < 2:
            return 0
        return divisive.levels(self.classes) - 1 + divisive.MENDED

    @cached_property
    def scoring(self) -> tuple[FmcscStage, ...]:
        """The stages that find and score clusters."""
        size, clusters, most = self.features, self.classes, float(self.options.max_records)
        moments = [
            Field("sum", (size,), most, 64),
            Field("outer", (size, size), most, 64),
            Field("records", (), most, 64),
        ]
        if self.hidden:  # nobody knows how many sites a group has; it is summed before its clusters are
            moments += [Field(f"sites/{group}", (), 1.0, 64) for group in self.groups]
        stages = [FmcscStage("moments", self.exchange("score-moments", self._cohort(FULL), moments))]
        split = [
            Field("sums", (clusters, size), most, 64),
            Field("outer", (clusters, size, size), most, 64),
            Field("counts", (clusters,), most, 64),
        ]
        for level in range(1, self.splits + 1):
            exchange = self.exchange(f"score-split-{level}", self._cohort(FULL), split)
            stages.append(FmcscStage("split", exchange, FULL, level))
        for group, name in enumerate(self.groups):
            if not self.clusters_itself(group):
                continue
            runs = self.runs(group)
            sums = [
                Field("sums", (runs, clusters, size), most, 64),
                Field("counts", (runs, clusters), most, 64),
                Field("inertia", (runs,), _SQUARED_DISTANCE * most, 64),
            ]
            count = self.options.kmeans_iterations if group == FULL else self.options.group_iterations
            cohort = self._cohort(group) if group == FULL or self.hidden else f"only-{name}"
            for iteration in range(1, count + 1):
                exchange = self.exchange(f"score-{name}-{iteration:02}", cohort, sums)
                stages.append(FmcscStage("kmeans", exchange, group, iteration))
        tables = [Field("table", (clusters, clusters), most, 64)]
        if self.scored_apart:
            tables.append(Field("table/others", (clusters, clusters), most, 64))
        return (*stages, FmcscStage("table", self.exchange("score-table", "all", tables)))
