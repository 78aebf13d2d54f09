from __future__ import annotations

import pytest
import torch
from torch import nn

from secfed.algorithms.federated_averaging.fedprox import add_proximal_pull
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.loop import BREAST_CANCER, simulate

FEDPROX = BREAST_CANCER.replace('"fedavg"', '"fedprox"\nmu = 0.7')


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 4, generator=generator), torch.randint(0, 2, (8,), generator=generator)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_follows_the_gradient_of_loss_plus_half_mu_squared_distance(momentum):
    mu, one, other = 0.7, network(), network()
    hooked = torch.optim.SGD(one.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01)
    add_proximal_pull(hooked, mu)
    plain = torch.optim.SGD(other.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01)
    anchors = [p.detach().clone() for p in other.parameters()]
    for number in range(5):  # the first step is at the anchor, where the pull is zero
        x, y = batch(number)
        hooked.zero_grad()
        nn.functional.cross_entropy(one(x), y).backward()
        hooked.step()
        plain.zero_grad()
        distance = sum(((p - a) ** 2).sum() for p, a in zip(other.parameters(), anchors, strict=True))
        (nn.functional.cross_entropy(other(x), y) + mu / 2 * distance).backward()
        plain.step()
    for left, right in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(left, right, atol=1e-6)


def test_mu_zero_is_federated_averaging_to_the_last_bit():
    prox = simulate(Study.parse(FEDPROX).replace("algorithm.mu", 0.0)).model()
    averaging = simulate(Study.parse(BREAST_CANCER)).model()
    assert all(torch.equal(prox[name], averaging[name]) for name in averaging)


def test_a_stronger_pull_keeps_sites_nearer_to_the_received_model():
    def distance(mu: float) -> float:
        algorithm = build(Study.parse(FEDPROX).replace("algorithm.mu", mu))
        exchange, state = (
            algorithm.exchanges(1)[0],
            algorithm.server().broadcast(1, algorithm.exchanges(1)[0]),
        )
        got = algorithm.site("hospital-1").contribute(1, exchange, state)
        return sum(float((got[f"update/{name}"] ** 2).sum()) for name in state) / got["weight"] ** 2

    assert distance(0.0) > distance(1.0) > distance(5.0) > 0
