"""A site's private local work in one study: planned once, paid before every use, the same for any algorithm.

    plan(phases) -> noise that keeps the whole study within (epsilon, delta)
    enter(round, exchange) -> train_locally / run / release_sums, each paid in the ledger first

An algorithm says what it is going to do with records (:class:`Phase`); from that and the study's
``[privacy]`` table this object chooses sampling rate and noise, and later runs the steps. The algorithm
hands over model, optimiser, loss and data, and gets them back private.

Security: the number of records of a site is treated as public (see :mod:`secfed.dp.training`). Everything
that is planned is charged when it happens, never less: a round that was prepared and then aborted stays
paid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from secfed.algorithms.training import Training
from secfed.dp.accountant import accountant, calibrate
from secfed.dp.adaptive import AdaptiveClip
from secfed.dp.events import Event, Gaussian, PoissonSampledGaussian
from secfed.dp.ledger import Ledger
from secfed.dp.losses import Batch, UnitLoss
from secfed.dp.mechanism import Mechanism
from secfed.dp.randomness import SecureRandom
from secfed.dp.records import Records
from secfed.dp.sampler import NoiseSampler, RoundedNormal
from secfed.dp.training import PrivateTraining
from secfed.dp.unit import GroupPartition, PrivacyUnit, Unit
from secfed.errors import ConfigError, WrongState

if TYPE_CHECKING:
    from secfed.privacy_options import PrivacySection

TRAIN: Final = "train"
SUM_GRID_BITS: Final = 20


@dataclass(frozen=True)
class Phase:
    """One kind of private training in a study.

    Attributes:
        name: how the algorithm refers to it.
        records: how many records the site trains on.
        batch_size: expected number of records in a step.
        passes: passes over the records in the whole study.
    """

    name: str
    records: int
    batch_size: int
    passes: int


@dataclass(frozen=True)
class _Planned:
    mechanism: Mechanism
    partition: GroupPartition | None


class LocalPrivacy:
    """One site's private local work in one study.

    Args:
        settings: the study's ``[privacy]``; unit record or group.
        ledger: where every release is paid.
        study: study id.
        seed: the study's seed; decides groups only.
        random: (round, exchange) -> source of sampling and noise, fresh for each.

    Raises:
        ConfigError: settings for another unit.
    """

    def __init__(
        self,
        settings: PrivacySection,
        ledger: Ledger,
        *,
        study: str,
        seed: int,
        random: Callable[[int, str], SecureRandom],
    ) -> None:
        if not settings.in_local_steps:
            raise ConfigError(f'privacy.unit = "{settings.unit}" has no private local work')
        self._settings, self._ledger, self._study, self._seed = settings, ledger, study, seed
        self._random_of = random
        self._phases: dict[str, _Planned] = {}
        self._clip_norms: dict[str, float] = {}
        self._here: tuple[int, str] | None = None
        self._random = SecureRandom()

    @property
    def unit(self) -> PrivacyUnit:
        """What is protected."""
        return self._settings.privacy_unit

    @property
    def _sums_event(self) -> Gaussian | None:
        """The one release of metrics, if the study has one."""
        chosen = self._settings
        if chosen.metrics != "private":
            return None
        multiplier = _sums_multiplier(
            chosen.epsilon * chosen.metrics_share, chosen.delta, self.unit, chosen.accountant
        )
        return Gaussian(self.unit.adjacency, multiplier, 1)

    def plan(self, *phases: Phase) -> None:
        """Choose sampling rates and the noise for everything the study is going to do.

        Args:
            phases: all of them; every one gets the same noise multiplier.

        Raises:
            ConfigError: no noise reaches the study's epsilon.
        """
        chosen = self._settings
        rates: dict[str, tuple[float, GroupPartition | None]] = {}
        for phase in phases:
            partition = None
            units, size = phase.records, 1
            if chosen.group_size is not None:
                partition = GroupPartition.of(phase.records, chosen.group_size, seed=self._seed)
                units, size = len(partition), chosen.group_size
            rates[phase.name] = (min(1.0, max(1.0, phase.batch_size / size) / units), partition)
        work = tuple(
            (rates[phase.name][0], phase.passes * _steps(rates[phase.name][0]))
            for phase in phases
            if phase.passes
        )
        if not work:
            return
        noise = _noise_multiplier(
            chosen.epsilon, chosen.delta, self.unit, work, self._sums_event, chosen.accountant
        )
        for phase in phases:
            rate, partition = rates[phase.name]
            units = phase.records if partition is None else len(partition)
            adaptive = None
            if chosen.clip_quantile is not None:
                adaptive = AdaptiveClip(
                    chosen.clip_quantile, count_deviation=max(rate * units / 20.0, 2.0 * noise)
                )
            mechanism = Mechanism(self.unit, chosen.clip_norm, noise, rate, adaptive)
            self._phases[phase.name] = _Planned(mechanism, partition)

    def mechanism(self, phase: str = TRAIN) -> Mechanism:
        """The mechanism of a planned phase.

        Raises:
            WrongState: it was not planned.
        """
        return self._planned(phase).mechanism

    def _planned(self, phase: str) -> _Planned:
        if phase not in self._phases:
            raise WrongState(f"private training {phase!r} was not planned")
        return self._phases[phase]

    def enter(self, round_number: int, exchange: str) -> None:
        """Say where in the study the next work belongs; the site does, before the algorithm works."""
        self._here = (round_number, exchange)
        self._random = self._random_of(round_number, exchange)

    def _spender(self) -> Callable[[Event], object]:
        if self._here is None:
            raise WrongState("private work outside a round")
        number, exchange = self._here
        return self._ledger.spender(study=self._study, round_number=number, exchange=exchange)

    def training(self, phase: str = TRAIN) -> PrivateTraining:
        """The private training of a planned phase, for loops that are written elsewhere.

        Raises:
            WrongState: not planned, or outside a round.
        """
        planned = self._planned(phase)
        norm = self._clip_norms.get(phase, planned.mechanism.clip_norm)
        return PrivateTraining(
            replace(planned.mechanism, clip_norm=norm),
            engine="loop" if planned.partition is not None else self._settings.engine,
            partition=planned.partition,
            random=self._random,
            spend=self._spender(),
        )

    def train_locally(
        self, training: Training, *, epochs: int, device: torch.device, phase: str = TRAIN
    ) -> float:
        """The private counterpart of :func:`secfed.algorithms.training.train_locally`.

        Returns:
            NaN: the training loss was not paid for.

        Raises:
            BudgetExceeded: before any record is touched.
            ConfigError, DataError: a loss, model or data that the unit cannot protect.
        """
        private = self.training(phase)
        loss = private.train_locally(training, epochs=epochs, device=device)
        self._clip_norms[phase] = private.clip_norm
        return loss

    def run(
        self,
        model: torch.nn.Module,
        optimiser: torch.optim.Optimizer,
        loss: UnitLoss,
        data: Batch | Records,
        *,
        passes: int,
        phase: str = TRAIN,
    ) -> None:
        """Private passes over data, for algorithms with loops of their own.

        Raises:
            BudgetExceeded: before any record is touched.
            ConfigError, DataError: a loss, model or data that the unit cannot protect.
        """
        private = self.training(phase)
        steps = passes * private.mechanism.steps_per_pass
        private.run(model, optimiser, loss, data, steps=steps)
        self._clip_norms[phase] = private.clip_norm

    def release_sums(self, sums: Mapping[str, torch.Tensor], *, l2: float) -> dict[str, torch.Tensor]:
        """Sums over records, with noise; the study pays for one such release.

        Args:
            sums: what one record adds is a multiple of 2^-20 in every element, and over all of them
                together has L2 norm at most ``l2``; the caller owes both.
            l2: as above.

        Returns:
            float64 tensors of the same shapes.

        Raises:
            BudgetExceeded: a budget does not cover it.
            WrongState: the study does not release sums, or this is outside a round.
        """
        event = self._sums_event
        if event is None:
            raise WrongState("this study plans no private release of sums")
        self._spender()(event)
        deviation = event.noise_multiplier * l2
        sampler = NoiseSampler(RoundedNormal(deviation * 2.0**SUM_GRID_BITS), self._random)
        noised = {}
        for name, value in sums.items():
            grid = np.rint(value.to(torch.float64).numpy() * 2.0**SUM_GRID_BITS)
            noise = sampler.take(value.numel()).reshape(grid.shape)
            noised[name] = torch.from_numpy(np.asarray(grid + noise, dtype=np.float64)) * 2.0**-SUM_GRID_BITS
        return noised


def _steps(rate: float) -> int:
    return Mechanism(PrivacyUnit.default(Unit.RECORD), 1.0, 1.0, rate).steps_per_pass


# Sites of a simulation often have equally many records; a search takes about a second.
@lru_cache(maxsize=256)
def _noise_multiplier(
    epsilon: float,
    delta: float,
    unit: PrivacyUnit,
    work: tuple[tuple[float, int], ...],
    sums: Gaussian | None,
    name: str,
) -> float:
    def events(multiplier: float) -> Sequence[Event]:
        return [PoissonSampledGaussian(unit.adjacency, rate, multiplier, steps) for rate, steps in work]

    already = [] if sums is None else [sums]
    return calibrate(epsilon, delta, events, already=already, preferred=accountant(name))


@lru_cache(maxsize=64)
def _sums_multiplier(epsilon: float, delta: float, unit: PrivacyUnit, name: str) -> float:
    return calibrate(
        epsilon, delta, lambda noise: Gaussian(unit.adjacency, noise, 1), preferred=accountant(name)
    )
