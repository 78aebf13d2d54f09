"""A client that was written for Flower, as a hospital's half of federated averaging.

    class Mine(FlowerClients):
        def client(self, model, data):
            return MyNumPyClient(model, data.train_x, data.train_y)

``algorithm.name = "my_module:Mine"`` then runs it behind secure sums: ``fit`` is given the parameters that
the aggregator sent, and what it returns is averaged with the study's weights. Flower is not needed.
Left unused: the client's ``evaluate`` (sites evaluate as in every algorithm of weighted means) and what
``fit`` says of records and metrics, which nothing bounds. Under ``[privacy]`` only the site can be the
unit: a client's steps are its own, and nothing here could clip a record.

Source: flwr.client.NumPyClient, Flower 1.x (get_parameters, fit, evaluate).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.weighted_mean import WeightedMean
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.parameters import names_of
from secfed.algorithms.framework.randomness import seeded
from secfed.wire.layout import Summands

_ROWS: Final = 256  # of one forward pass


class FlowerClients(WeightedMean):
    """Federated averaging of what Flower clients train."""

    def client(self, model: nn.Module, data: SiteData) -> Any:
        """This site's NumPyClient; its parameters are ``model.state_dict().values()``, in that order."""
        raise NotImplementedError

    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        """How far the client's training moved the parameters, and the loss on its records afterwards."""
        before = {name: value.detach().clone() for name, value in model.state_dict().items()}
        given = [value.cpu().numpy().copy() for value in before.values()]
        moving = {name for names in names_of(model) if names[0] in self.trained for name in names}
        try:
            with seeded(context.seed, "train", context.site, context.round):
                fitted = self.client(model, data).fit(given, {"server_round": context.round})[0]
            _check_shapes(fitted, given)
        finally:
            # The client had the model in its hands. What does not travel has to stay what it is everywhere.
            _put(model, {name: value for name, value in before.items() if name not in moving})
        _put(model, {name: one for name, one in zip(before, fitted, strict=True) if name in self.trained})
        with torch.no_grad():
            known, device = data.train_y.to(context.device), context.device
            scores = torch.cat([model.eval()(x.to(device)) for x in torch.split(data.train_x, _ROWS)])
            loss = float(self.task.criterion(scores, known))
        return {**self.difference(model, context.received), "train_loss": loss}


def _check_shapes(fitted: Sequence[Any], given: Sequence[Any]) -> None:
    # No errors of secfed's own: a hospital adds zeros, so that nobody learns what its records caused.
    if len(fitted) != len(given):
        raise ValueError(f"fit returned {len(fitted)} arrays, not one per entry of model.state_dict()")
    for one, other in zip(fitted, given, strict=True):
        if np.shape(one) != other.shape:  # it would be broadcast, and train something else
            raise ValueError(f"fit returned an array of shape {np.shape(one)} in place of {other.shape}")


@torch.no_grad()
def _put(model: nn.Module, values: Mapping[str, Any]) -> None:
    state = model.state_dict()
    for name, value in values.items():
        state[name].copy_(torch.as_tensor(value).to(state[name].dtype))
