"""FedDMVC in the nearest form that sums allow: clusters over all hospitals teach every view's autoencoder.

Every view has an autoencoder, averaged over the sites that hold it, each counting the same. In a main round
sites with all views find clusters of their features, those of all views side by side, by k-means as secure
sums. The centres then teach: a site sharpens how its records belong to them, and trains each view so that its
features alone say the same. A site with one view reads its part of the centres.

What is different from the published method, whose clients upload the features of every record, so that a
server assigns records: a site assigns its own; centres stay fixed within a round; features have norm 1, and
distances are in units of the clusters' mean variance, which the same sums give.

Source: Chen, Xu, Ren, Pu, Zhu, Pu, Hao, He, "Federated Deep Multi-View Clustering with Global
Self-Supervision", 2023, arXiv 2309.13697; Xie, Girshick, Farhadi, "Unsupervised Deep Embedding for Clustering
Analysis", ICML 2016 (soft and sharpened assignments).

Security: who holds which view is public. Nobody is asked for a sum to which it can add zeros only, and sums
of features build on the first one of the round (:meth:`Algorithm.builds_on`).
"""

from __future__ import annotations

from functools import cached_property

from secfed.algorithms.data.multiview.base import MultiviewSite, check_multiview, several_views
from secfed.algorithms.feddmvc.plan import FedDmvcOptions, FedDmvcPlan, FedDmvcStage
from secfed.algorithms.feddmvc.server import FedDmvcServer
from secfed.algorithms.feddmvc.site import FedDmvcSite
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.parameters import check_shapes, shapes_of
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.staged import PlannedStages
from secfed.algorithms.models.multiview import MultiviewModelOptions, MultiviewNetworks
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, State


@register("feddmvc", options=FedDmvcOptions)
class FedDmvc(PlannedStages[FedDmvcStage]):
    """FedDMVC as sums allow, bound to one study."""

    private_units = ()
    plan: FedDmvcPlan

    def __init__(self, setting: Setting, options: FedDmvcOptions) -> None:
        study = setting.study
        data = several_views("feddmvc", study.data.name, setting.data)
        if not isinstance(study.model, MultiviewModelOptions):
            message = "model.name: feddmvc trains an autoencoder per view"
            raise ConfigError(message, remedy='set model.name = "multiview"')
        self.setting, self.options, self.data = setting, options, data
        self.networks = MultiviewNetworks(data.view_sizes, study.model)
        parameters = shapes_of(dict(self.networks.shapes.named_parameters()))
        self.plan = FedDmvcPlan(
            options=options,
            protection=study.protection,
            rounds=study.rounds,
            seed=study.seed,
            view_of=data.view_of,
            views=len(data.view_sizes),
            clusters=data.classes,
            features=study.model.features,
            shapes={name: shape for name, shape in parameters.items() if name.startswith(("enc.", "dec."))},
        )

    @cached_property
    def initial(self) -> State:
        """The start that all sites have in common; heads of the network stay as they are here."""
        return self.networks.start(self.setting.study.seed)

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse other names or shapes than the server gives."""
        check_shapes(broadcast, self.plan.broadcast(self.stage(round_number, exchange), round_number))

    def server(self) -> FedDmvcServer:
        """A fresh server program."""
        return FedDmvcServer(self.plan, {name: self.initial[name] for name in self.plan.shapes})

    def site(self, site_id: SiteId) -> FedDmvcSite:
        """One site's program, bound to that site's records."""
        data = self.site_data(site_id)
        return FedDmvcSite(self.setting, self.plan, self.networks, self.initial, site_id, data)

    def site_data(self, site_id: SiteId) -> MultiviewSite:
        """One site's checked records."""
        data = check_multiview(site_id, self.data.site(site_id), self.data)
        return data.first(self.options.max_records, site_id)
