"""What one site's training of one round is given beside model and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.randomness import seeded, torch_generator
from secfed.dp.training.plain_loop import Training, train_locally
from secfed.dp.training.step import StepSettings
from secfed.wire.layout import State

if TYPE_CHECKING:
    from secfed.dp.training.local_privacy import LocalPrivacy
    from secfed.dp.training.unit_sums import UnitSums

_PLAIN: Final = StepSettings()
TRAIN: Final = "train"  # the phase of training that leaves, as dp.training.local_privacy names it


@dataclass(frozen=True)
class LocalContext:
    """The place of one training in the study."""

    site: SiteId
    round: int  # counted from 1
    received: State  # the model that was broadcast
    shared: State  # the server's state, if the algorithm shares it
    # What this site keeps between rounds; it never leaves the site. What is written here is kept if it is
    # finite and the training did not fail.
    memory: dict[str, torch.Tensor]
    device: torch.device
    seed: int  # of what only this site's own work draws
    privacy: LocalPrivacy | None = None  # runs every step, under the study's [privacy]
    sums: UnitSums | None = None  # clips every unit, where the sum carries the noise
    settings: StepSettings = _PLAIN  # of steps without [privacy]
    rate: float = 1.0  # what the schedule multiplies the step size of this round by

    def generator(self, phase: str = TRAIN) -> torch.Generator:
        """Decides the order of the records."""
        return torch_generator(self.seed, "order", *_more(phase), self.site, self.round)

    def train(self, training: Training, epochs: int, phase: str = TRAIN) -> float:
        """Train in place: mean loss per record, or NaN under ``[privacy]``, where steps are paid for."""
        if self.rate != 1.0:
            for group in training.optimiser.param_groups:
                group["lr"] *= self.rate
        if self.privacy is not None:
            # Random layers then draw from the site's secret stream: a public seed would undo the guarantee.
            return self.privacy.train_locally(training, epochs=epochs, device=self.device, phase=phase)
        with seeded(self.seed, "train", *_more(phase), self.site, self.round):  # for random layers
            return train_locally(training, epochs=epochs, device=self.device, settings=self.settings)


def _more(phase: str) -> tuple[str, ...]:
    return () if phase == TRAIN else (phase,)
