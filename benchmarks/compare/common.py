"""What both frameworks are given, and nobody counts: a network, and the records of four hospitals."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from secfed.algorithms.data.memory import SiteTables

SITES, ROUNDS, EPOCHS, RATE = 4, 10, 2, 0.1


def net(input_shape: tuple[int, ...] = (64,), classes: int = 10) -> nn.Module:
    """A network with one hidden layer."""
    return nn.Sequential(nn.Linear(*input_shape, 64), nn.ReLU(), nn.Linear(64, classes))


def hospitals() -> SiteTables:
    """Handwritten digits, every hospital with a tenth of all and its own share of the classes."""
    images, labels = load_digits(return_X_y=True)
    share = np.random.default_rng(1).dirichlet([0.5] * SITES, 10)
    draws = np.random.default_rng(2).random(len(labels))
    owner = (draws[:, None] > share.cumsum(axis=1)[labels]).sum(axis=1).clip(max=SITES - 1)
    tables = {f"hospital-{at + 1}": (images[owner == at] / 16, labels[owner == at]) for at in range(SITES)}
    return SiteTables(tables, classes=10, standardize=False)


def records(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The training records of one hospital."""
    site = hospitals().site(f"hospital-{partition + 1}")
    return site.train_x, site.train_y


def accuracy(state: dict[str, torch.Tensor]) -> float:
    """Over the held-out records of all hospitals, as only a simulation can."""
    model, data = net(), hospitals()
    model.load_state_dict(state)
    sites = [data.site(name) for name in data.sites]
    right = sum(int((model(site.test_x).argmax(dim=1) == site.test_y).sum()) for site in sites)
    return right / sum(len(site.test_y) for site in sites)
