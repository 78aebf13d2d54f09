"""Federated averaging: each site trains the received model, and the server moves it by the mean update.

Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.federated_averaging.weighted_mean import WeightedMean
from secfed.algorithms.federated_averaging.weighted_plan import NOISED
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.registry import register
from secfed.dp.training.plain_loop import Training, make_loader, make_optimiser
from secfed.wire.layout import Summands


@register("fedavg", options=FedAvgOptions)
class FedAvg(WeightedMean):
    """Federated averaging, bound to one study."""

    options: FedAvgOptions
    private_units: ClassVar[tuple[str, ...]] = ("record", "group", "site")
    noised_fields: ClassVar[tuple[str, ...]] = NOISED

    def training(self, model: nn.Module, data: SiteData, generator: torch.Generator) -> Training:
        """One site's training of one round; variants change it here. The generator orders the records."""
        options = self.options
        optimiser = make_optimiser(
            model,
            options.optimizer,
            learning_rate=options.learning_rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
        )
        loader = make_loader(
            data.train_x,
            data.train_y,
            batch_size=options.batch_size,
            generator=generator,
            # One record has no spread to be normalised by.
            single=options.batch_norm in (None, "frozen"),
        )
        return Training(model, optimiser, self.task.criterion, loader)

    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        """How far training moved the parameters, and its mean loss."""
        training = self.training(model, data, context.generator())
        loss = context.train(training, self.options.local_epochs)
        return {**self.difference(model, context.received), "train_loss": loss}
