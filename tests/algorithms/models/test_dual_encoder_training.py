"""Training the dual encoder: gradients, private training, memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from secfed.algorithms.models.dual_encoder_memory import memory_estimate
from secfed.dp.training.engines import ClippedSum, attached
from secfed.dp.training.losses import Batch, DeclaredLoss
from tests.algorithms.dual_encoder_case import (
    LENGTH,
    OBJECTIVES,
    PAPER,
    VOCABULARY,
    count,
    model,
    on_meta,
    options,
    pairs,
    pretrain_loss,
)
from tests.dp.toys import clipped

# Gradients


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_every_parameter_gets_a_gradient(objective: str, pool: str) -> None:
    dual = model(objective=objective, pool=pool)
    pretrain_loss(dual, *pairs()).total.backward()
    for name, value in dual.named_parameters():
        assert value.grad is not None, name
        if not name.endswith("attention.self.key.bias"):  # softmax cancels it: its gradient is zero exactly
            assert float(value.grad.abs().max()) > 1e-9, name


def test_untrained_loss_is_near_chance() -> None:
    value = pretrain_loss(model(temperature=1.0), *pairs())
    assert float(value.total.detach()) == pytest.approx(math.log(6), abs=0.3)
    assert torch.equal(value.infonce, value.total)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_few_steps_lower_the_loss(objective: str) -> None:
    dual, batch = model(objective=objective), pairs()
    optimiser = torch.optim.AdamW(dual.parameters(), lr=1e-3)
    first = pretrain_loss(dual, *batch).total.item()
    for _ in range(15):
        optimiser.zero_grad()
        pretrain_loss(dual, *batch).total.backward()
        optimiser.step()
    assert pretrain_loss(dual, *batch).total.item() < 0.7 * first


@pytest.mark.parametrize("objective", ["convirt", "mgca"])
def test_gradient_checkpointing_changes_no_gradient(objective: str) -> None:
    gradients = []
    for again in (False, True):
        dual = model(objective=objective, gradient_checkpointing=again)
        pretrain_loss(dual, *pairs()).total.backward()
        gradients.append(torch.cat([value.grad.reshape(-1) for value in dual.parameters()]))  # type: ignore[union-attr]
    assert torch.allclose(*gradients, atol=1e-7)


# Private training


def per_record(dual: nn.Module, batch: Batch) -> torch.Tensor:
    """Each pair against public texts and images: the kind of loss that decomposes."""
    generator = torch.Generator().manual_seed(5)
    public = nn.functional.normalize(torch.randn(8, 64, generator=generator), dim=1)
    aligned = dual(*batch)
    paired = (aligned.image * aligned.text).sum(dim=1, keepdim=True)
    logits = torch.cat([paired, aligned.image @ public.T, aligned.text @ public.T], dim=1)
    return nn.functional.cross_entropy(logits, torch.zeros(len(paired), dtype=torch.int64), reduction="none")


PUBLIC_NEGATIVES = DeclaredLoss("public negatives", True, per_record)


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_clipped_sums_of_hooks_equal_the_loop(pool: str) -> None:
    wanted = clipped("loop", model(pool=pool), PUBLIC_NEGATIVES, pairs(4))
    found = clipped("hooks", model(pool=pool), PUBLIC_NEGATIVES, pairs(4))
    assert float(wanted.norm()) > 0.3
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_groups_of_pairs_train_with_the_loop(objective: str) -> None:
    dual, batch = model(objective=objective).train(), pairs(8)
    loss = DeclaredLoss("objective", False, lambda net, group: pretrain_loss(net, *group).total)  # type: ignore[arg-type]
    total = ClippedSum(dict(dual.named_parameters()), clip_norm=0.3, grid=0.0)
    groups = [tuple(part[at : at + 4] for part in batch) for at in (0, 4)]
    with attached("loop", dual, loss) as engine:
        engine.add(groups, total)
    norm = math.sqrt(sum(float(part.square().sum()) for part in total.sums.values()))
    assert total.units == 2
    assert 0 < norm <= 0.6 + 1e-6


# Memory


@pytest.fixture(scope="module")
def paper_memory() -> dict[str, int]:
    return memory_estimate(options(size="paper"), *PAPER, batch=4)


def test_memory_of_parameters_is_exact(paper_memory: dict[str, int]) -> None:
    parameters = 4 * count(on_meta("paper"))
    assert paper_memory["parameters"] == paper_memory["gradients"] == paper_memory["anchor"] == parameters
    assert paper_memory["moments"] == 2 * parameters
    assert memory_estimate(options(), (1, 16, 16), LENGTH, VOCABULARY, batch=2, anchor=False)["anchor"] == 0


def test_memory_of_activations_grows_with_the_batch(paper_memory: dict[str, int]) -> None:
    larger = memory_estimate(options(size="paper"), *PAPER, batch=8)
    assert larger["activations"] == pytest.approx(2 * paper_memory["activations"], rel=0.01)
    assert larger["parameters"] == paper_memory["parameters"]


def test_checkpointing_needs_a_fraction_of_the_activations(paper_memory: dict[str, int]) -> None:
    again = memory_estimate(options(size="paper", gradient_checkpointing=True), *PAPER, batch=4)
    assert again["activations"] < paper_memory["activations"] / 3


def test_activations_are_those_that_a_real_pass_keeps() -> None:
    dual, (images, tokens) = model(), pairs(16)
    estimate = memory_estimate(options(), (1, 16, 16), LENGTH, VOCABULARY, batch=16)["activations"]
    known = {value.data_ptr() for value in dual.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        if value.data_ptr() not in known:
            kept[value.untyped_storage().data_ptr()] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        loss = pretrain_loss(dual, images, tokens).total
    assert loss.requires_grad
    real = sum(value.untyped_storage().nbytes() for value in kept.values())
    assert estimate == pytest.approx(real, rel=0.35)
