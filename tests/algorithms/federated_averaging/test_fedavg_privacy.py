"""Private local training of federated averaging: what its random layers follow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tests.algorithms.federated_averaging.test_fedavg_privacy as named
from secfed.algorithms.data.memory import SiteTables
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.study.build import build
from secfed.study.study import Study

STUDY = """
study = { name = "dropout", rounds = 1, seed = 1 }
algorithm = { name = "fedavg", weighting = "equal", local_epochs = 4 }
model = { name = "tests.algorithms.federated_averaging.test_fedavg_privacy:with_dropout" }
data = { name = "tests.algorithms.federated_averaging.test_fedavg_privacy:wards" }
protection = { name = "plain", min_cohort = 2 }
"""
PRIVATE = """
[privacy]
unit = "record"
epsilon = 50.0
delta = 1e-4
accountant = "rdp"
engine = "loop"
"""


MASKS: list[torch.Tensor] = []


class Noted(torch.nn.Dropout):
    """Dropout that notes its masks."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in torch
        out = super().forward(input)
        if self.training:
            named.MASKS.append(out.detach() != 0)
        return out


def with_dropout(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    hidden = torch.nn.Linear(input_shape[0], 64)
    return torch.nn.Sequential(hidden, torch.nn.Sigmoid(), Noted(0.5), torch.nn.Linear(64, classes))


def wards() -> SiteTables:
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(3)).numpy()
    labels = (inputs[:, 0] > 0).astype(int)
    return SiteTables({"a": (inputs, labels), "b": (inputs, labels)}, classes=2, standardize=False)


def masks_of(settings: str, secret: bytes | None) -> torch.Tensor:
    study = Study.parse(settings)
    algorithm = build(study)
    exchange, program = algorithm.exchanges(1)[0], algorithm.site("a")
    if secret is not None:
        free: Any = SimpleNamespace(spender=lambda **_: lambda event: None)
        assert study.privacy is not None
        privacy = LocalPrivacy(
            study.privacy, free, study="s", seed=1, random=lambda number, name: SecureRandom(secret)
        )
        program.use_privacy(privacy)  # type: ignore[attr-defined]
        privacy.enter(1, exchange.name)
    named.MASKS.clear()
    program.contribute(1, exchange, algorithm.server().broadcast(1, exchange))
    return torch.cat(named.MASKS)


def test_dropout_follows_the_public_seed_only_where_nothing_is_private() -> None:
    assert torch.equal(masks_of(STUDY, None), masks_of(STUDY, None))
    first, again, other = (masks_of(STUDY + PRIVATE, secret * 32) for secret in (b"1", b"1", b"2"))
    assert torch.equal(first, again)  # repeated work is the same release
    rows = min(len(first), len(other))
    assert float((first[:rows] == other[:rows]).double().mean()) == pytest.approx(0.5, abs=0.1)
