"""k-means on concatenated views by sums: what clustering of several views is compared with.

    round 1   moments          over sites with all views: sums, outer products and counts of records
              prototypes-01..  over sites with all views, where prototypes complete records
              kmeans-01, ..    over all sites of large kinds: every restart of k-means in one sum
    round 2   table            records by cluster and class, for the scores

A record is all its views side by side, in the leading principal directions of the hospitals with all views.
What a hospital with one view lacks is completed: by the other views' means or by a ridge regression from its
own view, which follow from the same moments, or by what belongs to the nearest of many centres of records
with all views, in the manner of methods that impute by prototypes. With ``sharing = "none"`` every hospital
clusters its own records and names its clusters itself, which flatters it. Those are plain forms of methods
for incomplete views, which the FMCSC paper compares with; its nine are networks or need records of several
hospitals in one place.

Source: Lloyd, IEEE Transactions on Information Theory 28, 1982; Ding, He, "K-means clustering via principal
component analysis", ICML 2004; Hoerl, Kennard, "Ridge regression", Technometrics 12, 1970;
prototypes: Li, Li, Yang, Hu, Peng, "Incomplete multi-view clustering via prototype-based imputation", IJCAI
2023, whose views are networks and whose prototypes are learnt with them.

Security: who holds which view is public. The totals are exact, as those of canonical clustering are: where
all hospitals together have fewer records than features, moments tell the records up to a rotation.
"""

from __future__ import annotations

from secfed.algorithms.canonical.algorithm import check_protection
from secfed.algorithms.data.multiview.base import MultiviewSite, check_multiview, several_views
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.parameters import check_shapes
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.staged import PlannedStages
from secfed.algorithms.view_kmeans.plan import KmeansStage, ViewKmeansOptions, ViewKmeansPlan
from secfed.algorithms.view_kmeans.server import ViewKmeansServer
from secfed.algorithms.view_kmeans.site import ViewKmeansSite
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, State


@register("view-kmeans", options=ViewKmeansOptions)
class ViewKmeans(PlannedStages[KmeansStage]):
    """k-means on concatenated views, bound to one study."""

    private_units = ()
    plan: ViewKmeansPlan

    def __init__(self, setting: Setting, options: ViewKmeansOptions) -> None:
        study = setting.study
        data = several_views("view-kmeans", study.data.name, setting.data)
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
