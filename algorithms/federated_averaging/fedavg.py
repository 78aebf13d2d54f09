"""Federated averaging, written against sums.

A round has one exchange, ``update``. Each site trains the received model on its own records and adds

    w * (local - received)   for every trainable parameter,      w,      w * (mean training loss)

and what evaluating the *received* model on its held-out records gave, as numerators and denominators.
The server moves the model by sum(w * delta) / sum(w): the weighted mean of the local models, without
knowing one site's model, weight or number of records. Metrics of a model therefore arrive one exchange
later, and round ``rounds + 1`` is an exchange that only evaluates.

Under ``[privacy]`` local steps are private (unit record or group) or the sum carries noise (unit site). The
training loss then never leaves; whether metrics and the number of records do is the study's choice. With
the site as the unit the mean is over the survivors, and metrics, if they leave, have a sum of their own.

Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, Algorithm 1. Capped weights: McMahan, Ramage, Talwar,
Zhang, ICLR 2018 (arXiv 1710.06963), section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.framework.base import LOSS_BOUND, check_round
from secfed.algorithms.framework.datasets import SiteData, SiteId, check_site
from secfed.algorithms.framework.parameters import (
    check_scores,
    check_shapes,
    read_parameters,
    shapes_of,
    trainable,
    write_parameters,
)
from secfed.algorithms.framework.randomness import seeded, torch_generator
from secfed.algorithms.framework.server_state import MODEL, VersionMetrics, model_of
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.metrics import classification
from secfed.config.schema import OwnOptions
from secfed.dp.training.plain_loop import (
    Training,
    choose_device,
    make_loader,
    make_optimiser,
    train_locally,
)
from secfed.errors import ConfigError, WrongState
from secfed.wire.layout import Exchange, Layout, State, Summands, Totals
from secfed.wire.layout import Field as Block
from secfed.wire.parts import otherwise

if TYPE_CHECKING:
    from secfed.dp.training.local_privacy import LocalPrivacy

UPDATE: Final = "update"
EVALUATE: Final = "evaluate"
_EVERYONE: Final = "all"
_NO_WEIGHT: Final = 1e-9  # fixed point leaves about 1e-13 of one site's weight


class FedAvg:
    """Federated averaging, bound to one study.

    Args:
        setting: study, data set and model.
        options: the ``[algorithm]`` table.

    Attributes:
        private_units: what local training can protect.

    Raises:
        ConfigError: a model or data set that this algorithm cannot work with.
    """

    private_units: Final = ("record", "group")

    def __init__(self, setting: Setting, options: FedAvgOptions) -> None:
        self.setting = setting
        self.options = options
        self.data = setting.labelled()
        model = setting.model()
        self.trained = trainable(model)
        if isinstance(setting.study.model, OwnOptions):
            check_scores(model, self.data.input_shape, self.data.classes)
        self.initial: State = read_parameters(model)
        self._check_privacy()
        privacy = setting.study.privacy
        self._metrics = "unprotected" if privacy is None else privacy.metrics
        self._site_level = privacy is not None and not privacy.in_local_steps
        every_round = self._metrics == "unprotected" and not self._site_level
        self._update = Exchange(UPDATE, _EVERYONE, self._layout(self._update_fields(), every_round))
        self._evaluate = Exchange(EVALUATE, _EVERYONE, self._layout((), True))

    def _check_privacy(self) -> None:
        privacy = self.setting.study.privacy
        if privacy is None or self.options.weighting == "equal":
            return
        if not privacy.in_local_steps or privacy.weights == "withheld":
            raise ConfigError(
                'algorithm.weighting: "records" lets the total number of records leave without noise',
                remedy='set algorithm.weighting = "equal"'
                + (', or say so with privacy.weights = "unprotected"' if privacy.in_local_steps else ""),
            )

    def _update_fields(self) -> tuple[Block, ...]:
        protection, privacy = self.setting.study.protection, self.setting.study.privacy
        update = tuple(
            Block(f"update/{name}", tuple(self.initial[name].shape), protection.bound, protection.bits)
            for name in self.trained
        )
        if self._site_level:
            return update
        weight = Block("weight", (), 1.0, 64)
        if privacy is not None:
            return (*update, weight)
        return (*update, weight, Block("train_loss", (), LOSS_BOUND, 64))

    def _layout(self, fields: tuple[Block, ...], metrics: bool) -> Layout:
        evaluation = classification.fields(self.data.classes, noisy=self._metrics == "private")
        return Layout((*fields, *(evaluation if metrics else ())), sites=len(self.setting.sites))

    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        """``update`` in rounds 1 to ``rounds``, then ``evaluate``; fewer where no metrics leave.

        Raises:
            WrongState: the study has no such round.
        """
        rounds = self.setting.study.rounds
        check_round(round_number, rounds)
        evaluate = () if self._metrics == "withheld" else (self._evaluate,)
        if round_number > rounds:
            return evaluate
        # The site's noise covers a whole exchange, so what leaves without noise has one of its own.
        return (*(evaluate if self._site_level else ()), self._update)

    def unprotected(self, exchange: Exchange) -> Sequence[str]:
        """Fields that leave without noise, as ``[privacy]`` says."""
        privacy = self.setting.study.privacy
        if privacy is None:
            return ()
        names = [field.name for field in exchange.layout.fields]
        counted = self.options.weighting == "records"
        return [
            name
            for name in names
            if (name.startswith("eval/") and privacy.metrics == "unprotected")
            or (name == "weight" and counted)
        ]

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[SiteId]) -> Sequence[SiteId]:
        """Every site takes part in every exchange."""
        del round_number, exchange
        return tuple(sites)

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse a broadcast that is not this study's model, by names and shapes.

        Raises:
            MalformedMessage: it is not.
        """
        del round_number, exchange
        check_shapes(broadcast, shapes_of(self.initial))

    def model_in(self, broadcast: State) -> State:
        """The model in a broadcast: all of it."""
        return broadcast

    def server(self) -> FedAvgServer:
        """A fresh server program."""
        return FedAvgServer(self.initial, self.trained, self.data.classes)

    def site(self, site_id: SiteId) -> FedAvgSite:
        """One site's program, bound to that site's records.

        Raises:
            DataError: records that cannot be used.
        """
        return FedAvgSite(self, site_id)

    def site_data(self, site_id: SiteId) -> SiteData:
        """One site's checked records.

        Raises:
            DataError: records that cannot be used.
        """
        return check_site(
            site_id,
            self.data.site(site_id),
            input_shape=self.data.input_shape,
            classes=self.data.classes,
        )

    def weight(self, records: int) -> float:
        """A site's weight in the mean, 0 < w <= 1. It never leaves the site but inside a sum."""
        if self.options.weighting == "equal":
            return 1.0
        return min(records, self.options.weight_cap) / self.options.weight_cap

    def training(self, model: nn.Module, data: SiteData, generator: torch.Generator) -> Training:
        """What one site's training of one round consists of; variants of the algorithm change it here.

        Args:
            model: holds the received parameters.
            data: the site's records.
            generator: decides the order of the records.
        """
        options = self.options
        optimiser = make_optimiser(
            model,
            options.optimizer,
            learning_rate=options.learning_rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
        )
        loader = make_loader(data.train_x, data.train_y, batch_size=options.batch_size, generator=generator)
        return Training(model, optimiser, nn.functional.cross_entropy, loader)

    def train(
        self,
        model: nn.Module,
        data: SiteData,
        site_id: SiteId,
        round_number: int,
        privacy: LocalPrivacy | None = None,
    ) -> float:
        """One site's local training of one round, in place.

        Args:
            model: holds the received parameters.
            data: the site's records.
            site_id: whose.
            round_number: counted from 1.
            privacy: runs the steps instead, under the study's ``[privacy]``.

        Returns:
            Mean training loss per record; NaN under privacy.

        Raises:
            BudgetExceeded: the site's budget does not cover the round.
        """
        seed = self.setting.local_seed
        training = self.training(model, data, torch_generator(seed, "order", site_id, round_number))
        device = next(model.parameters()).device
        epochs = self.options.local_epochs
        if privacy is not None:
            # Random layers then draw from the site's secret stream: a public seed would undo the guarantee.
            return privacy.train_locally(training, epochs=epochs, device=device)
        with seeded(seed, "train", site_id, round_number):  # for models with random layers
            return train_locally(training, epochs=epochs, device=device)


class FedAvgSite:
    """Runs inside one hospital. Keeps nothing between rounds, so the order of calls does not matter."""

    def __init__(self, algorithm: FedAvg, site_id: SiteId) -> None:
        self._algorithm = algorithm
        self._site_id = site_id
        self._data = algorithm.site_data(site_id)
        self._device = choose_device(algorithm.options.device)
        self._model = algorithm.setting.model().to(self._device)

        self._privacy: LocalPrivacy | None = None

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """Train under privacy from now on.

        Raises:
            ConfigError: no noise reaches the study's epsilon, or a relation that hides patients without any.
        """
        from secfed.dp.training.local_privacy import TRAIN, Phase  # the accountants are slow to import

        options, rounds = self._algorithm.options, self._algorithm.setting.study.rounds
        passes = rounds * options.local_epochs
        records, patients = len(self._data.train_y), self._data.train_patients
        privacy.plan(Phase(TRAIN, records, options.batch_size, passes, patients=patients))
        self._privacy = privacy

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """The weight, and how many records are held out: what this site adds whatever its values do.

        Counts that leave with noise are not among them.
        """
        self._check(round_number, exchange)
        data, names = self._data, {field.name for field in exchange.layout.fields}
        known: dict[str, torch.Tensor | float] = {"weight": self._algorithm.weight(len(data.train_y))}
        if not self._noisy_metrics:
            known |= classification.counts(data.test_y, self._algorithm.data.classes)
        return {name: value for name, value in known.items() if name in names}

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """Evaluate the received model and, in ``update``, train it; a part that fails is left out.

        Raises:
            WrongState: the study has no such exchange in this round.
            MalformedMessage: the broadcast is not this study's model.
            BudgetExceeded: the site's budget does not cover the work; no record was touched.
        """
        self._check(round_number, exchange)
        write_parameters(self._model, broadcast)
        names = {field.name for field in exchange.layout.fields}
        parts = [self._train_on] if exchange.name == UPDATE else []
        if any(name.startswith("eval/") for name in names):
            # Under privacy training comes first: it pays, or refuses, before any record is touched.
            parts.insert(0 if self._privacy is None else len(parts), self._evaluate_on)
        summands: dict[str, torch.Tensor | float] = {}
        for part in parts:
            summands.update(otherwise({}, part, round_number, broadcast))
        summands.update(self.settled(round_number, exchange))
        return {name: value for name, value in summands.items() if name in names}

    def _check(self, round_number: int, exchange: Exchange) -> None:
        if exchange not in self._algorithm.exchanges(round_number):
            raise WrongState(
                f"round {round_number} has no exchange {exchange.name!r} of this layout",
                remedy="the aggregator must run the same study file",
            )

    @property
    def _noisy_metrics(self) -> bool:
        settings = self._algorithm.setting.study.privacy
        return settings is not None and settings.metrics == "private"

    def _evaluate_on(self, round_number: int, broadcast: State) -> Summands:
        """Sums over the held-out records of this site; with noise they are paid for first."""
        del round_number
        write_parameters(self._model, broadcast)  # training may have moved them
        data, classes = self._data, self._algorithm.data.classes

        def sums() -> dict[str, torch.Tensor]:
            return classification.evaluate(
                self._model, data.test_x, data.test_y, classes=classes, device=self._device
            )

        if not self._noisy_metrics:
            return sums()
        if self._privacy is None:
            raise WrongState("private metrics need a site's privacy")
        noisy = {field.name: field.shape for field in classification.fields(classes, noisy=True)}
        return self._privacy.release_sums(sums, noisy, l2=classification.NOISY_L2)

    def _train_on(self, round_number: int, broadcast: State) -> Summands:
        algorithm, data, model = self._algorithm, self._data, self._model
        weight = algorithm.weight(len(data.train_y))
        loss = algorithm.train(model, data, self._site_id, round_number, self._privacy)
        trained = read_parameters(model)
        summands: dict[str, torch.Tensor | float] = {
            f"update/{name}": weight * (trained[name] - broadcast[name]) for name in algorithm.trained
        }
        return {**summands, "train_loss": weight * loss}


class FedAvgServer:
    """Moves the model by the weighted mean update; reads totals only."""

    def __init__(self, initial: State, trained: Sequence[str], classes: int) -> None:
        self._model = {name: value.clone() for name, value in initial.items()}
        self._trained = tuple(trained)
        self._classes = classes
        self._metrics = VersionMetrics()

    def begin(self, model: State) -> None:
        """Begin with this model instead of the seed's."""
        self._model = {name: value.clone() for name, value in model.items()}

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """The current model."""
        del round_number, exchange
        return self.model()

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange: metrics of the model that was broadcast, then the step to the next.

        ``train_loss`` is the mean loss while training from that model, so the last model has none.
        """
        metrics = self._metrics.of(round_number - 1)
        metrics.update(classification.finish(totals, self._classes))
        if exchange.name == UPDATE:
            # A layout without weights is that of site-level privacy: every survivor counts the same.
            weight = totals.scalar("weight") if "weight" in totals else float(len(totals.survivors))
            if weight > _NO_WEIGHT:
                if "train_loss" in totals:
                    metrics["train_loss"] = totals.scalar("train_loss") / weight
                for name in self._trained:
                    moved = self._model[name].to(torch.float64) + totals[f"update/{name}"] / weight
                    self._model[name] = moved.to(torch.float32)

    def model(self) -> State:
        """The current parameters, by name: float32 copies."""
        return {name: value.clone() for name, value in self._model.items()}

    def metrics(self) -> Mapping[int, Mapping[str, float]]:
        """Metrics by model version; see :func:`secfed.algorithms.metrics.classification.finish`."""
        return self._metrics.all()

    def save(self) -> State:
        """Model and metrics."""
        model = {MODEL + name: value.clone() for name, value in self._model.items()}
        return model | self._metrics.save()

    def load(self, state: State) -> None:
        """Continue from :meth:`save`.

        Raises:
            MalformedMessage: a checkpoint of another model.
        """
        self._model = model_of(state, self._model)
        self._metrics.load(state)
