"""The base of algorithms whose sites train one classifier and add weighted tensors: a page is enough for one.

    @register("my-method", options=FedAvgOptions)
    class MyMethod(WeightedMean):
        def local_update(self, model, data, context):
            ...                                            # train model on data
            return self.difference(model, context.received)

        def server_step(self, model, mean, state):         # if wanted: this one is the default
            return {name: model[name] + mean[f"update/{name}"] for name in self.trained}

A round has one exchange, ``update``. Each site adds w * (what :meth:`WeightedMean.local_update` gave), its
weight w, and what evaluating the *received* model on its held-out records gave, as numerators and
denominators. The server divides by the total weight. Metrics of a model therefore arrive one exchange later,
and round ``rounds + 1`` is an exchange that only evaluates.

Under ``[privacy]`` local steps are private (unit record or group) or the sum carries noise (unit site). The
training loss then never leaves; whether metrics and the number of records do is the study's choice. With
the site as the unit the mean is over the survivors, and metrics, if they leave, have a sum of their own.

With ``protection.sites_per_round`` rounds train in changing cohorts, whose sums hold the update and nothing
that is the same, or nearly, in every round: no training loss and no count. One fixed cohort evaluates.

Source of capped weights: McMahan, Ramage, Talwar, Zhang, ICLR 2018 (arXiv 1710.06963), section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import torch

from secfed.algorithms.federated_averaging.best_round import BestRound
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.weighted_plan import STATE, STOPPED, UPDATE, Means, WeightedPlan
from secfed.algorithms.framework.base import Metrics, SiteProgram, fitting, no_exchange
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.parameters import write_parameters
from secfed.algorithms.framework.server_state import MODEL, ModelServer, copies, model_of, part_of
from secfed.dp.training.plain_loop import choose_device
from secfed.dp.training.step import StepSettings
from secfed.errors import RangeError, WrongState
from secfed.wire.layout import Exchange, State, Summands, Totals
from secfed.wire.parts import failed, is_finite, otherwise

if TYPE_CHECKING:
    from secfed.dp.training.local_privacy import LocalPrivacy
    from secfed.dp.training.unit_sums import UnitSums

_NO_WEIGHT: Final = 1e-9  # fixed point leaves about 1e-13 of one site's weight


class WeightedMean(WeightedPlan):
    """One algorithm of weighted means, bound to one study; :class:`WeightedPlan` has what it may change."""

    def server(self) -> WeightedMeanServer:
        """A fresh server program."""
        return WeightedMeanServer(self)

    def site(self, site_id: SiteId) -> WeightedMeanSite:
        """One site's program, bound to that site's records."""
        return WeightedMeanSite(self, site_id)

    def per_site(self, model: State) -> Mapping[SiteId, Metrics]:
        """Metrics of the model at every site; nothing where sites use another model."""
        if self.personal:
            return {}
        device = choose_device(self.options.device)
        network = self.setting.model().to(device)
        write_parameters(network, model)
        return {
            site: self.task.finish(self.evaluate(network, self.site_data(site), device))
            for site in self.setting.sites
        }


class WeightedMeanSite(SiteProgram):
    """Runs inside one hospital. Keeps between rounds what the algorithm's ``site_memory`` names."""

    def __init__(self, algorithm: WeightedPlan, site_id: SiteId) -> None:
        self._algorithm, self._site_id = algorithm, site_id
        self._data = algorithm.site_data(site_id)
        self._device = choose_device(algorithm.options.device)
        self._model = algorithm.setting.model().to(self._device)
        self._memory = copies(algorithm.site_memory())
        self._privacy: LocalPrivacy | None = None
        self._sums: UnitSums | None = None

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """Train under privacy from now on."""
        privacy.plan(*self._algorithm.phases(self._data))
        self._privacy = privacy

    def use_unit_sums(self, sums: UnitSums) -> None:
        """Clip single records, or groups, from now on; the sum carries the noise."""
        data = self._data
        sums.plan(len(data.train_y), data.train_patients, blank=data.blank)
        self._sums = sums

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """Weight and counts, and how many records are held out, except counts that leave with noise."""
        self._check(round_number, exchange)
        data = self._data
        weight = self._algorithm.weight(len(data.train_y))
        known: dict[str, torch.Tensor | float] = {"weight": weight}
        known |= {name: weight * value for name, value in self._algorithm.counts(data).items()}
        if self._algorithm.statistics is not None:
            known["records"] = self._algorithm.statistics.records(len(data.train_y))
        if not self._algorithm.noisy_metrics:
            known |= self._algorithm.task.counts(data.test_y)
        return fitting(exchange, known)

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """Evaluate the received model and, in ``update``, train it; a part that fails is left out."""
        self._check(round_number, exchange)
        received = self._algorithm.model_in(broadcast)
        memory = self._memory  # evaluation uses what it was, in either order
        summands: dict[str, torch.Tensor | float] = {}
        statistics = self._algorithm.statistics
        if statistics is not None and exchange in statistics.exchanges:
            write_parameters(self._model, received)
            measure = statistics.measure
            found = otherwise({}, measure, exchange, self._model, self._data.train_x, self._device)
            return fitting(exchange, {**found, **self.settled(round_number, exchange)})

        def evaluate() -> None:
            if any(field.name.startswith("eval/") for field in exchange.layout.fields):
                summands.update(otherwise({}, self._evaluate_on, received, memory))

        if self._privacy is None:
            evaluate()
        over = STOPPED in broadcast and bool(broadcast[STOPPED])
        if over:  # where only sites read sums, the aggregator goes on asking: nothing is trained or spent
            fields = [one for one in exchange.layout.fields if not one.name.startswith("eval/")]
            summands.update({field.name: torch.zeros(field.shape) for field in fields})
        elif exchange.name == UPDATE:
            summands.update(otherwise({}, self._train_on, round_number, received, part_of(broadcast, STATE)))
        if self._privacy is not None:
            evaluate()  # training comes first: it pays, or refuses, before any record is touched
        return fitting(exchange, {**summands, **self.settled(round_number, exchange)})

    def save(self) -> State:
        """What this site keeps; nothing for most algorithms."""
        return copies(self._memory)

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        self._memory = model_of(state, self._memory, "")

    def _check(self, round_number: int, exchange: Exchange) -> None:
        if exchange not in self._algorithm.exchanges(round_number):
            raise no_exchange(round_number, exchange)

    def _evaluate_on(self, received: State, memory: State) -> Summands:
        """Sums over the held-out records of this site; with noise they are paid for first."""
        write_parameters(self._model, received)  # training may have moved them
        self._algorithm.personalise(self._model, memory)

        def sums() -> dict[str, torch.Tensor]:
            return self._algorithm.evaluate(self._model, self._data, self._device)

        if not self._algorithm.noisy_metrics or self._sums is not None:
            return sums()
        task = self._algorithm.task
        if self._privacy is None or task.noisy_l2 is None:
            raise WrongState("private metrics need a site's privacy, and a task that has them")
        fields = task.fields(noisy=True)
        noisy = {field.name: field.shape for field in fields}
        return self._privacy.release_sums(sums, noisy, l2=task.noisy_l2)

    def _train_on(self, round_number: int, received: State, shared: State) -> Summands:
        write_parameters(self._model, received)  # evaluation may have personalised them
        algorithm, memory = self._algorithm, copies(self._memory)
        seed = algorithm.setting.local_seed
        context = LocalContext(
            self._site_id,
            round_number,
            received,
            shared,
            memory,
            self._device,
            seed,
            self._privacy,
            self._sums,
            StepSettings.of(algorithm.options),
            algorithm.rate(round_number),
        )
        algorithm.receive(context)
        self._memory = copies(context.memory)
        given = algorithm.local_update(self._model, self._data, context)
        if is_finite(context.memory):
            self._memory = copies(context.memory)
        else:  # a failed update leaves what the site keeps as it was
            failed(RangeError("what the site keeps between rounds: NaN or Inf"))
        weight = algorithm.weight(len(self._data.train_y))
        return {name: weight * value for name, value in given.items()}


class WeightedMeanServer(ModelServer):
    """Moves the model by what the algorithm makes of the weighted means; reads totals only."""

    def __init__(self, algorithm: WeightedPlan) -> None:
        super().__init__(algorithm.initial)
        self._algorithm = algorithm
        self._state = copies(algorithm.server_state())
        self._best = BestRound(algorithm.options, algorithm.initial)

    def model(self) -> State:
        """The newest model, or the best one where the study keeps that."""
        return self._best.kept(self._model)

    @property
    def stopped(self) -> int | None:
        """The round that ended training early, if one did."""
        return self._best.stopped

    def kept(self, rounds: int) -> int:
        """The best round, or the last."""
        last = rounds if self.stopped is None else self.stopped
        return last if self._best.round is None else self._best.round

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """The current model, and the server's state where sites need it."""
        del round_number, exchange
        stops = self._algorithm.options.patience is not None
        flag = {STOPPED: torch.tensor(float(self.stopped is not None))} if stops else {}
        state = self._named_state() if self._algorithm.shares_state else {}
        return {**copies(self._model), **state, **flag, **copies(self._algorithm.home)}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange: metrics of the model that was broadcast, then the step to the next.

        ``train_loss`` is the mean loss while training from that model, so the last model has none.
        """
        statistics = self._algorithm.statistics
        if statistics is not None and exchange in statistics.exchanges:
            self._model.update(statistics.found(exchange, totals))
            return
        # After the end of training all rounds measure the same model.
        version = round_number - 1 if self.stopped is None else min(round_number - 1, self.stopped)
        metrics = self._metrics.of(version)
        noise = self._algorithm.metric_noise(totals)
        metrics.update(self._algorithm.task.finish(totals, deviation=noise))
        over = self.stopped is not None and round_number > self.stopped
        self._best.measured(version, metrics, self._model)
        if exchange.name != UPDATE or over:
            return
        # A layout without weights is that of site-level privacy: every survivor counts the same.
        weight = totals.scalar("weight") if "weight" in totals else float(len(totals.survivors))
        if weight > _NO_WEIGHT:
            if "train_loss" in totals:
                metrics["train_loss"] = totals.scalar("train_loss") / weight
            moved = self._algorithm.server_step(self._model, Means(totals, weight), self._state)
            self._model.update({name: value.to(torch.float32) for name, value in moved.items()})

    def save(self) -> State:
        """Model, metrics and what the algorithm keeps."""
        newest = {MODEL + name: value for name, value in copies(self._model).items()}
        return {**newest, **self._metrics.save(), **self._named_state(), **self._best.save()}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        super().load(state)
        self._state = model_of(state, self._state, STATE)
        self._best.load(state)

    def _named_state(self) -> dict[str, torch.Tensor]:
        return {STATE + name: value.clone() for name, value in self._state.items()}
