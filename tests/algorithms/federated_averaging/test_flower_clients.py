"""A Flower NumPyClient, written as its tutorials write it, behind secure sums."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.client import NumPyClient
from torch import nn

from secfed import Study, simulate
from secfed.algorithms.federated_averaging.flower_clients import FlowerClients
from secfed.algorithms.framework.parameters import read_parameters, trainable
from secfed.errors import ConfigError
from secfed.testing import check_algorithm


class Client(NumPyClient):
    def __init__(self, net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        self.net, self.x, self.y = net, x, y

    def get_parameters(self, config: dict[str, Any]) -> list[Any]:
        del config
        return [value.cpu().numpy() for value in self.net.state_dict().values()]

    def set_parameters(self, parameters: list[Any]) -> None:
        pairs = zip(self.net.state_dict(), parameters, strict=True)
        self.net.load_state_dict(OrderedDict((key, torch.tensor(value)) for key, value in pairs))

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, float]]:
        self.set_parameters(parameters)
        optimiser = torch.optim.SGD(self.net.parameters(), lr=0.1)
        for _ in range(5):
            optimiser.zero_grad()
            nn.functional.cross_entropy(self.net(self.x), self.y).backward()
            optimiser.step()
        return self.get_parameters(config), len(self.x), {}


class Mine(FlowerClients):
    def client(self, model: nn.Module, data: Any) -> Client:
        return Client(model, data.train_x, data.train_y)


class Short(Mine):
    def client(self, model: nn.Module, data: Any) -> Any:
        class Some(Client):
            def get_parameters(self, config: dict[str, Any]) -> list[Any]:
                return super().get_parameters(config)[:1]

        return Some(model, data.train_x, data.train_y)


def study(algorithm: type[FlowerClients], **tables: Any) -> Study:
    return Study.of(
        study={"name": "flower", "rounds": 3},
        algorithm={"name": algorithm, "weighting": "equal"},
        model={"name": "logistic-regression"},
        data={"name": "breast-cancer", "sites": 3, "standardize": "public"},
        **tables,
    )


def test_a_client_of_flower_trains_under_masks() -> None:
    report = simulate(study(Mine))
    assert report.protection == "masked"
    assert report.final["accuracy"] > 0.8
    assert not report.zeroed


def test_it_is_an_algorithm_like_any_other() -> None:
    check_algorithm(Mine)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ConfigError, match="1 arrays, not one per entry"):
        simulate(study(Short))


def test_a_client_never_trains_under_privacy_of_records() -> None:
    privacy = {"unit": "record", "epsilon": 8.0, "delta": 1e-4, "clip_norm": 1.0, "metrics": "unprotected"}
    with pytest.raises(ConfigError, match="does not train with the record as unit"):
        simulate(study(Mine, privacy=privacy))


class Partly(nn.Module):
    """A frozen layer, a buffer, and one that trains under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 3)
        self.again = nn.Linear(3, 3, bias=False)
        self.again.weight = self.head.weight
        self.body.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.head(self.body(x)))


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_moves_nothing_but_what_trains(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    model, data = Partly(), SimpleNamespace(train_x=torch.ones(2, 3), train_y=torch.zeros(2))
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def fit(given: list[Any], _config: object) -> tuple[list[Any], int, dict[str, float]]:
        with torch.no_grad():
            for value in model.state_dict().values():
                value.add_(7.0)  # the model itself is in its hands
        if fails:
            raise RuntimeError("of its own")
        return [array + 1.0 for array in given], 2, {}

    algorithm: Any = Mine.__new__(Mine)
    algorithm.trained, algorithm.task = trainable(model), SimpleNamespace(criterion=lambda *_: 0.0)
    monkeypatch.setattr(algorithm, "client", lambda *_: SimpleNamespace(fit=fit))
    context: Any = SimpleNamespace(
        seed=1, site="a", round=1, device=torch.device("cpu"), received=read_parameters(model)
    )
    with pytest.raises(RuntimeError) if fails else nullcontext():
        given = algorithm.local_update(model, data, context)
        assert set(given) == {"update/head.weight", "update/head.bias", "train_loss"}
        assert torch.allclose(given["update/head.weight"], torch.ones(3, 3))
    stays = ("body.weight", "body.bias", "seen")
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in stays)
    if not fails:
        monkeypatch.setattr(
            algorithm, "client", lambda *_: SimpleNamespace(fit=lambda g, _c: ([0.0] * len(g),))
        )
        with pytest.raises(ValueError, match="shape"):
            algorithm.local_update(model, data, context)
