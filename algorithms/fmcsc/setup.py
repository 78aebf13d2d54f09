"""FMCSC in one study: its plan, networks and records, for both programs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from secfed.algorithms.data.multiview.base import MultiviewData, MultiviewSite, check_multiview
from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.fmcsc.plan import FmcscPlan, FmcscStage
from secfed.algorithms.fmcsc.privacy import check_privacy
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.parameters import check_shapes, read_parameters
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.staged import PlannedStages
from secfed.algorithms.framework.unfit import unfit
from secfed.algorithms.models.multiview import (
    MultiviewModelOptions,
    MultiviewNetwork,
    shapes_only,
    with_storage,
)
from secfed.errors import ConfigError, DataError
from secfed.wire.layout import Exchange, State


class FmcscSetup(PlannedStages[FmcscStage]):
    """FMCSC, bound to one study.

    Args:
        setting: study, data set and model.
        options: the ``[algorithm]`` table.

    Attributes:
        private_units: what local training can protect; see :mod:`secfed.algorithms.fmcsc.privacy`.

    Raises:
        ConfigError: a model, data set, ``[privacy]`` or number of sites that this algorithm cannot work with.
    """

    private_units = ("group", "site")

    def __init__(self, setting: Setting, options: FmcscOptions) -> None:
        study = setting.study
        check_privacy(options, study.privacy)
        if not isinstance(setting.data, MultiviewData):
            raise ConfigError(
                f"data.name: fmcsc needs records with several views, which {study.data.name} does not give",
                remedy="use a multi-view data set, for example digits-views or multiview",
            )
        if not isinstance(study.model, MultiviewModelOptions):
            raise ConfigError(
                "model.name: fmcsc trains autoencoders with heads of its own",
                remedy='set model.name = "multiview"',
            )
        self.setting, self.options, self.data = setting, options, setting.data
        self.network_options: MultiviewModelOptions = study.model
        self.plan: FmcscPlan = FmcscPlan(
            options=options,
            protection=study.protection,
            rounds=study.rounds,
            seed=study.seed,
            view_of=setting.data.view_of,
            views=len(setting.data.view_sizes),
            classes=setting.data.classes,
            features=study.model.features,
            shapes={name: tuple(value.shape) for name, value in self._shapes.named_parameters()},
            privacy=study.privacy,
        )

    def empty(self, device: torch.device | str = "cpu") -> MultiviewNetwork:
        """A network to write received parameters into."""
        return with_storage(self._shapes, device)

    @cached_property
    def _shapes(self) -> MultiviewNetwork:
        return shapes_only(self.data.view_sizes, self.network_options)

    def start(self, *purpose: str) -> State:
        """Random initial parameters: the study's, or for a purpose, such as a site's name, its own."""
        seed = self.setting.local_seed if purpose else self.setting.study.seed
        with seeded(seed, "initial model", *purpose):
            return read_parameters(MultiviewNetwork(self.data.view_sizes, self.network_options))

    @cached_property
    def initial(self) -> State:
        """The start that all sites have in common."""
        return self.start()

    def contributors(self, round_number: int, exchange: Exchange) -> Sequence[tuple[frozenset[SiteId], int]]:
        """Who may add more than zeros to each part of a sum, and the fewest of them that may be summed."""
        parts = self.plan.contributors(self.stage(round_number, exchange), round_number)
        return tuple((part, self.plan.fewest) for part in parts)

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse a broadcast with other names or shapes than :meth:`FmcscServer.broadcast` gives.

        Raises:
            MalformedMessage: it is not one of this study and exchange.
            WrongState: the study has no such exchange.
        """
        stage, plan = self.stage(round_number, exchange), self.plan
        expected = {
            f"{plan.groups[group]}/{name}": shape
            for group in plan.broadcast_groups(stage)
            for name, shape in plan.shapes.items()
        }
        centres = (plan.classes, plan.features)
        if stage.kind == "table":
            expected["centres"] = (len(plan.groups), *centres)
        elif stage.kind == "kmeans":
            expected |= {"centres": (plan.runs(stage.group), *centres), "active": ()}
        check_shapes(broadcast, expected)

    def site_data(self, site_id: SiteId) -> MultiviewSite:
        """One site's checked records.

        Raises:
            DataError: records that cannot be used; in a simulation also more of them than the sums of k-means
                have room for, of which a hospital takes the first.
        """
        data = check_multiview(site_id, self.data.site(site_id), self.data)
        if len(data.labels) > self.options.max_records:
            unfit(
                DataError(
                    f"site {site_id!r} has more records than algorithm.max_records",
                    remedy="raise algorithm.max_records in the study file",
                )
            )
            most = self.options.max_records
            views = tuple(None if view is None else view[:most] for view in data.views)
            data = MultiviewSite(views, data.labels[:most])
        return data
