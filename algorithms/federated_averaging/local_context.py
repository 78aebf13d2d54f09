"""What one site's training of one round is given beside model and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.randomness import seeded, torch_generator
from secfed.dp.training.plain_loop import Training, train_locally
from secfed.wire.layout import State

if TYPE_CHECKING:
    from secfed.dp.training.local_privacy import LocalPrivacy

TRAIN: Final = "train"  # the phase of training that leaves, as dp.training.local_privacy names it


@dataclass(frozen=True)
class LocalContext:
    """The place of one training in the study.

    Attributes:
        site: whose.
        round: counted from 1.
        received: the model that was broadcast.
        shared: the server's state, if the algorithm shares it.
        memory: what this site keeps between rounds. What is written here is kept if it is finite and the
            training did not fail; it never leaves the site.
        device: where the model is.
        seed: of what only this site's own work draws.
        privacy: runs every step, under the study's ``[privacy]``; None without.
    """

    site: SiteId
    round: int
    received: State
    shared: State
    memory: dict[str, torch.Tensor]
    device: torch.device
    seed: int
    privacy: LocalPrivacy | None = None

    def generator(self, phase: str = TRAIN) -> torch.Generator:
        """Decides the order of the records."""
        return torch_generator(self.seed, "order", *_more(phase), self.site, self.round)

    def train(self, training: Training, epochs: int, phase: str = TRAIN) -> float:
        """Train in place; under ``[privacy]`` paid for, clipped and with noise.

        Args:
            training: model, optimiser, loss and batches.
            epochs: passes over the records.
            phase: one of the algorithm's ``phases``.

        Returns:
            Mean training loss per record; NaN under privacy.

        Raises:
            BudgetExceeded: the site's budget does not cover it.
        """
        if self.privacy is not None:
            # Random layers then draw from the site's secret stream: a public seed would undo the guarantee.
            return self.privacy.train_locally(training, epochs=epochs, device=self.device, phase=phase)
        with seeded(self.seed, "train", *_more(phase), self.site, self.round):  # for random layers
            return train_locally(training, epochs=epochs, device=self.device)


def _more(phase: str) -> tuple[str, ...]:
    return () if phase == TRAIN else (phase,)
