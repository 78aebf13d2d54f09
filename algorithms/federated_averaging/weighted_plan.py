"""What an algorithm of weighted means may change, and the sums that follow: its public half.

The programs are in :mod:`secfed.algorithms.federated_averaging.weighted_mean`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import nn

from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.options import FedAvgOptions, MeanOptions
from secfed.algorithms.federated_averaging.selection import check_home, home_numbers, with_selection
from secfed.algorithms.framework.base import LOSS_BOUND, PARAMETERS, Algorithm, check_round
from secfed.algorithms.framework.batch_norm import BatchNorm, PooledStatistics, with_batch_norm
from secfed.algorithms.framework.datasets import SiteData, SiteId, check_site
from secfed.algorithms.framework.parameters import (
    check_scores,
    check_shapes,
    read_parameters,
    shapes_of,
    trainable,
)
from secfed.algorithms.framework.setting import FIXED_COHORT, Setting
from secfed.algorithms.framework.step_options import check_steps
from secfed.algorithms.tasks.choice import task_of
from secfed.config.schema import OwnOptions
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, Layout, State, Summands, Totals
from secfed.wire.layout import Field as Block

if TYPE_CHECKING:
    from secfed.dp.training.local_plan import Phase

UPDATE: Final = "update"
EVALUATE: Final = "evaluate"
STATE: Final = "state/"  # of the server, in broadcasts and checkpoints
STOPPED: Final = "study/stopped"  # in broadcasts of studies with patience: 1 once training has ended
_BESIDE: Final = (STATE, "study/")  # beside the model, in broadcasts
_EVERYONE: Final = "all"
NOISED: Final = (UPDATE, "eval", "weight")  # by FedAvg's local steps; a weight is constant or unprotected


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


class WeightedPlan(Algorithm):
    """Base of :class:`~secfed.algorithms.federated_averaging.weighted_mean.WeightedMean`.

    A class that writes a :meth:`local_update` supports the units of ``[privacy]`` that it declares in
    ``private_units``; if it declares none, ``site``, unless what it is derived from refuses that.
    """

    options_type = FedAvgOptions
    warm_start = True
    samples_sites = True
    shares_state: ClassVar[bool] = False  # whether sites receive server_state with the model
    personal: ClassVar[bool] = False  # whether a site uses another model, which personalise makes

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "local_update" in vars(cls) and "private_units" not in vars(cls):
            cls.private_units = tuple(unit for unit in cls.private_units if unit == "site")
        if "local_update" in vars(cls) and "summed_units" not in vars(cls):
            cls.summed_units = ()  # what bounds another update bounds nothing of this one

    def __init__(self, setting: Setting, options: MeanOptions) -> None:
        batch_norm = self._batch_norm(setting, options)
        self.given = setting  # without what this algorithm does to the model
        self.setting, self.options = with_selection(with_batch_norm(setting, batch_norm), options), options
        setting, self.data = self.setting, setting.labelled()
        self.task = task_of(setting, getattr(options, "task", "classification"))
        model = setting.model()
        self.trained = self.summed_parameters(model)
        if isinstance(setting.study.model, OwnOptions) or self.task.outputs != (self.data.classes,):
            check_scores(model, self.data.input_shape, self.task.outputs)
        self.initial: State = read_parameters(model)
        self.home = home_numbers(model)
        self.check_privacy()
        check_steps(options, setting.study.privacy)
        privacy = setting.study.privacy
        self._metrics = "unprotected" if privacy is None else privacy.metrics
        self._noise_in_sum = privacy is not None and privacy.in_sum
        self._sampled = setting.study.protection.sites_per_round is not None
        self._check_sampling()
        self._check_best()
        # Noise in the sum covers a whole exchange, so what leaves without noise has one of its own; where
        # cohorts change, evaluation has one that asks the same sites every time.
        self._evaluates_apart = self._noise_in_sum or self._sampled
        with_update = self._metrics == "unprotected" and not self._evaluates_apart
        most = setting.sites_in_a_sum
        update = Layout((*self._update_fields(), *self._evaluation(with_update)), sites=most)
        self._update = Exchange(UPDATE, _EVERYONE, update)
        evaluation = Layout(self._evaluation(True), sites=most)
        self._evaluate = Exchange(EVALUATE, _EVERYONE, evaluation)
        self.statistics: PooledStatistics | None = None
        if batch_norm == "pooled":
            self.statistics = PooledStatistics(setting, most, getattr(options, "activation_bound", 1.0))

    # --- what an algorithm writes ---

    @abstractmethod
    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        """One site's training of one round: trains ``model``, which holds the received parameters, in place.

        Returns:
            A value for every one of :meth:`fields`, not weighted, and ``train_loss``, the mean per record.
        """

    def server_step(self, model: State, mean: Means, state: dict[str, torch.Tensor]) -> State:
        """The parameters that change, from the means of what sites added; by default the model plus the mean.

        ``state`` is what :meth:`server_state` began; changed in place.
        """
        del state
        return {name: model[name].to(torch.float64) + mean[f"update/{name}"] for name in self.trained}

    def fields(self) -> tuple[Block, ...]:
        """What sites sum beside weights, losses and metrics; by default ``update/parameter``."""
        return self.fields_like_model("update")

    def counts(self, data: SiteData) -> Summands:
        """Those of :meth:`fields` that follow from how many records there are, not weighted.

        They are added where training fails, too: a sum that lacks one hospital's count would name it. In
        private local training they get no noise, so :meth:`unprotected` must name them. An algorithm that
        has any is refused with ``protection.sites_per_round``.
        """
        del data
        return {}

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
        """Names of the parameters that leave in sums; by default all that training changes."""
        return trainable(model)

    def check_privacy(self) -> None:
        """Refuse a study whose sums would tell what its ``[privacy]`` withholds, with a ConfigError."""
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

        options = self.options
        if not isinstance(options, FedAvgOptions):
            return ()
        passes = self.setting.study.rounds * options.local_epochs
        records, patients = len(data.train_y), data.train_patients
        return (Phase(TRAIN, records, options.batch_size, passes, patients=patients, blank=data.blank),)

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

    def rate(self, round_number: int) -> float:
        """What the local step size of a round is multiplied by."""
        options = self.options
        if not isinstance(options, FedAvgOptions):
            return 1.0
        return options.rate(round_number, self.setting.study.rounds)

    def weight(self, records: int) -> float:
        """A site's weight in the mean, 0 < w <= 1. It never leaves the site but inside a sum."""
        if self.options.weighting == "equal":
            return 1.0
        return min(records, self.options.weight_cap) / self.options.weight_cap

    # --- the plan ---

    @property
    def tells_steps(self) -> bool:
        """Whether weights that no record moves change with the number of steps: by weight decay, for one."""
        return float(getattr(self.options, "weight_decay", 0.0)) > 0

    def _check_sampling(self) -> None:
        """Refuse constant numbers in sums over changing cohorts: they are equations for every site's own."""
        if not self._sampled:
            return
        if self.options.weighting == "records":
            raise ConfigError(
                'protection.sites_per_round: with algorithm.weighting = "records" the sums over changing '
                "cohorts could be solved for every site's number of records",
                remedy='set algorithm.weighting = "equal", or remove protection.sites_per_round',
            )
        if type(self).counts is not WeightedPlan.counts:
            raise ConfigError(
                f"protection.sites_per_round: {self.setting.study.algorithm.name} sums what follows from "
                "numbers of records, and sums over changing cohorts could be solved for them",
                remedy="remove it, or use fedavg",
            )
        if self.tells_steps and self.setting.study.privacy is None:
            raise ConfigError(
                "protection.sites_per_round: numbers of local steps, hence of records, are in the updates of "
                "weights that no record moves, and sums over changing cohorts could be solved for them",
                remedy="remove it, add [privacy], or use fedavg with algorithm.weight_decay = 0",
            )

    def _check_best(self) -> None:
        """Refuse a choice by metrics that never leave, or of models of which sites keep a part."""
        options = self.options
        if options.keep == "best" and self.personal:
            raise ConfigError(
                "algorithm.keep: sites keep a part of the model, and that of the last round",
                remedy="remove it",
            )
        if (options.keep == "best" or options.patience) and self._metrics == "withheld":
            raise ConfigError(
                "algorithm.keep and algorithm.patience: are decided by metrics, which do not leave",
                remedy='remove them, or set privacy.metrics = "private" or "unprotected"',
            )

    def _batch_norm(self, setting: Setting, options: MeanOptions) -> BatchNorm | None:
        """What the study says of batch normalisation; refused where records would mix under ``[privacy]``."""
        kind: BatchNorm | None = getattr(options, "batch_norm", None)
        if kind == "local":
            raise ConfigError(
                'algorithm.batch_norm: "local" needs sites to keep these layers',
                remedy='set algorithm.name = "fedbn"',
            )
        if kind == "pooled" and setting.study.privacy is not None:
            raise ConfigError(
                'algorithm.batch_norm: "pooled" lets a record change the outputs of all others in its batch, '
                "and statistics of records leave, so no epsilon would be true",
                remedy='set algorithm.batch_norm = "frozen", or use torch.nn.GroupNorm',
            )
        return kind

    def _update_fields(self) -> tuple[Block, ...]:
        if self._noise_in_sum:
            return self.fields()
        weight = Block("weight", (), 1.0, 64)
        # A site's loss changes slowly: least squares over changing cohorts come close to it.
        if self.setting.study.privacy is not None or self._sampled:
            return (*self.fields(), weight)
        return (*self.fields(), weight, Block("train_loss", (), LOSS_BOUND, 64))

    def _evaluation(self, wanted: bool) -> tuple[Block, ...]:
        return self.task.fields(noisy=self.noisy_metrics) if wanted else ()

    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        """``update`` in rounds 1 to ``rounds``, then ``evaluate``; fewer where no metrics leave."""
        rounds = self.setting.study.rounds
        check_round(round_number, rounds)
        evaluate = () if self._metrics == "withheld" else (self._evaluate,)
        statistics = self._statistics_in(round_number)
        if round_number > rounds:
            return (*statistics, *evaluate)
        now = self._evaluates_apart and self._metrics == "unprotected" and self.evaluates(round_number)
        return (*statistics, *(evaluate if now else ()), self._update)

    def _statistics_in(self, round_number: int) -> tuple[Exchange, ...]:
        every: int = getattr(self.options, "statistics_every", 1)
        last = round_number > self.setting.study.rounds
        if self.statistics is None or not (last or (every and (round_number - 1) % every == 0)):
            return ()
        return self.statistics.exchanges

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[SiteId]) -> Sequence[SiteId]:
        """All sites, or those drawn: for the round to train, for the whole study to evaluate.

        Security: how many records of which class a site holds out is the same in every round. Summed over
        the cohorts of the rounds, it could be solved for (docs/adr/031).
        """
        draw = round_number if exchange.name == UPDATE else FIXED_COHORT
        return self.setting.cohort(draw, sites)

    def evaluates(self, round_number: int) -> bool:
        """Whether the model that a round begins with is evaluated, where that is an exchange of its own."""
        del round_number
        return True

    def field_words(self) -> Mapping[str, str]:
        """Of what every algorithm of weighted means sums."""
        return {
            UPDATE: PARAMETERS,
            "eval": "metrics over held-out records",
            "weight": "the weight",
            "train_loss": "the training loss",
        }

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
        state = shapes_of(self.server_state(), STATE) if self.shares_state else {}
        if self.options.patience is not None:
            state[STOPPED] = ()
        check_shapes(broadcast, shapes_of(self.initial) | state | shapes_of(self.home))
        check_home(self.home, broadcast)

    def model_in(self, broadcast: State) -> State:
        """The model in a broadcast, without what else is in it."""
        return {name: value for name, value in broadcast.items() if not name.startswith(_BESIDE)}

    def site_data(self, site_id: SiteId) -> SiteData:
        """One site's checked records."""
        data, shape = self.data.site(site_id), self.data.input_shape
        return check_site(site_id, data, input_shape=shape, targets=self.task.targets)

    @property
    def noisy_metrics(self) -> bool:
        """Whether metrics leave with noise."""
        return self._metrics == "private"

    def metric_noise(self, totals: Totals) -> float:
        """Standard deviation of the noise in every element of a sum of metrics; 0 for one without."""
        if not self.noisy_metrics or self._noise_in_sum:
            return totals.noise
        return self._site_noise * math.sqrt(len(totals.survivors))

    @cached_property
    def _site_noise(self) -> float:
        """Of one site's metrics; the study alone decides it."""
        from secfed.dp.training.local_plan import plan_sums  # the accountants are slow to import

        privacy = self.setting.study.privacy
        event = None if privacy is None else plan_sums(privacy)
        return 0.0 if event is None else event.noise_multiplier * (self.task.noisy_l2 or 0.0)

    def evaluate(self, model: nn.Module, data: SiteData, device: torch.device) -> dict[str, torch.Tensor]:
        """Sums over the held-out records of one site, by field name."""
        return self.task.evaluate(model, data.test_x, data.test_y, device=device)
