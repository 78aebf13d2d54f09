"""Canonical clustering, written against sums: views are aligned by their moments, and clustered by sums.

What several views of a record have in common is found by canonical correlation analysis, which needs nothing
but sums: every view's covariance, over all records that have the view, and the cross-covariances, over the
records that have both. One eigenproblem at the server gives each view a projection. A hospital with one view
uses its view's: no network and no rounds of training. Clusters are found by spherical k-means on the
projected records, and may be refined by discriminants of the views themselves; labels only score them.

Every sum is one over records of contributions with a bounded norm: :mod:`secfed.algorithms.canonical.plan`.

Security: who holds which view is public. Without noise the totals are exact: where all hospitals together
have fewer records than a view has features, its moments tell the records up to a rotation; and two iterations
of k-means differ by the records that changed their cluster, which may be one.
"""

from __future__ import annotations

from collections.abc import Sequence

from secfed.algorithms.canonical.options import CanonicalOptions, ProjectionOptions
from secfed.algorithms.canonical.plan import CanonicalPlan, CanonicalStage
from secfed.algorithms.canonical.server import CanonicalServer
from secfed.algorithms.canonical.site import CanonicalSite
from secfed.algorithms.data.multiview.base import MultiviewSite, check_multiview, several_views
from secfed.algorithms.framework.base import SiteId, UnitBound
from secfed.algorithms.framework.parameters import check_shapes
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.staged import PlannedStages
from secfed.algorithms.models.feature_maps import FeatureMap
from secfed.config.sections import ProtectionSection
from secfed.dp.settings import PrivacySection
from secfed.dp.training.unit_sums import ADDED_UP
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, State


class CanonicalSums(PlannedStages[CanonicalStage]):
    """What algorithms on canonical projections have in common, by their plan."""

    private_units = ()
    summed_units = ("record", "group")
    plan: CanonicalPlan

    def unit_bound(self, exchange: Exchange) -> UnitBound | None:
        """What one record, or the mean of a group, adds to a sum, and its part of the privacy."""
        stage = self.plan.stage_of(exchange)
        whole = 1.0 + sum(one.share for one in self.plan.scoring)  # what finds clusters or projections has 1
        return UnitBound(stage.sensitivity * ADDED_UP, share=stage.share / whole) if stage.share else None

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse a broadcast with other names or shapes than the server's ``broadcast`` gives."""
        check_shapes(broadcast, self.plan.broadcast(self.stage(round_number, exchange)))

    def within_limit(self, data: MultiviewSite, site_id: SiteId) -> MultiviewSite:
        """No more records than the sums have room for."""
        if self.plan.privacy is not None:
            return data  # or one record fewer would let another one in; every sum is cut off at its bound
        return data.first(self.plan.options.max_records, site_id)


@register("canonical", options=CanonicalOptions)
class Canonical(CanonicalSums):
    """Canonical clustering, bound to one study."""

    def __init__(self, setting: Setting, options: CanonicalOptions) -> None:
        study = setting.study
        data = several_views("canonical", study.data.name, setting.data)
        if study.model.name != "none":
            raise ConfigError(
                f"model.name: canonical has no network, so {study.model.name!r} would have no effect",
                remedy='set model.name = "none"',
            )
        check_protection(study.protection)
        self.setting, self.options, self.data = setting, options, data
        self.maps = maps_of(options, len(data.view_sizes))
        if study.privacy is not None:
            check_privacy(study.privacy, self.maps)
        sizes = tuple(
            one.size(size, view)
            for view, (one, size) in enumerate(zip(self.maps, data.view_sizes, strict=True), start=1)
        )
        self.plan = CanonicalPlan(
            options=options,
            protection=study.protection,
            rounds=study.rounds,
            seed=study.seed,
            privacy=study.privacy,
            view_of=data.view_of,
            raw_sizes=tuple(data.view_sizes),
            sizes=sizes,
            standardised=tuple(one.standardises for one in self.maps),
            clusters=data.classes,
            dimensions=_dimensions(options, sizes, data.classes),
        )

    def server(self) -> CanonicalServer:
        """A fresh server program."""
        return CanonicalServer(self.plan)

    def site(self, site_id: SiteId) -> CanonicalSite:
        """One site's program, bound to that site's records."""
        return CanonicalSite(self.plan, self.maps, self.site_data(site_id))

    def site_data(self, site_id: SiteId) -> MultiviewSite:
        """One site's checked records."""
        return self.within_limit(check_multiview(site_id, self.data.site(site_id), self.data), site_id)


def check_protection(protection: ProtectionSection) -> None:
    """Refuse what lets every site repeat the server's step."""
    if not protection.traits.aggregator_reads_sums:
        raise ConfigError(
            f"protection.name: under {protection.kind} every site repeats the server's step, and "
            "eigenproblems do not come out the same to the last bit on different processors",
            remedy='set protection.name = "masked", and leave protection.reveal out',
        )


def check_privacy(privacy: PrivacySection, maps: Sequence[FeatureMap]) -> None:
    """Refuse maps that bound no record, and a bound that has no use."""
    if "clip_norm" in privacy.model_fields_set:
        raise ConfigError(
            "privacy.clip_norm: has no effect with canonical, whose maps bound every record",
            remedy="remove it",
        )
    if any(one.standardises for one in maps):
        raise ConfigError(
            'algorithm.maps: "standard" sums raw features, and no useful bound on them is known',
            remedy='use another map with [privacy], for example "l2"',
        )


def maps_of(options: ProjectionOptions, views: int) -> tuple[FeatureMap, ...]:
    """The map of every view."""
    texts = (options.maps,) * views if isinstance(options.maps, str) else options.maps
    if len(texts) != views:
        raise ConfigError(
            f"algorithm.maps: has {len(texts)} entries for {views} views",
            remedy="give one for each view, in the order of the data set, or a single one for all",
        )
    return tuple(map(FeatureMap.parse, texts))


def _dimensions(options: CanonicalOptions, sizes: Sequence[int], classes: int) -> int:
    """As the study says; or twice the number of classes, as far as views can correlate in so many."""
    most = sum(sizes) - max(sizes)
    if options.dimensions is None:
        return min(2 * classes, most)
    if options.dimensions > most:
        raise ConfigError(
            f"algorithm.dimensions: {options.dimensions} are more than the {most} in which views correlate",
            remedy="lower it, or leave it out",
        )
    return options.dimensions
