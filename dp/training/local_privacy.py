"""A site's private local work in one study: planned once, paid before every use, the same for any algorithm.

    plan(phases, losses) -> noise that keeps the whole study within (epsilon, delta)
    enter(round, exchange) -> train_locally / run / release_loss / release_sums, each paid in the ledger first

Security: the number of records of a site is treated as public (see :mod:`secfed.dp.training.private_loop`).
Everything that is planned is charged when it happens, never less: a round that was prepared and then aborted
stays paid. Nothing that goes wrong with records stops a release or its payment: a unit that fails adds zeros
(to steps and sums) or counts as the cap (of losses), and the noise is that of every other release. Sampling
and noise of an exchange come from one source that is made anew when it is entered, so an exchange that is
repeated after a crash repeats the very same releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch.optim import Optimizer

from secfed.dp.accounting.events import Event
from secfed.dp.accounting.unit import PrivacyUnit
from secfed.dp.ledger.ledger import Ledger
from secfed.dp.mechanisms.loss_release import Evaluate, LossRelease, PlannedLosses
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.sampler import NoiseSampler, RoundedNormal
from secfed.dp.settings import PrivacySection
from secfed.dp.training.local_plan import (
    MAX_DELTA_TIMES_RECORDS,
    Phase,
    PlannedPhase,
    delta_is_weak,
    plan_losses,
    plan_phases,
    plan_sums,
)
from secfed.dp.training.losses import Batch, DeclaredLoss, supervised
from secfed.dp.training.mechanism import Mechanism
from secfed.dp.training.patient_records import LoaderRecords, Records
from secfed.dp.training.plain_loop import Training
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError, WrongState
from secfed.wire.parts import otherwise

__all__ = ["TRAIN", "WEAK_DELTA", "LocalPrivacy", "LossRelease", "Phase"]

TRAIN: Final = "train"
WEAK_DELTA: Final = (
    "privacy.delta is 1 / (training records of this site) or more: choose it well below, or the guarantee "
    "permits to publish a record outright"
)
SUM_GRID_BITS: Final = 20
_CLIP_NORM, _LOSSES = "clip_norm/", "loss_releases/"


class LocalPrivacy:
    """One site's private local work in one study.

    ``seed`` decides groups only; ``random`` maps (round, exchange) to a source of sampling and noise, fresh
    for each. A study whose delta times the site's records is ``max_delta_times_records`` or more is refused.
    """

    def __init__(
        self,
        settings: PrivacySection,
        ledger: Ledger,
        *,
        study: str,
        seed: int,
        random: Callable[[int, str], SecureRandom],
        max_delta_times_records: float = MAX_DELTA_TIMES_RECORDS,
    ) -> None:
        self.weak_delta = False  # once planned: whether delta is 1 / (records of this site) or more
        self.engines: set[str] = set()  # that clipped records so far
        self._max_delta_times_records = max_delta_times_records
        if not settings.in_local_steps:
            raise ConfigError(f'privacy.unit = "{settings.unit}" has no private local work')
        self._settings, self._ledger, self._study, self._seed = settings, ledger, study, seed
        self._random_of = random
        self._phases: dict[str, PlannedPhase] = {}
        self.planned: tuple[Event, ...] = ()  # once planned: all that this site pays in the study
        self.losses: PlannedLosses | None = None  # the planned releases
        self._losses_released: dict[tuple[int, str], int] = {}  # per place: one that is repeated counts once
        self._clip_norms: dict[str, float] = {}
        self._place: tuple[int, str] | None = None
        self._norms_before: dict[str, float] = {}  # as they were when the present place was first entered
        self._random = SecureRandom()

    @property
    def unit(self) -> PrivacyUnit:
        """What is protected."""
        return self._settings.privacy_unit

    def plan(self, *phases: Phase, losses: LossRelease | None = None) -> None:
        """Choose sampling rates and the noise for everything that the study is going to do."""
        records = max((phase.records for phase in phases), default=0)
        self.weak_delta = delta_is_weak(self._settings, records, self._max_delta_times_records)
        self.losses = plan_losses(self._settings, losses, self._seed)
        losses_event = None if self.losses is None else self.losses.all_events
        already = [event for event in (plan_sums(self._settings), losses_event) if event is not None]
        self._phases = plan_phases(self._settings, phases, already, self._seed)
        steps = [phase.mechanism.event(phase.steps) for phase in self._phases.values() if phase.steps]
        self.planned = (*already, *steps)

    def mechanism(self, phase: str = TRAIN) -> Mechanism:
        """The mechanism of a planned phase."""
        return self._planned(phase).mechanism

    def _planned(self, phase: str) -> PlannedPhase:
        if phase not in self._phases:
            raise WrongState(f"private training {phase!r} was not planned")
        return self._phases[phase]

    def enter(self, round_number: int, exchange: str) -> None:
        """Say where in the study the next work belongs; the site does, before the algorithm works.

        The same place once more is the same work once more: it starts from the clipping norms of the first
        time, so that it repeats that release. From others it would be a second release of the same noise.
        """
        if self._place == (round_number, exchange):
            self._clip_norms = dict(self._norms_before)
        else:
            self._norms_before = dict(self._clip_norms)
        self._place = (round_number, exchange)
        self._losses_released.pop(self._place, None)
        self._random = self._random_of(round_number, exchange)

    def _spender(self) -> Callable[[Event], object]:
        if self._place is None:
            raise WrongState("private work outside a round")
        number, exchange = self._place
        return self._ledger.spender(study=self._study, round_number=number, exchange=exchange)

    def training(self, phase: str = TRAIN) -> PrivateTraining:
        """The private training of a planned phase."""
        planned = self._planned(phase)
        norm = self._clip_norms.get(phase, planned.mechanism.clip_norm)
        return PrivateTraining(
            replace(planned.mechanism, clip_norm=norm),
            engine="loop" if planned.partition is not None else self._settings.engine,
            partition=planned.partition,
            random=self._random,
            spend=self._spender(),
            blank=planned.blank,
        )

    def train_locally(
        self, training: Training, *, epochs: int, device: torch.device, phase: str = TRAIN
    ) -> float:
        """The private counterpart of :func:`secfed.dp.training.plain_loop.train_locally`.

        The loader's order and batch size are replaced by Poisson sampling at the mechanism's rate q; one
        pass is ceil(1 / q) steps. Terms that do not depend on records stay in a step hook of the optimiser,
        without clipping. Returns NaN: the mean loss is a function of the records and was not paid for.
        """
        records = LoaderRecords(training.loader, device)
        loss = supervised(training.loss)
        self.run(training.model, training.optimiser, loss, records, passes=epochs, phase=phase)
        training.model.eval()
        return math.nan

    def run(
        self,
        model: torch.nn.Module,
        optimiser: Optimizer,
        loss: DeclaredLoss,
        data: Batch | Records,
        *,
        passes: int | None = None,
        steps: int | None = None,
        phase: str = TRAIN,
    ) -> None:
        """Private passes over data, or exactly so many steps, for algorithms with loops of their own.

        ``data`` are tensors with the records along the first dimension, or records by index; a pass has
        ``mechanism(phase).steps_per_pass`` steps, and the steps are what is paid.

        Raises BudgetExceeded before any record is touched, and as :meth:`PrivateTraining.run` does.
        """
        if (passes is None) == (steps is None):
            raise ConfigError(f"private training {phase!r}: give either passes or steps")
        private = self.training(phase)
        if steps is None:
            steps = (passes or 0) * private.mechanism.steps_per_pass
        private.run(model, optimiser, loss, data, steps=steps)
        if private.used is not None:
            self.engines.add(private.used)
        self._clip_norms[phase] = private.clip_norm

    def release_loss(self, evaluate: Evaluate) -> float:
        """This site's loss, with noise, clipped to the planned range; one of the planned releases.

        Whatever is computed from it (weights, what enters their sums, scales of later steps) needs no
        further noise. The same (round, exchange) gives the same noise. ``evaluate`` gives the mean loss of
        the *received* model on the records of one group; a group whose loss fails counts as the cap. What it
        may depend on: :meth:`secfed.dp.mechanisms.loss_release.PlannedLosses.release`. BudgetExceeded before
        any record is touched; WrongState for a release that is not planned, or outside a round.
        """
        losses = self.losses
        if losses is None:
            raise WrongState("this study plans no release of losses")
        spend, place = self._spender(), self._place
        if place is None or sum(self._losses_released.values()) >= losses.wanted.releases:
            raise WrongState(
                f"this study plans {losses.wanted.releases} releases of a site's loss, and they are used"
            )
        spend(losses.event)
        self._losses_released[place] = self._losses_released.get(place, 0) + 1
        return losses.release(evaluate, self._random)

    def release_sums(
        self,
        sums: Callable[[], Mapping[str, torch.Tensor]],
        shapes: Mapping[str, tuple[int, ...]],
        *,
        l2: float,
    ) -> dict[str, torch.Tensor]:
        """Sums over records, with noise, as float64; the one such release is paid before they are computed.

        What one record adds to ``sums`` must be a multiple of 2^-20 in every element, and have L2 norm at
        most ``l2`` over all of them together, also where the record makes a model fail; the caller owes both.
        A sum that is missing, has another shape than stated, or is not finite counts as zeros and gets its
        noise. BudgetExceeded and WrongState as in :meth:`release_loss`.
        """
        event = plan_sums(self._settings)
        if event is None:
            raise WrongState("this study plans no private release of sums")
        self._spender()(event)
        computed = otherwise({}, sums)
        deviation = event.noise_multiplier * l2
        sampler = NoiseSampler(RoundedNormal(deviation * 2.0**SUM_GRID_BITS), self._random)
        noised = {}
        for name, shape in shapes.items():
            value = computed.get(name)
            if value is None or tuple(value.shape) != shape or not bool(torch.isfinite(value).all()):
                value = torch.zeros(shape)
            grid = np.rint(value.to(torch.float64).numpy() * 2.0**SUM_GRID_BITS)
            noise = sampler.take(value.numel()).reshape(grid.shape)
            noised[name] = torch.from_numpy(np.asarray(grid + noise, dtype=np.float64)) * 2.0**-SUM_GRID_BITS
        return noised

    def save(self) -> dict[str, torch.Tensor]:
        """What the next process needs to go on: adapted clipping norms, and which losses were released."""
        norms = {
            _CLIP_NORM + phase: torch.tensor(norm, dtype=torch.float64)
            for phase, norm in self._clip_norms.items()
        }
        released = {
            f"{_LOSSES}{number}/{exchange}": torch.tensor(count, dtype=torch.int64)
            for (number, exchange), count in self._losses_released.items()
        }
        return {**norms, **released}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up what :meth:`save` gave; before anything is entered."""
        for name, value in state.items():
            if name.startswith(_CLIP_NORM):
                self._clip_norms[name.removeprefix(_CLIP_NORM)] = float(value)
            elif name.startswith(_LOSSES):
                number, exchange = name.removeprefix(_LOSSES).split("/", 1)
                self._losses_released[int(number), exchange] = int(value)
