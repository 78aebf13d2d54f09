"""Optimisers without PyTorch's compiler: the same numbers, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from secfed.dp.training.optimisers import eager


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
        (torch.optim.AdamW, {"lr": 0.1, "fused": True}),
    ],
)
def test_it_does_what_pytorchs_does(kind: Any, options: dict[str, Any]) -> None:
    ended = []
    for made in (kind, eager(kind)):
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 2)
        optimiser = made(model.parameters(), **options)
        assert isinstance(optimiser, kind)
        hooked: list[int] = []
        optimiser.register_step_pre_hook(lambda *_, hooked=hooked: hooked.append(1))
        for _ in range(3):
            optimiser.zero_grad()
            model(torch.rand(5, 4)).square().mean().backward()
            optimiser.step()
        ended.append([model.weight.detach(), model.bias.detach(), torch.tensor(len(hooked))])
        assert all(value.requires_grad for value in model.parameters())
    assert all(torch.equal(*pair) for pair in zip(*ended, strict=True))
