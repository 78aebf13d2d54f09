"""A site's half of ``feddmvc``. See :mod:`secfed.algorithms.feddmvc.algorithm`."""

from __future__ import annotations

import torch
from torch import nn

from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.algorithms.feddmvc.plan import FedDmvcPlan, FedDmvcStage
from secfed.algorithms.fmcsc import kmeans
from secfed.algorithms.fmcsc.losses import network_of
from secfed.algorithms.fmcsc.scoring import loaded_pair, saved_pair
from secfed.algorithms.fmcsc.site import adam_over
from secfed.algorithms.framework.base import SiteId, SiteProgram, fitting
from secfed.algorithms.framework.local_training import fit
from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.framework.randomness import torch_generator
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.metrics.clustering import contingency
from secfed.algorithms.models.multiview import MultiviewNetwork, MultiviewNetworks
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.dp.training.plain_loop import choose_device
from secfed.errors import WrongState
from secfed.wire.layout import Exchange, State, Summands
from secfed.wire.parts import otherwise

_TINY = 1e-12


class FedDmvcSite(SiteProgram):
    """Runs inside one hospital; keeps the features of its records for the rest of a round."""

    def __init__(
        self,
        setting: Setting,
        plan: FedDmvcPlan,
        networks: MultiviewNetworks,
        initial: State,
        site_id: SiteId,
        data: MultiviewSite,
    ) -> None:
        self._setting, self._plan, self._networks, self._initial = setting, plan, networks, initial
        self._site_id, self._labels = site_id, data.labels
        self._device = choose_device(plan.options.device)
        self._views = {view: one.to(self._device) for view, one in enumerate(data.views) if one is not None}
        self._features: tuple[int, torch.Tensor] | None = None

    def save(self) -> State:
        """The features, with their round."""
        return saved_pair("features", self._features)

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        self._features = loaded_pair("features", state)

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """How many records it has."""
        moments = self._plan.stage(round_number, exchange).kind == "moments"
        return {"records": float(len(self._labels))} if moments else {}

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """One sum's part; what fails is left out."""
        stage = self._plan.stage(round_number, exchange)
        if stage.kind == "train":
            found = self._train(stage, round_number, broadcast)
        elif stage.kind == "kmeans":
            sums, counts, inertia = kmeans.local_sums(self._kept(round_number), broadcast["centres"])
            found = {"sums": sums, "counts": counts, "inertia": inertia}
        elif stage.kind == "frequencies":
            found = {"frequencies": self._soft(round_number, broadcast).sum(dim=0)}
        else:
            # Records without features count as the origin; see the module on k-means.
            none = torch.zeros(len(self._labels), len(self._views) * self._plan.features)
            features = otherwise(none, self._embedded, broadcast)
            if stage.kind == "table":
                assigned = kmeans.assign(features, self._own_part(broadcast["best"]))
                size = self._plan.clusters
                return {"table": contingency(assigned, self._labels, size, size)}
            self._features = (round_number, features)
            total, outer, _ = kmeans.moments(features)
            found = {"sum": total, "outer": outer}
        return fitting(exchange, {**found, **self.settled(round_number, exchange)})

    def _kept(self, round_number: int) -> torch.Tensor:
        if self._features is None or self._features[0] != round_number:
            message = f"site {self._site_id!r} has no features of the model of round {round_number}"
            raise WrongState(message, remedy="it takes part again in the next round")
        return self._features[1]

    def _embedded(self, broadcast: State) -> torch.Tensor:
        """Features of the views that the site holds, side by side: [n, views * features] on the CPU."""
        network = self._network(broadcast)
        with torch.no_grad():
            parts = [unit(network.enc[view](records)) for view, records in self._views.items()]
        return torch.cat(parts, dim=1).cpu()

    def _network(self, broadcast: State) -> MultiviewNetwork:
        received = {name: broadcast[name] for name in self._plan.shapes if name in broadcast}
        return self._networks.holding({**self._initial, **received}, self._device)

    def _own_part(self, centres: torch.Tensor) -> torch.Tensor:
        """Centres, of the views that the site holds."""
        return torch.cat([centres[:, self._plan.columns(view)] for view in self._views], dim=1)

    def _train(self, stage: FedDmvcStage, round_number: int, broadcast: State) -> Summands:
        plan, options, view = self._plan, self._plan.options, stage.view
        network, records = self._network(broadcast), self._views[view]
        batch: Batch = (records,)
        pretrains = plan.pretrains(round_number)
        centres = scale = None
        if not pretrains:
            batch = (records, self._target(round_number, broadcast).to(self._device))
            centres = broadcast["best"][:, plan.columns(view)].to(self._device, torch.float32)
            scale = float(broadcast["scale"]) / plan.views
        seed, place = self._setting.local_seed, (self._site_id, round_number, stage.exchange.name)
        order = torch.randperm(len(records), generator=torch_generator(seed, "order", *place))
        batch = tuple(part[order.to(part.device)] for part in batch)
        batches = list(zip(*(torch.split(part, options.batch_size) for part in batch), strict=True))
        parts = (f"enc.{view}", f"dec.{view}")
        optimiser = adam_over(network, parts, options.learning_rate)
        objective = self_supervised_loss(view, centres, scale or 1.0, options.self_supervision)
        epochs = options.pretrain_epochs if pretrains else options.local_epochs
        loss = fit(network, optimiser, objective, lambda: batches, epochs=epochs, device=self._device)
        trained = read_parameters(network)
        updates = {f"update/{name}": trained[name] - broadcast[name] for name in plan.names(view)}
        return {**updates, "loss": loss}

    def _soft(self, round_number: int, broadcast: State) -> torch.Tensor:
        """How records belong to the clusters by all that the site holds of them: [n, C]."""
        whole = len(self._views) == self._plan.views
        features = self._kept(round_number) if whole else self._embedded(broadcast)
        share = float(broadcast["scale"]) * len(self._views) / self._plan.views
        return soft_assignment(features, self._own_part(broadcast["best"]).to(torch.float32), share)

    def _target(self, round_number: int, broadcast: State) -> torch.Tensor:
        """The same, sharpened: what training draws each view's features to."""
        return sharpened(self._soft(round_number, broadcast), broadcast["frequencies"].to(torch.float32))


def unit(features: torch.Tensor) -> torch.Tensor:
    """Rows of norm 1."""
    return nn.functional.normalize(features, dim=1)


def soft_assignment(features: torch.Tensor, centres: torch.Tensor, scale: float) -> torch.Tensor:
    """Student's t of squared distances in units of ``scale``, rows that sum to 1: [n, C].

    Source: Xie et al. 2016, equation 1.
    """
    near = 1 / (1 + torch.cdist(features, centres).square() / scale)
    return near / near.sum(dim=1, keepdim=True)


def sharpened(soft: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Squared and divided by how frequent each cluster is, so that large ones do not grow: [n, C].

    Source: Xie et al. 2016, equation 3; the frequencies are sums of soft assignments over all hospitals
    with all views.
    """
    weighted = soft.square() / frequencies.clamp(min=_TINY)
    return weighted / weighted.sum(dim=1, keepdim=True)


def self_supervised_loss(
    view: int, centres: torch.Tensor | None, scale: float, weight: float
) -> DeclaredLoss:
    """Reconstruction of a view, and how far its features are from saying what all views say.

    Batch: the view, then the target; the view alone without centres. One value per record.
    """

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        network, records = network_of(model), batch[0]
        low = network.enc[view](records)
        error = (network.reconstruct(view, low) - records).square().mean(dim=1)
        if centres is None or not weight:
            return error
        said = soft_assignment(unit(low), centres, scale)
        target = batch[1]
        divergence = (target * ((target + _TINY).log() - (said + _TINY).log())).sum(dim=1)
        return error + weight * divergence

    return DeclaredLoss("self-supervision by clusters", True, loss)
