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
denominators. The server divides by the total weight, so it has the weighted means without
knowing one site's values, weight or number of records. Metrics of a model therefore arrive one exchange
later, and round ``rounds + 1`` is an exchange that only evaluates.

Under ``[privacy]`` local steps are private (unit record or group) or the sum carries noise (unit site). The
training loss then never leaves; whether metrics and the number of records do is the study's choice. With
the site as the unit the mean is over the survivors, and metrics, if they leave, have a sum of their own.

Source of capped weights: McMahan, Ramage, Talwar, Zhang, ICLR 2018 (arXiv 1710.06963), section 2.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import nn

from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.framework.base import (
    LOSS_BOUND,
    Algorithm,
    Metrics,
    SiteProgram,
    check_round,
    no_exchange,
)
from secfed.algorithms.framework.datasets import SiteData, SiteId, check_site
from secfed.algorithms.framework.parameters import (
    check_scores,
    check_shapes,
    read_parameters,
    shapes_of,
    trainable,
    write_parameters,
)
from secfed.algorithms.framework.server_state import ModelServer, copies, model_of, part_of
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.metrics import classification
from secfed.config.schema import OwnOptions
from secfed.dp.training.plain_loop import choose_device
from secfed.errors import ConfigError, WrongState
from secfed.wire.layout import Exchange, Layout, State, Summands, Totals
from secfed.wire.layout import Field as Block
from secfed.wire.parts import is_finite, otherwise

if TYPE_CHECKING:
    from secfed.dp.training.local_plan import Phase
    from secfed.dp.training.local_privacy import LocalPrivacy

UPDATE: Final = "update"
EVALUATE: Final = "evaluate"
_EVERYONE: Final = "all"
_STATE: Final = "state/"  # of the server, in broadcasts and checkpoints
_NO_WEIGHT: Final = 1e-9  # fixed point leaves about 1e-13 of one site's weight


class Means(Mapping[str, torch.Tensor]):
    """The weighted means over the survivors: float64, by field name."""

    def __init__(self, totals: Totals, weight: float) -> None:
        self._totals, self._weight, self.survivors = totals, weight, totals.survivors

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._totals[name] / self._weight  # one at a time: totals are as large as the model

    def __iter__(self) -> Iterator[str]:
        return iter(self._totals)

    def __len__(self) -> int:
        return len(self._totals)


class WeightedMean(Algorithm):
    """One algorithm of weighted means, bound to one study.

    Attributes:
        private_units: a class that writes a :meth:`local_update` of its own supports the units that it
            declares itself, and ``site`` if it declares none.
        shares_state: whether sites receive :meth:`server_state` with the model.
        personal: whether a site uses another model than the received one; :meth:`personalise` makes it.
        trained: names of the parameters that sites sum.

    Raises:
        ConfigError: a model, data set or ``[privacy]`` that this algorithm cannot work with.
    """

    warm_start = True
    shares_state: ClassVar[bool] = False
    personal: ClassVar[bool] = False

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "local_update" in vars(cls) and "private_units" not in vars(cls):
            cls.private_units = ("site",)

    def __init__(self, setting: Setting, options: FedAvgOptions) -> None:
        self.setting, self.options = setting, options
        self.data = setting.labelled()
        model = setting.model()
        self.trained = self.summed_parameters(model)
        if isinstance(setting.study.model, OwnOptions):
            check_scores(model, self.data.input_shape, self.data.classes)
        self.initial: State = read_parameters(model)
        self.check_privacy()
        privacy = setting.study.privacy
        self._metrics = "unprotected" if privacy is None else privacy.metrics
        self._site_level = privacy is not None and not privacy.in_local_steps
        every_round = self._metrics == "unprotected" and not self._site_level
        update = Layout((*self._update_fields(), *self._evaluation(every_round)), sites=len(setting.sites))
        self._update = Exchange(UPDATE, _EVERYONE, update)
        evaluation = Layout(self._evaluation(True), sites=len(setting.sites))
        self._evaluate = Exchange(EVALUATE, _EVERYONE, evaluation)

    # --- what an algorithm writes ---

    @abstractmethod
    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        """One site's training of one round.

        Args:
            model: holds the received parameters; changed in place.
            data: the site's records.
            context: how to train (:meth:`LocalContext.train`), what was received, what the site keeps.

        Returns:
            A value for every one of :meth:`fields`, not weighted, and ``train_loss``, the mean per record.

        Raises:
            BudgetExceeded: the site's budget does not cover the round.
        """

    def server_step(self, model: State, mean: Means, state: dict[str, torch.Tensor]) -> State:
        """The parameters that change, from the means of what sites added; by default the model plus the mean.

        Args:
            model: the current parameters.
            mean: weighted means by field name, and who is in them.
            state: as :meth:`server_state` began it; changed in place.
        """
        del state
        return {name: model[name].to(torch.float64) + mean[f"update/{name}"] for name in self.trained}

    def fields(self) -> tuple[Block, ...]:
        """What sites sum beside weights, losses and metrics; by default ``update/parameter``."""
        return self.fields_like_model("update")

    def server_state(self) -> State:
        """What the server keeps beside the model, as it is before round 1."""
        return {}

    def site_memory(self) -> State:
        """What every site keeps between rounds, as it is before round 1; it never leaves the site."""
        return {}

    def receive(self, context: LocalContext) -> None:
        """Bring ``context.memory`` up to the broadcast, looking at no record; kept even if training fails."""

    def personalise(self, model: nn.Module, memory: State) -> None:
        """Turn the received model into the one that this site evaluates; in place."""

    def summed_parameters(self, model: nn.Module) -> tuple[str, ...]:
        """Names of the parameters that leave in sums; by default all that training changes.

        Raises:
            ConfigError: a model that cannot be summed.
        """
        return trainable(model)

    def check_privacy(self) -> None:
        """Refuse a study whose sums would tell what its ``[privacy]`` withholds.

        Raises:
            ConfigError: weights that would leave without noise.
        """
        privacy = self.setting.study.privacy
        if privacy is None or self.options.weighting == "equal":
            return
        if not privacy.in_local_steps or privacy.weights == "withheld":
            raise ConfigError(
                'algorithm.weighting: "records" lets the total number of records leave without noise',
                remedy='set algorithm.weighting = "equal"'
                + (', or say so with privacy.weights = "unprotected"' if privacy.in_local_steps else ""),
            )

    def phases(self, data: SiteData) -> tuple[Phase, ...]:
        """The private training of the whole study at one site, for the noise to be chosen from."""
        from secfed.dp.training.local_privacy import TRAIN, Phase  # the accountants are slow to import

        passes = self.setting.study.rounds * self.options.local_epochs
        records, patients = len(data.train_y), data.train_patients
        return (Phase(TRAIN, records, self.options.batch_size, passes, patients=patients),)

    # --- what it may use ---

    def fields_like_model(self, prefix: str) -> tuple[Block, ...]:
        """A field ``prefix/parameter`` for every summed parameter, with the study's bound and bits."""
        protection = self.setting.study.protection
        return tuple(
            Block(f"{prefix}/{name}", tuple(self.initial[name].shape), protection.bound, protection.bits)
            for name in self.trained
        )

    def difference(self, model: nn.Module, received: State) -> dict[str, torch.Tensor]:
        """``update/parameter``: how far training moved each summed parameter."""
        trained = read_parameters(model)
        return {f"update/{name}": trained[name] - received[name] for name in self.trained}

    def weight(self, records: int) -> float:
        """A site's weight in the mean, 0 < w <= 1. It never leaves the site but inside a sum."""
        if self.options.weighting == "equal":
            return 1.0
        return min(records, self.options.weight_cap) / self.options.weight_cap

    # --- the plan ---

    def _update_fields(self) -> tuple[Block, ...]:
        if self._site_level:
            return self.fields()
        weight = Block("weight", (), 1.0, 64)
        if self.setting.study.privacy is not None:
            return (*self.fields(), weight)
        return (*self.fields(), weight, Block("train_loss", (), LOSS_BOUND, 64))

    def _evaluation(self, wanted: bool) -> tuple[Block, ...]:
        noisy = self._metrics == "private"
        return classification.fields(self.data.classes, noisy=noisy) if wanted else ()

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
        """Metrics and weights, where ``[privacy]`` says so."""
        privacy = self.setting.study.privacy
        if privacy is None:
            return ()
        counted = self.options.weighting == "records"
        return [
            field.name
            for field in exchange.layout.fields
            if (field.name.startswith("eval/") and privacy.metrics == "unprotected")
            or (field.name == "weight" and counted)
        ]

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse a broadcast that is not this study's model, by names and shapes."""
        del round_number, exchange
        state = shapes_of(self.server_state(), _STATE) if self.shares_state else {}
        check_shapes(broadcast, shapes_of(self.initial) | state)

    def model_in(self, broadcast: State) -> State:
        """The model in a broadcast, without the server's state."""
        return {name: value for name, value in broadcast.items() if not name.startswith(_STATE)}

    # --- the two programs ---

    def server(self) -> WeightedMeanServer:
        """A fresh server program."""
        return WeightedMeanServer(self)

    def site(self, site_id: SiteId) -> WeightedMeanSite:
        """One site's program, bound to that site's records."""
        return WeightedMeanSite(self, site_id)

    def site_data(self, site_id: SiteId) -> SiteData:
        """One site's checked records.

        Raises:
            DataError: records that cannot be used.
        """
        data, shape = self.data.site(site_id), self.data.input_shape
        return check_site(site_id, data, input_shape=shape, classes=self.data.classes)

    def evaluate(self, model: nn.Module, data: SiteData, device: torch.device) -> dict[str, torch.Tensor]:
        """Sums over the held-out records of one site, by field name."""
        return classification.evaluate(
            model, data.test_x, data.test_y, classes=self.data.classes, device=device
        )

    def per_site(self, model: State) -> Mapping[SiteId, Metrics]:
        """Metrics of the model at every site; nothing where sites use another model."""
        if self.personal:
            return {}
        device = choose_device(self.options.device)
        network = self.setting.model().to(device)
        write_parameters(network, model)
        return {
            site: classification.finish(
                self.evaluate(network, self.site_data(site), device), self.data.classes
            )
            for site in self.setting.sites
        }


class WeightedMeanSite(SiteProgram):
    """Runs inside one hospital. Keeps between rounds what the algorithm's ``site_memory`` names."""

    def __init__(self, algorithm: WeightedMean, site_id: SiteId) -> None:
        self._algorithm, self._site_id = algorithm, site_id
        self._data = algorithm.site_data(site_id)
        self._device = choose_device(algorithm.options.device)
        self._model = algorithm.setting.model().to(self._device)
        self._memory = copies(algorithm.site_memory())
        self._privacy: LocalPrivacy | None = None

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """Train under privacy from now on.

        Raises:
            ConfigError: no noise reaches the study's epsilon, or a relation that hides patients without any.
        """
        privacy.plan(*self._algorithm.phases(self._data))
        self._privacy = privacy

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """The weight, and how many records are held out. Counts that leave with noise are not among them."""
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
        received = self._algorithm.model_in(broadcast)
        names = {field.name for field in exchange.layout.fields}
        memory = self._memory  # evaluation uses what it was, in either order
        summands: dict[str, torch.Tensor | float] = {}

        def evaluate() -> None:
            if any(name.startswith("eval/") for name in names):
                summands.update(otherwise({}, self._evaluate_on, received, memory))

        if self._privacy is None:
            evaluate()
        if exchange.name == UPDATE:
            summands.update(otherwise({}, self._train_on, round_number, received, part_of(broadcast, _STATE)))
        if self._privacy is not None:
            evaluate()  # training comes first: it pays, or refuses, before any record is touched
        summands.update(self.settled(round_number, exchange))
        return {name: value for name, value in summands.items() if name in names}

    def save(self) -> State:
        """What this site keeps; nothing for most algorithms."""
        return copies(self._memory)

    def load(self, state: State) -> None:
        """Continue from :meth:`save`.

        Raises:
            MalformedMessage: kept by another study.
        """
        self._memory = model_of(state, self._memory, "")

    def _check(self, round_number: int, exchange: Exchange) -> None:
        if exchange not in self._algorithm.exchanges(round_number):
            raise no_exchange(round_number, exchange)

    @property
    def _noisy_metrics(self) -> bool:
        settings = self._algorithm.setting.study.privacy
        return settings is not None and settings.metrics == "private"

    def _evaluate_on(self, received: State, memory: State) -> Summands:
        """Sums over the held-out records of this site; with noise they are paid for first."""
        write_parameters(self._model, received)  # training may have moved them
        self._algorithm.personalise(self._model, memory)

        def sums() -> dict[str, torch.Tensor]:
            return self._algorithm.evaluate(self._model, self._data, self._device)

        if not self._noisy_metrics:
            return sums()
        if self._privacy is None:
            raise WrongState("private metrics need a site's privacy")
        fields = classification.fields(self._algorithm.data.classes, noisy=True)
        noisy = {field.name: field.shape for field in fields}
        return self._privacy.release_sums(sums, noisy, l2=classification.NOISY_L2)

    def _train_on(self, round_number: int, received: State, shared: State) -> Summands:
        write_parameters(self._model, received)  # evaluation may have personalised them
        algorithm, memory = self._algorithm, copies(self._memory)
        seed = algorithm.setting.local_seed
        context = LocalContext(
            self._site_id, round_number, received, shared, memory, self._device, seed, self._privacy
        )
        algorithm.receive(context)
        self._memory = copies(context.memory)
        given = algorithm.local_update(self._model, self._data, context)
        if is_finite(context.memory):  # a failed update leaves what the site keeps as it was
            self._memory = copies(context.memory)
        weight = algorithm.weight(len(self._data.train_y))
        return {name: weight * value for name, value in given.items()}


class WeightedMeanServer(ModelServer):
    """Moves the model by what the algorithm makes of the weighted means; reads totals only."""

    def __init__(self, algorithm: WeightedMean) -> None:
        super().__init__(algorithm.initial)
        self._algorithm = algorithm
        self._state = copies(algorithm.server_state())

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """The current model, and the server's state where sites need it."""
        del round_number, exchange
        return {**self.model(), **(self._named_state() if self._algorithm.shares_state else {})}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange: metrics of the model that was broadcast, then the step to the next.

        ``train_loss`` is the mean loss while training from that model, so the last model has none.
        """
        metrics = self._metrics.of(round_number - 1)
        metrics.update(classification.finish(totals, self._algorithm.data.classes))
        if exchange.name != UPDATE:
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
        return {**super().save(), **self._named_state()}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`.

        Raises:
            MalformedMessage: a checkpoint of another model.
        """
        super().load(state)
        self._state = model_of(state, self._state, _STATE)

    def _named_state(self) -> dict[str, torch.Tensor]:
        return {_STATE + name: value.clone() for name, value in self._state.items()}
