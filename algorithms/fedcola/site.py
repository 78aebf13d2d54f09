"""The site's half of FedCola. See :mod:`secfed.algorithms.fedcola.algorithm`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from secfed.algorithms.data.transfer.base import TransferSite
from secfed.algorithms.fedcola.plan import FedColaPlan, FedColaStage
from secfed.algorithms.federated_averaging.fedprox import add_proximal_pull
from secfed.algorithms.framework.base import SiteId, SiteProgram, fitting
from secfed.algorithms.framework.local_training import fit
from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.framework.randomness import seeded, torch_generator
from secfed.algorithms.framework.server_state import MODEL, copies, part_of
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.losses.objective import infonce
from secfed.algorithms.metrics import transfer_scores
from secfed.algorithms.metrics.score_grid import on_grid
from secfed.algorithms.metrics.transfer_scores import required
from secfed.algorithms.models.gated_linear import fuse, gate
from secfed.algorithms.models.transfer_transformer import Classifier, PairEncoder
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.dp.training.optimisers import eager
from secfed.dp.training.plain_loop import choose_device
from secfed.dp.training.step import StepSettings, onto
from secfed.errors import MalformedMessage, WrongState
from secfed.wire.layout import Exchange, State, Summands
from secfed.wire.parts import otherwise

if TYPE_CHECKING:
    from secfed.dp.training.local_privacy import LocalPrivacy

TRAIN: Final = "train"
_ROUND: Final = "round"
_UPDATE: Final = "update/"


class FedColaSite(SiteProgram):
    """Runs inside one hospital; keeps, between the sums of a round, what is left of its update."""

    def __init__(self, setting: Setting, plan: FedColaPlan, site_id: SiteId, data: TransferSite) -> None:
        self._seed, self._plan, self._options, self._site_id = setting.local_seed, plan, plan.options, site_id
        self._kind, self._train_samples, self._held_out = data.kind, data.train, data.test
        self._patients = data.train_patients
        self._device = choose_device(plan.options.device)
        self._left: tuple[int, State] | None = None  # round, and what its sums over more groups are made of
        self._privacy: LocalPrivacy | None = None

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """Plan the study's passes, and train under privacy from now on."""
        from secfed.dp.training.local_privacy import Phase  # the accountants are slow to import

        rows = self._private_rows()
        patients = None if self._patients is None else tuple(self._patients[row] for row in rows.tolist())
        options = self._options
        rounds = range(1, self._plan.rounds + 1)
        trains = sum(self._site_id in self._plan.sampled(self._kind, number) for number in rounds)
        passes = trains * options.local_epochs
        privacy.plan(Phase(TRAIN, len(rows), options.batch_size, passes, patients=patients))
        self._privacy = privacy

    def save(self) -> State:
        """The rest of the update, for a restart in the middle of a round."""
        if self._left is None:
            return {}
        number, update = self._left
        return {_ROUND: torch.tensor(number), **{_UPDATE + name: value for name, value in update.items()}}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        if not state:
            self._left = None
            return
        update = copies(part_of(state, _UPDATE))
        if _ROUND not in state or set(update) != set(self._left_shapes()):
            raise MalformedMessage(
                f"what site {self._site_id!r} kept is not an update of this study",
                remedy="it belongs to another study; start this one with an empty state folder",
            )
        self._left = (int(state[_ROUND]), update)

    def _left_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """What a training leaves for the round's later sums: here the update of layers that groups share."""
        own, shapes = set(self._plan.own(self._kind)), self._plan.shapes[self._kind]
        return {name: shapes[name] for name in self._plan.trained(self._kind) if name not in own}

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """The weight, or that this site has held-out records: what it adds whatever its values do."""
        stage = self._plan.stage(round_number, exchange)
        if stage.step == "score":
            return transfer_scores.counts(self._kind, self._held_out)
        return {"weight": self._weight()} if self._plan.weighted else {}

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """Train, hand out the rest of a training, or measure; what fails is left out."""
        stage = self._plan.stage(round_number, exchange)
        settled = self.settled(round_number, exchange)
        if stage.step == "score":
            return {**otherwise({}, self._score, part_of(broadcast, MODEL)), **settled}
        weight, loss = self._weight(), 0.0
        if stage.step == "own":
            # A training that failed has had its turn: the later sums get zeros, and no refusal.
            left: State = {name: torch.zeros(shape) for name, shape in self._left_shapes().items()}
            nothing: tuple[State, State, float] = ({}, left, math.nan)
            given = self._plan.received(stage, round_number, broadcast)
            update, left, loss = otherwise(nothing, self._train, round_number, *given)
            self._left = (round_number, left)
            update = {_UPDATE + name: value for name, value in update.items()}
        else:
            if self._left is None or self._left[0] != round_number:
                message = f"site {self._site_id!r} did not train in round {round_number}"
                raise WrongState(message, remedy="it takes part again in the next round that it is asked for")
            update = self._shared(stage, self._left[1], broadcast)
        summands: dict[str, torch.Tensor | float] = {
            **{name: weight * value for name, value in update.items()},
            "loss": weight * loss,
            **settled,
        }
        return fitting(exchange, summands)

    def _kept(self, network: Classifier | PairEncoder, update: State) -> State:
        """What training leaves, with the names and shapes of :meth:`_left_shapes`."""
        del network
        return {name: update[name] for name in self._left_shapes()}

    def _shared(self, stage: FedColaStage, left: State, broadcast: State) -> State:
        """What a sum over more groups gets: of shared layers the update, over all the mean of both towers."""
        del stage, broadcast
        found: dict[str, list[torch.Tensor]] = {}
        for name, value in left.items():
            _, summed = self._plan.shared_sum(name) or ("", name)
            found.setdefault(_UPDATE + summed, []).append(value)
        return {name: torch.stack(values).mean(dim=0) for name, values in found.items()}

    def _weight(self) -> float:
        options = self._options
        if options.weighting == "equal":
            return 1.0
        return min(len(self._train_samples), options.weight_cap) / options.weight_cap

    def _train(self, round_number: int, received: State, other: State) -> tuple[State, State, float]:
        options, plan, seed = self._options, self._plan, self._seed
        trained = plan.trained(self._kind)
        with seeded(seed, "local training", self._site_id, round_number):
            network = plan.network(self._kind, received, self._device)
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(name in trained)
            if isinstance(network, Classifier) and options.co_layers != "none":
                gate(network, other, layers=options.co_layers, trainable=options.train_co_layers)
            parameters = [value for value in network.parameters() if value.requires_grad]
            rate = plan.learning_rate(round_number)
            optimiser = eager(torch.optim.AdamW)(parameters, lr=rate, weight_decay=0.0)
            add_proximal_pull(optimiser, options.mu)
            order = torch_generator(seed, "order", self._site_id, round_number)
            loss = self._fit(network, optimiser, order)
            if isinstance(network, Classifier):
                fuse(network)
        after = read_parameters(network)
        update = {name: after[name] - received[name] for name in trained}
        return update, self._kept(network, update), loss

    def _fit(self, network: nn.Module, optimiser: torch.optim.Optimizer, order: torch.Generator) -> float:
        options, size, loss = self._options, self._options.batch_size, self._loss()
        network.train()
        if self._privacy is not None:
            records = self._rows(self._private_rows())
            self._privacy.run(network, optimiser, loss, records, passes=options.local_epochs, phase=TRAIN)
            return math.nan

        def batches() -> Iterator[Batch]:
            for rows in torch.split(torch.randperm(len(self._train_samples), generator=order), size):
                yield self._rows(rows)

        epochs, settings = options.local_epochs, StepSettings.of(options)
        return fit(network, optimiser, loss, batches, epochs=epochs, device=self._device, settings=settings)

    def _loss(self) -> DeclaredLoss:
        if self._kind != "pairs":
            return DeclaredLoss("cross entropy", True, _cross_entropy)
        temperature = self._options.temperature

        def of(network: nn.Module, batch: Batch) -> torch.Tensor:
            image, text = network(*batch)
            return infonce(image, text, temperature)

        return DeclaredLoss("contrast of images and captions", False, of)

    def _rows(self, rows: torch.Tensor) -> Batch:
        samples = self._train_samples
        if self._kind == "pairs":
            parts = required(samples.images)[required(samples.sources)[rows]], required(samples.tokens)[rows]
        else:
            inputs = samples.images if self._kind == "image" else samples.tokens
            parts = required(inputs)[rows], required(samples.labels)[rows]
        return onto(self._device, parts)

    def _private_rows(self) -> torch.Tensor:
        """The training records under privacy: all, but of an image with several captions the first."""
        if self._kind != "pairs":
            return torch.arange(len(self._train_samples))
        first: dict[int, int] = {}
        for row, image in enumerate(required(self._train_samples.sources).tolist()):
            first.setdefault(image, row)
        return torch.tensor(sorted(first.values()), dtype=torch.int64)

    def _score(self, received: State) -> Summands:
        network = self._plan.network(self._kind, received, self._device)
        sums = transfer_scores.score(network, self._held_out, self._options.gallery, self._device)
        return on_grid(sums, sums)


def _cross_entropy(network: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(network(batch[0]), batch[1], reduction="none")
