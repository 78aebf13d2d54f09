"""What a site does with single records, or groups of them, when the secure sum carries the noise.

    settings, records -> is delta small enough for them? which records form a unit?
    model, loss, records -> the sum of clipped gradients, one for each unit, without noise

Nothing here adds noise, and nothing is paid: the site pays for every sum before its work begins
(:mod:`secfed.site.privacy`). Every unit takes part in every sum, so there is no sampling to be secret.

Security: the sums must leave in the exchange whose noise was planned for them, and in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from secfed.dp.accounting.unit import Adjacency, GroupPartition
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.settings import PrivacySection
from secfed.dp.training.engines import ClippedSum
from secfed.dp.training.exact_engine import ExactEngine
from secfed.dp.training.guards import check_model
from secfed.dp.training.local_plan import MAX_DELTA_TIMES_RECORDS, delta_is_weak
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.dp.training.mechanism import SLACK, Mechanism
from secfed.dp.training.optimisers import eager
from secfed.dp.training.patient_records import Records, TensorRecords
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError

# What one unit adds to other sums in float64, over its bound: m additions err by m^2 2^-53 of it at most.
ADDED_UP: Final = 1.0 + 2.0**-16
GRADIENT_NORM: Final = 1.0 + SLACK  # what one unit adds to a sum of gradients, over C; see UnitSums.gradients
_MOST_UNITS: Final = 1 << 18


class UnitSums:
    """One site's units in one study.

    ``seed`` decides groups only; ``random`` maps (round, exchange) to a source for random layers, fresh for
    each. A study whose delta times the site's records is ``max_delta_times_records`` or more is refused.
    """

    def __init__(
        self,
        settings: PrivacySection,
        *,
        seed: int,
        random: Callable[[int, str], SecureRandom],
        max_delta_times_records: float = MAX_DELTA_TIMES_RECORDS,
    ) -> None:
        self.settings, self._seed, self._random_of = settings, seed, random
        self._max_delta_times_records = max_delta_times_records
        self.weak_delta = False  # once planned: whether delta is 1 / (records of this site) or more
        self.partition: GroupPartition | None = None
        self._checked: tuple[nn.Module, str] | None = None  # for which the loop passed its guards
        self._exact: tuple[nn.Module, object, ExactEngine | None] | None = None  # model, criterion, engine
        self.random = SecureRandom()
        self._blank = False

    def plan(
        self, records: int, patients: Sequence[int] | None = None, *, blank: bool = False
    ) -> list[NDArray[np.int64]]:
        """The record indices of every unit. A ``blank`` record stands for none: gradients are zeros then.

        ConfigError for a delta that is too large for so many records, or more units than a sum is sound for.
        """
        self.weak_delta = delta_is_weak(self.settings, records, self._max_delta_times_records)
        self._blank = blank
        units = list(np.arange(records).reshape(-1, 1))
        if self.settings.group_size is not None:
            self.partition = GroupPartition.under(
                self.settings.privacy_unit,
                records,
                self.settings.group_size,
                seed=self._seed,
                patients=patients,
            )
            units = list(self.partition.groups)
        self._check_count(len(units))
        return units

    def weights(self, records: int, patients: Sequence[int] | None = None) -> torch.Tensor | None:
        """How much each record counts where what a single one adds is bounded: [records], None for 1 each.

        The records of a unit share a weight of 1: they add a mean of what single ones add, which is within
        the same bound. Patients are such units themselves, for nothing couples those of a group; of one with
        more records than a group holds, the others count 0.

        ConfigError as :meth:`plan`.
        """
        units = self.plan(records, patients)
        self._check_count(records)
        if self.partition is None:
            return None
        found = np.zeros(records)
        for unit in units:
            found[unit] = 1.0 / len(unit)
            if self.settings.privacy_unit.adjacency is Adjacency.REPLACE_PATIENT and patients is not None:
                _, whose, count = np.unique(
                    np.asarray(patients)[unit], return_inverse=True, return_counts=True
                )
                found[unit] = 1.0 / count[whose]
        return torch.from_numpy(found)

    @staticmethod
    def _check_count(count: int) -> None:
        if count > _MOST_UNITS:
            raise ConfigError(
                f'privacy.noise: "sum" adds up at most {_MOST_UNITS} records or groups of one site, not '
                f"{count}",
                remedy="use larger groups, or a part of the records",
            )

    def rest(self) -> None:
        """Forget the model that was worked on last."""
        self._checked = self._exact = None

    def enter(self, round_number: int, exchange: str) -> None:
        """Say where in the study the next work belongs; the site does, before the algorithm works."""
        self.random = self._random_of(round_number, exchange)

    def gradients(self, model: nn.Module, loss: DeclaredLoss, records: Records) -> dict[str, torch.Tensor]:
        """The sum over all units of their clipped gradients, by parameter name: float64, without noise.

        A unit that fails, or has no finite gradient, adds zeros. Two sums that differ in one unit are at most
        C * :data:`GRADIENT_NORM` apart: C for the unit, and the last digits in which 2^18 additions in
        float64 err (m terms of norm C, in any order: by m^2 2^-53 C at most; Higham 2002, section 4.2). What
        a unit adds must not depend on the others at all: in an ordinary batch the last digits of one row do,
        and whoever chooses the weights can make them as large as C. So records of models that
        :mod:`secfed.dp.training.exact_layers` knows run in its arithmetic, and every other unit by itself.

        ConfigError for a model or loss that the unit cannot protect.
        """
        settings, engine = self.settings, self._exact_engine(model, loss, records)
        if engine is not None:
            exact = ClippedSum(check_model(model), clip_norm=settings.clip_norm, grid=0.0)
            engine.add([] if self._blank else [_all_of(records)], exact)
            return exact.sums
        training = PrivateTraining(
            Mechanism(settings.privacy_unit, settings.clip_norm, 0.0, 1.0),
            engine="loop",
            partition=self.partition,
            random=self.random,
            blank=self._blank,
        )
        training.checked = self._checked == (model, loss.name)
        stepless = eager(torch.optim.SGD)(model.parameters())
        with training.session(model, stepless, loss, records=len(records), steps=1) as session:
            total = session.clipped_sum(session.draw(), records)
        if training.checked:
            self._checked = (model, loss.name)
        return total.sums

    def _exact_engine(self, model: nn.Module, loss: DeclaredLoss, records: Records) -> ExactEngine | None:
        """The engine for this model, compared with the loop once; None where each unit runs by itself."""
        if self.partition is not None or not isinstance(records, TensorRecords):
            return None
        if self._exact is None or self._exact[:2] != (model, loss.criterion):
            self._exact = model, loss.criterion, ExactEngine.of(model, loss, _all_of(records))
        return self._exact[2]

    def save(self) -> dict[str, torch.Tensor]:
        """Nothing: equal exchanges give equal sums."""
        return {}


def _all_of(records: Records) -> Batch:
    return records.take(np.arange(len(records)))
