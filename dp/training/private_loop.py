"""Private local training: Poisson sampling, clipping, noise; the algorithm's code does not notice.

    spend -> (draw units -> clip each -> sum on the grid -> add noise -> optimiser step) x steps

One step releases  (sum of clipped unit gradients + N(0, (sigma C')^2 I)) / M  with M = q * units, the
*expected* number of units: dividing by the drawn number would release it. An empty draw releases pure
noise. A unit that cannot be fetched, has no finite gradient, or makes the model or the loss fail adds zeros:
neither the other units nor the noise change, so that no record can be found by making a step fail. The
optimiser, weight decay, momentum and step hooks see only that, so they are post-processing.

Source: Abadi et al. 2016, algorithm 1. How the noise is made: :mod:`secfed.dp.training.mechanism`; random
layers: :mod:`secfed.dp.training.layers`.

Security: the number of records n is treated as public (q = M / n fixes M). The loss value that training
reports is computed without noise: it must stay at the site, or be released as an event of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from secfed.dp.accounting.events import Event
from secfed.dp.accounting.unit import GroupPartition, Unit
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.engine_check import checked_engine, one_by_one
from secfed.dp.training.engines import (
    ClippedSum,
    Engine,
    EngineChoice,
    EngineName,
    LoopEngine,
    attached,
    first_choice,
)
from secfed.dp.training.guards import check_model
from secfed.dp.training.layers import secret_layers
from secfed.dp.training.losses import Batch, DeclaredLoss, require_decomposes
from secfed.dp.training.mechanism import GaussianNoise, Mechanism
from secfed.dp.training.patient_records import Records, TensorRecords
from secfed.errors import ConfigError, DataError
from secfed.wire.parts import failed

Spend = Callable[[Event], object]
_Unit = TypeVar("_Unit")


class PrivateTraining:
    """Runs local steps under a mechanism.

    ``random`` is the source of sampling and noise (None draws a fresh key; a seeded one is for simulation
    only); hooks and ghost cut draws of more than ``max_records`` into several forward passes; ``spend`` is
    called with the event before any data is touched, and raises to refuse (see the ledger). A ``blank``
    record stands for none and is never drawn: with the only record added or removed a sum moves by C. If it
    were drawn, that would be a replacement, and 2C. ``engine`` "auto" is "ghost", or "hooks" where that
    refuses the model or disagrees with the loop on made-up records; ``used`` says what it was in the end.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        engine: EngineChoice = "auto",
        partition: GroupPartition | None = None,
        random: SecureRandom | None = None,
        max_records: int = 256,
        spend: Spend | None = None,
        blank: bool = False,
    ) -> None:
        grouped = mechanism.unit.unit is Unit.GROUP
        if grouped != (partition is not None):
            raise ConfigError("a partition belongs to privacy.unit = group, and the other way round")
        if engine == "auto" and grouped:
            engine = "loop"
        if grouped and engine != "loop":
            raise ConfigError(
                f"engine {engine!r} clips single records, not groups", remedy='use engine = "loop"'
            )
        if max_records < 1:
            raise ConfigError(f"max_records = {max_records} is below 1")
        self.mechanism, self.engine, self._partition = mechanism, engine, partition
        self._random = random or SecureRandom()
        self._max_records, self._spend, self.blank = max_records, spend, blank
        self.used: EngineName | None = None  # known once a session has begun
        # Whether the engine was found to agree with the loop; the same model and loss need it only once.
        self.checked = False
        self.clip_norm = mechanism.clip_norm  # moves from step to step if the mechanism is adaptive

    def run(
        self, model: nn.Module, optimiser: Optimizer, loss: DeclaredLoss, data: Batch | Records, *, steps: int
    ) -> None:
        """Train ``model`` in place for exactly ``steps`` steps; so many are paid, also if it is interrupted.

        Raises what ``spend`` does, before data is touched; ConfigError for a loss or model that the unit
        cannot protect, DataError for records of another number than the partition's.
        """
        records = TensorRecords(data) if isinstance(data, tuple) else data
        with self.session(model, optimiser, loss, records=len(records), steps=steps) as session:
            for _ in range(steps):
                session.step(records)

    def session(
        self, model: nn.Module, optimiser: Optimizer, loss: DeclaredLoss, *, records: int, steps: int
    ) -> Session:
        """Begin ``steps`` paid steps, for loops that are written elsewhere; raises as :meth:`run` does."""
        if self.mechanism.unit.unit is Unit.RECORD:
            require_decomposes(loss)
        parameters = check_model(model, optimiser)
        # Where an engine was found to agree, it is the one to go on with.
        choice = self.used if self.checked and self.used else self.engine
        self.used = first_choice(choice, model, self.mechanism.sampling_rate * records)
        if self._partition is not None and self._partition.records != records:
            raise DataError(
                f"the partition divides {self._partition.records} records, the data has {records}"
            )
        if records < 1 or steps < 1:
            raise DataError(f"{records} records and {steps} steps: nothing to train")
        if self._spend is not None:
            self._spend(self.mechanism.event(steps))
        units = records if self._partition is None else len(self._partition)
        return Session(self, model, optimiser, loss, parameters, units, steps, self.used)


class Session:
    """A number of paid steps on one model. Made by :meth:`PrivateTraining.session`."""

    def __init__(
        self,
        training: PrivateTraining,
        model: nn.Module,
        optimiser: Optimizer,
        loss: DeclaredLoss,
        parameters: dict[str, nn.Parameter],
        units: int,
        steps: int,
        engine: EngineName,
    ) -> None:
        self._engine_name, self._attached = engine, ExitStack()
        self._training, self._model, self._optimiser, self._loss = training, model, optimiser, loss
        self._parameters, self._units, self.steps_left = parameters, units, steps
        self._modes = [(part, part.training) for part in model.modules()]
        self._checked = training.checked
        self._spent: ClippedSum | None = None  # the sum of the step before, whose memory is used again
        self.noise = self._noise()

    def __enter__(self) -> Session:
        with ExitStack() as stack:
            self._layers = stack.enter_context(secret_layers(self._model, self._training._random))
            stack.callback(self._attached.close)
            self._engine = self._attach()
            self._open = stack.pop_all()
        self._set_modes()
        return self

    def __exit__(self, *problem: object) -> None:
        self._open.close()
        for part, training in self._modes:
            part.training = training
        self._optimiser.zero_grad(set_to_none=True)

    def _attach(self) -> Engine:
        """Put the engine on the model, in the place of one that was there."""
        self._attached.close()
        self._training.used = self._engine_name
        try:
            return self._attached.enter_context(attached(self._engine_name, self._model, self._loss))
        except ConfigError:
            if not self._has_other():
                raise
            return self._attach()

    def _has_other(self) -> bool:
        """Turn to "hooks", if the engine may be chosen and "ghost" does not fit."""
        other = self._training.engine == "auto" and self._engine_name == "ghost"
        if other:
            self._engine_name = "hooks"
        return other

    def _set_modes(self) -> None:
        """Training mode, except where a caller left wholly frozen parts of a model in training at rest."""
        was_training = self._model.training
        self._model.train()
        for part, training in self._modes:
            if was_training and not training and not any(one.requires_grad for one in part.parameters()):
                part.training = False

    def _noise(self) -> GaussianNoise:
        training = self._training
        return GaussianNoise.of(training.mechanism, training.clip_norm, self._parameters, training._random)

    @property
    def expected_units(self) -> float:
        """M: the expected number of units in a step, the divisor of every sum."""
        return self._training.mechanism.sampling_rate * self._units

    def draw(self) -> list[NDArray[np.int64]]:
        """The record indices of one step's units; possibly none, and none where no record is there."""
        drawn = self._training._random.poisson_sample(self._training.mechanism.sampling_rate, self._units)
        if self._training.blank:
            return []
        if self._training._partition is not None:
            return [self._training._partition.groups[group] for group in drawn]
        return [drawn[index : index + 1] for index in range(len(drawn))]

    def step(self, records: Records) -> None:
        """Draw units, and take one optimiser step on their noisy clipped sum."""
        self.release(self.draw(), records)

    def release(self, units: list[NDArray[np.int64]], records: Records) -> None:
        """One release: the clipped sum of these units, noise, and the optimiser's step.

        ConfigError for more steps than were paid for, and as :meth:`clipped_sum`.
        """
        self._begin_step()
        # Nothing else draws between the units and the noise, so its numbers are the same. An engine that is
        # still to be checked may refuse, and a refusal must leave the stream where it is.
        with self.noise.drawn_ahead(self._parameters) if self._checked else nullcontext():
            self._finish_step(self.clipped_sum(units, records))

    def clipped_sum(self, units: list[NDArray[np.int64]], records: Records) -> ClippedSum:
        """The sum over units, without noise: it must not leave as it is.

        ConfigError, on made-up records, for an engine that disagrees with the loop, or a model that changes
        its buffers.
        """
        try:
            batches = [records.take(indices) for indices in self._batches(units)]
        except Exception as problem:  # noqa: BLE001 - which error it is could depend on records
            failed(problem)
            return self._one_by_one(units, records.take)
        return self._checked_sum(batches)

    def _batches(self, units: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """One index array per forward pass: a unit for the loop, up to ``max_records`` rows otherwise."""
        if self._engine_name == "loop" or not units:
            return units
        rows, size = np.concatenate(units), self._training._max_records
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def _clipped(self, batches: Sequence[Batch]) -> ClippedSum:
        """The sum over these units. Those that make the model or the loss fail count, and add zeros.

        Where an engine cannot sum a batch, for example because no record of it reaches some layer, every
        unit is summed by itself. What a unit adds is then the same, but for the last digits that the
        mechanism's slack pays for, so that a record that makes a batch fail, or keeps it from failing,
        changes nothing but its own part.
        """
        if self._engine_name != "loop":
            total = self._sum(batches)
            if total is not None:
                return total
            batches = [row for batch in batches for row in one_by_one(batch)]
        return self._one_by_one(batches, lambda unit: unit)

    def _sum(self, batches: Sequence[Batch]) -> ClippedSum | None:
        """None if the engine fails, or its sum is not finite."""
        total = self._empty()
        try:
            self._engine.add(batches, total)
        except Exception as problem:  # noqa: BLE001 - which error it is could depend on records
            failed(problem)
            self._engine.abandon()
            return None
        return total if total.is_finite() else None

    def _one_by_one(self, units: Sequence[_Unit], fetch: Callable[[_Unit], Batch]) -> ClippedSum:
        """The sum by the plain loop; a unit that cannot be fetched or computed by itself adds zeros.

        No batch, and so no other unit, decides what a unit adds.
        """
        total, loop = self._empty(), LoopEngine(self._model, self._loss)
        with self._engine.paused():
            for unit in units:
                try:
                    loop.add([fetch(unit)], total)
                except Exception as problem:  # noqa: BLE001 - which error it is could depend on records
                    failed(problem)
        total.units = len(units)
        return total

    def _empty(self) -> ClippedSum:
        spent, self._spent = self._spent, None
        return ClippedSum(
            self._parameters, clip_norm=self._training.clip_norm, grid=self.noise.grid, instead_of=spent
        )

    def _checked_sum(self, batches: Sequence[Batch]) -> ClippedSum:
        while batches and not self._checked:
            attached = self._engine
            try:
                self._engine = checked_engine(
                    self._engine_name, attached, self._model, self._loss, batches[0]
                )
            except ConfigError:
                if not self._has_other():
                    raise
                self._engine = self._attach()
                continue
            self._checked, self._training.checked = True, self._engine is attached
        return self._clipped(batches)

    def _begin_step(self) -> None:
        if self.steps_left < 1:
            raise ConfigError("more private steps than the budget was charged for")
        self.steps_left -= 1

    def _finish_step(self, total: ClippedSum) -> None:
        """Noise, and the optimiser's step."""
        training = self._training
        self.noise.write_gradients(total, self.expected_units)
        self._spent = total
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._layers.renew()
        if training.mechanism.adaptive is not None:
            training.clip_norm = training.mechanism.adaptive.next_norm(
                training.clip_norm,
                within=total.within,
                units=total.units,
                expected_units=self.expected_units,
                random=training._random,
            )
            self.noise = self._noise()
