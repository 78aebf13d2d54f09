"""The site's half of FMCSC. See :mod:`secfed.algorithms.fmcsc.algorithm`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.algorithms.fmcsc import losses
from secfed.algorithms.fmcsc import privacy as private
from secfed.algorithms.fmcsc.laplace import laplace
from secfed.algorithms.fmcsc.mutual_information import BINS, mutual_information
from secfed.algorithms.fmcsc.plan import FULL, FmcscPlan, FmcscStage
from secfed.algorithms.fmcsc.scoring import SiteScoring, loaded_pair, saved_pair
from secfed.algorithms.framework.base import SiteId, SiteProgram, fitting
from secfed.algorithms.framework.local_training import fit
from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.framework.randomness import torch_generator
from secfed.algorithms.framework.server_state import copies, part_of
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.models.multiview import MultiviewNetwork, MultiviewNetworks, Views
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.dp.training.optimisers import eager
from secfed.dp.training.patient_records import LazyRecords
from secfed.dp.training.plain_loop import choose_device
from secfed.errors import WrongState
from secfed.wire.layout import Exchange, State, Summands
from secfed.wire.parts import is_finite, otherwise

if TYPE_CHECKING:
    from secfed.dp.training.local_privacy import LocalPrivacy

_Trained = tuple[MultiviewNetwork, float, float]  # the model, its weight, and the mean loss
_MOST_BITS: Final = math.log2(BINS)  # of a mutual information
_LEAST_WEIGHT: Final = 1e-3  # so that a group whose weights are all clipped to 0 still averages


@dataclass(frozen=True)
class _Task:
    """Training for one exchange, from a received model."""

    round: int
    stage: FmcscStage
    received: State


class FmcscSite(SiteProgram):
    """Runs inside one hospital; keeps its own model, what to teach in this round, and clustered features."""

    def __init__(
        self,
        setting: Setting,
        plan: FmcscPlan,
        networks: MultiviewNetworks,
        site_id: SiteId,
        data: MultiviewSite,
    ) -> None:
        self._setting, self._plan, self._networks, self._site_id = setting, plan, networks, site_id
        self._device = choose_device(plan.options.device)
        self._views = tuple(view if view is None else view.to(self._device) for view in data.views)
        self._owned, self._records = data.held, len(data.labels)
        self._view = self._owned[0] if len(self._owned) == 1 else None
        self.group = FULL if self._view is None else self._view + 1
        self._own: State | None = None
        self._target: tuple[int, torch.Tensor] | None = None
        self._scoring = SiteScoring(plan, self.group, site_id, data.labels)
        self._privacy: LocalPrivacy | None = None

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """Plan the phases of the study, and train under privacy from now on."""
        privacy.plan(*private.phases(self._plan, self._site_id, self._records))
        self._privacy = privacy

    def save(self) -> State:
        """The site's own model, and what the rest of a round needs."""
        own = {} if self._own is None else {f"own/{name}": value for name, value in self._own.items()}
        return {**own, **saved_pair("target", self._target), **self._scoring.save()}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        self._own = copies(part_of(state, "own/")) or None
        target = loaded_pair("target", state)
        self._target = None if target is None else (target[0], target[1].to(self._device))
        self._scoring.load(state)

    def _batch(self) -> Batch:
        """The records: the views that the site holds."""
        return tuple(view for view in self._views if view is not None)

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """Weights and counts of sites and records: what this site adds whatever its values do.

        A weight from mutual information is a value, and which cluster a record counts in follows from values.
        """
        plan, stage = self._plan, self._plan.stage(round_number, exchange)
        known: dict[str, torch.Tensor | float] = {}
        if not plan.adds(self._site_id, stage):
            return {}
        if stage.kind == "pretrain":
            held = {f"sites/{group}": view in self._owned for view, group in enumerate(plan.groups[1:])}
            known = {"sites": 1.0, **{name: float(holds) for name, holds in held.items()}}
        elif stage.kind == "train":
            weight = plan.weight(self._site_id, stage.group, round_number)
            known = {"sites": float(weight > 0)}
            if self._plan.options.weights != "mi" or not weight:
                known["weight"] = weight
        elif stage.kind == "moments":
            known = {f"sites/{name}": float(at == self.group) for at, name in enumerate(plan.groups)}
            known["records"] = float(self._records if stage.group == self.group else 0)
        return fitting(exchange, known)

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """Train for a group, or take a step of scoring; what fails is left out."""
        stage, plan = self._plan.stage(round_number, exchange), self._plan
        settled = self.settled(round_number, exchange)
        if not plan.adds(self._site_id, stage):  # hidden among the others
            return {field.name: torch.zeros(field.shape) for field in exchange.layout.fields}
        if stage.kind in ("pretrain", "train"):
            received = part_of(broadcast, plan.groups[stage.group] + "/")
            work = self._train if stage.kind == "train" else self._pretrain
            summands = {**work(_Task(round_number, stage, received)), **settled}
            return fitting(exchange, summands)
        received = part_of(broadcast, plan.groups[self.group] + "/")
        if received:
            # Records without features count as the origin; see the module on k-means.
            none = torch.zeros(self._records, plan.features)
            features = otherwise(none, self._embed, self._network(received))
            self._scoring.remember(round_number, features.cpu())
        return {**self._scoring.contribute(round_number, stage, broadcast), **settled}

    def _embed(self, network: MultiviewNetwork) -> torch.Tensor:
        with torch.no_grad():
            common: torch.Tensor = network(self._views)
        return common

    def _network(self, parameters: State) -> MultiviewNetwork:
        return self._networks.holding(parameters, self._device)

    def _fit(
        self,
        task: _Task,
        phase: str,
        network: MultiviewNetwork,
        trained: Collection[str],
        loss: DeclaredLoss,
        batch: Callable[[], Batch],
    ) -> float:
        """The only place where records meet an optimiser; mean loss per record, NaN under privacy.

        ``batch`` gives all records; under privacy it is called when the phase has been paid for. Their order
        differs by round and exchange, and stays the same in all passes.
        """
        plan, epochs = self._plan, private.epochs(self._plan.options, phase)
        pretrains, rate = phase == private.PRETRAIN, plan.options.pretrain_learning_rate
        optimiser = adam_over(network, trained, rate if pretrains else plan.learning_rate(task.round))
        if self._privacy is not None:
            records = LazyRecords(self._records, batch)
            self._privacy.run(network, optimiser, loss, records, passes=epochs, phase=phase)
            return math.nan
        size, seed = plan.options.batch_size, self._setting.site_seed
        data = batch()
        if seed is not None:  # in simulation the batches are those of the paper: records in their order
            place = (self._site_id, phase, task.round, task.stage.exchange.name)
            order = torch.randperm(len(data[0]), generator=torch_generator(seed, "order", *place))
            data = tuple(part[order.to(part.device)] for part in data)
        batches = list(zip(*(torch.split(part, size) for part in data), strict=True))
        return fit(network, optimiser, loss, lambda: batches, epochs=epochs, device=self._device)

    def _pretrain(self, task: _Task) -> Summands:
        plan, owned = self._plan, self._owned
        start = task.received
        if plan.options.pretrain_start == "independent":
            start = self._networks.start(self._setting.local_seed, self._site_id)
        network, objective = self._network(start), losses.pretraining_loss(owned)
        parts = [f"{part}.{view}" for part in ("enc", "dec") for view in owned]
        loss = otherwise(None, self._fit, task, private.PRETRAIN, network, parts, objective, self._batch)
        if loss is None:
            return {}
        # Every site counts the same. Counts of records would be the same in every round, so that totals over
        # the changing samples of pre-training could be solved for every hospital's.
        trained = read_parameters(network)
        summands: dict[str, torch.Tensor | float] = {"loss": loss}
        for name in plan.pretrained:
            share = float(view_of(name) in owned)
            summands[f"update/{name}"] = share * (trained[name] - task.received[name])
        return summands

    def _train(self, task: _Task) -> Summands:
        plan, group = self._plan, task.stage.group
        share = plan.weight(self._site_id, group, task.round)
        if self._view is None:
            work = self._train_all_views if group == FULL else self._teach
        elif group == self.group and plan.trains_own_view:
            work = self._train_own_view
        else:  # it counts nothing here; if view types are hidden, it looks like all others
            nothing = {f"update/{name}": torch.zeros(shape) for name, shape in plan.shapes.items()}
            return {**nothing, "weight": 0.0, "loss": 0.0}
        result = otherwise(None, work, task)
        if result is None:  # nobody's weight may vanish from the sum; information of 0 is the least
            return {"weight": share * as_weight(0.0, _MOST_BITS)}
        network, weight, loss = result
        weight *= share
        trained = read_parameters(network)
        noise = self._noise(task)
        update = {name: weight * noise(trained[name] - task.received[name]) for name in plan.shapes}
        named = {f"update/{name}": value for name, value in update.items()}
        return {**named, "weight": weight, "loss": weight * loss}

    def _train_all_views(self, task: _Task) -> _Trained:
        options, views = self._plan.options, self._views
        network, objective = self._network(task.received), losses.multiview_loss(options)
        # Where this training fails, those for the views are not refused: they fail, too, and add zeros.
        nothing = torch.full((self._records, self._plan.features), math.nan, device=self._device)
        self._target = (task.round, nothing)
        parts = ("enc", "dec", "view_head", "fuse_head")
        loss = self._fit(task, private.ALL_VIEWS, network, parts, objective, self._batch)
        with torch.no_grad():
            low = network.encode(views)
            common = network.common(low)
            high = [network.view_features(view, z) for view, z in enumerate(low)]
        self._target = (task.round, common)
        if options.weights != "mi":
            return network, 1.0, loss
        information = sum(mutual_information(common, r) for r in high)
        return network, as_weight(information, len(views) * _MOST_BITS), loss

    def _teach(self, task: _Task) -> _Trained:
        options, view = self._plan.options, task.stage.group - 1
        if self._target is None or self._target[0] != task.round:
            message = f"site {self._site_id!r} did not train on all views in round {task.round}"
            raise WrongState(message, remedy="it takes part again in the next round")
        target = self._target[1]
        seen = [records if at == view else None for at, records in enumerate(self._views)]
        network, objective = self._network(task.received), losses.distillation_loss(view, options)
        before = None
        if options.weights == "mi":
            with torch.no_grad():
                before = network(seen)
        parts = ("enc", "dec", "fuse_head") if options.distillation else ("enc", "dec")

        def taught() -> Batch:
            return (*self._batch(), target)

        loss = self._fit(task, private.TEACH, network, parts, objective, taught)
        if before is None:
            return network, 1.0, loss
        return network, self._gain(network, seen, view, before), loss

    def _train_own_view(self, task: _Task) -> _Trained:
        options, views, view = self._plan.options, self._views, self.group - 1
        before, objective = self._network(task.received), losses.single_view_loss(view, len(views), options)

        @cache
        def batch() -> Batch:  # made when it is paid for
            none = torch.zeros(self._records, self._plan.features, device=self._device)
            return (*self._batch(), otherwise(none, self._embed, before))

        keeps = options.model_contrast and self._own is not None
        network = self._network(self._own if keeps and self._own is not None else task.received)
        own = [f"enc.{view}", f"dec.{view}"]
        parts = ["enc", *own, "fuse_head"] if options.model_contrast else own
        loss = self._fit(task, private.OWN_VIEW, network, parts, objective, batch)
        trained = read_parameters(network)
        if is_finite(trained):  # a failed update leaves the site's own model as it was
            self._own = trained
        if options.weights != "mi":
            return network, 1.0, loss
        return network, self._gain(network, views, view, batch()[-1]), loss

    @staticmethod
    def _gain(network: MultiviewNetwork, views: Views, view: int, reference: torch.Tensor) -> float:
        """The weight of a one-view model: what h shares with a reference h beyond what it shares with z."""
        with torch.no_grad():
            low = network.encode(views)
            common = network.common(low)
        information = mutual_information(common, reference) - mutual_information(common, low[view])
        return as_weight(information, _MOST_BITS)

    def _noise(self, task: _Task) -> Callable[[torch.Tensor], torch.Tensor]:
        """The paper's noise on an update; not a guarantee, see :mod:`secfed.algorithms.fmcsc.laplace`."""
        epsilon = self._plan.options.paper_laplace_epsilon
        if epsilon is None:
            return lambda update: update
        seed = self._setting.local_seed
        place = (self._site_id, task.round, task.stage.exchange.name)
        generator = torch_generator(seed, "paper-laplace", *place)
        return lambda update: update + laplace(update.shape, epsilon, generator)


def adam_over(network: nn.Module, parts: Collection[str], learning_rate: float) -> torch.optim.Optimizer:
    """Adam, for one phase, over ``parts``, prefixes of names such as ``enc.0``; the rest is frozen."""
    trained = []
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(any(name.startswith(part + ".") for part in parts))
        if parameter.requires_grad:
            trained.append(parameter)
    return eager(torch.optim.Adam)(trained, lr=learning_rate, fused=True)


def as_weight(information: float, most: float) -> float:
    """A mutual information (or a difference of two), clipped to 0 .. ``most`` bits, as a weight above 0."""
    return (min(max(information, 0.0), most) + _LEAST_WEIGHT) / (most + _LEAST_WEIGHT)


def view_of(parameter: str) -> int:
    """The view that a parameter of an encoder or decoder belongs to."""
    return int(parameter.split(".")[1])
