"""FMCSC, written against sums: one clustering over sites with all views of their records and sites with one.

The server keeps a model per group (``full``, and one per view). A site with all views trains the full model
and teaches a copy of each view's; a site with one view trains a model drawn towards its view's. For every
group a site adds w * (local - received) for every parameter, w, and w * (mean training loss), where w comes
from mutual information that only the site knows. The groups start from one model, pre-trained by secure
averaging; clusters of the common semantics h are found by k-means as secure sums, and scored by one summed
table.

Source: Chen et al., "Bridging Gaps: Federated Multi-View Clustering in Heterogeneous Hybrid Views", NeurIPS
2024. What is different from it: its pre-training hands one client's autoencoder to the others, and its
k-means sends one client's centres to all; here both are sums over sites. Errors of reconstruction and
distillation are means over features, not sums, which weighs the contrast more; the model that a view is
taught reconstructs all views, too; a site with one view counts nothing in the first main round; and mutual
information is divided by its largest possible value.

Security: with public view types the cohorts say which hospital holds which view. With hidden ones every
hospital contributes to every group, zeros where it has nothing; group sizes, answering times and what the
study file itself says about views are not hidden.
"""

from __future__ import annotations

from functools import cached_property

from secfed.algorithms.data.multiview.base import MultiviewSite, check_multiview, several_views
from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.fmcsc.plan import FmcscPlan, FmcscStage
from secfed.algorithms.fmcsc.privacy import check_privacy
from secfed.algorithms.fmcsc.server import FmcscServer
from secfed.algorithms.fmcsc.site import FmcscSite
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.parameters import check_shapes, shapes_of
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.staged import PlannedStages
from secfed.algorithms.models.multiview import MultiviewModelOptions, MultiviewNetworks
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, State


@register("fmcsc", options=FmcscOptions)
class Fmcsc(PlannedStages[FmcscStage]):
    """FMCSC, bound to one study."""

    private_units = ("group", "site")
    noised_fields = ("update", "sites", "weight")  # nobody's records change how many sites there are

    def __init__(self, setting: Setting, options: FmcscOptions) -> None:
        study = setting.study
        check_privacy(options, study.privacy)
        data = several_views("fmcsc", study.data.name, setting.data)
        if not isinstance(study.model, MultiviewModelOptions):
            message = "model.name: fmcsc trains autoencoders with heads of its own"
            raise ConfigError(message, remedy='set model.name = "multiview"')
        self.setting, self.options, self.data = setting, options, data
        self.networks = MultiviewNetworks(data.view_sizes, study.model)
        self.plan: FmcscPlan = FmcscPlan(
            options=options,
            protection=study.protection,
            rounds=study.rounds,
            seed=study.seed,
            view_of=data.view_of,
            views=len(data.view_sizes),
            classes=data.classes,
            features=study.model.features,
            shapes=shapes_of(dict(self.networks.shapes.named_parameters())),
            privacy=study.privacy,
        )

    @cached_property
    def initial(self) -> State:
        """The start that all sites have in common."""
        return self.networks.start(self.setting.study.seed)

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse a broadcast with other names or shapes than :meth:`FmcscServer.broadcast` gives."""
        stage, plan = self.stage(round_number, exchange), self.plan
        expected = {
            f"{plan.groups[group]}/{name}": shape
            for group in plan.broadcast_groups(stage)
            for name, shape in plan.shapes.items()
        }
        centres = (plan.classes, plan.features)
        if stage.kind == "table":
            expected["centres"] = (len(plan.groups), *centres)
        elif stage.kind == "split":
            expected |= {"centres": (1, *centres), "active": ()}
        elif stage.kind == "kmeans":
            expected |= {"centres": (plan.runs(stage.group), *centres), "active": ()}
        check_shapes(broadcast, expected)

    def server(self) -> FmcscServer:
        """A fresh server program."""
        return FmcscServer(self.plan, self.initial)

    def site(self, site_id: SiteId) -> FmcscSite:
        """One site's program, bound to that site's records."""
        return FmcscSite(self.setting, self.plan, self.networks, site_id, self.site_data(site_id))

    def site_data(self, site_id: SiteId) -> MultiviewSite:
        """One site's checked records."""
        data = check_multiview(site_id, self.data.site(site_id), self.data)
        return data.first(self.options.max_records, site_id)
