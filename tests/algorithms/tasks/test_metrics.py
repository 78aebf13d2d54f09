"""Losses and metrics of tasks, against computations of their own over all records."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from secfed.algorithms.framework.targets import Targets, survival_target
from secfed.algorithms.tasks.base import SummedTask, Sums
from secfed.algorithms.tasks.multi_label import MultiLabel
from secfed.algorithms.tasks.regression import Regression
from secfed.algorithms.tasks.segmentation import Segmentation
from secfed.algorithms.tasks.survival import Survival
from secfed.dp.training.losses import check_decomposes, supervised

CPU = torch.device("cpu")
TASKS = {
    "regression": Regression(Targets.of_outcomes(-10, 30)),
    "multi-label": MultiLabel(Targets.of_labels(3)),
    "survival": Survival(Targets.of_times([1, 2, 4, 8])),
    "segmentation": Segmentation(Targets.of_voxels(3, (4, 5))),
}


class Given(nn.Module):
    """Records are what the model gives for them."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.scale = shape, nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).reshape(len(x), *self.shape)


def drawn(task: SummedTask, count: int = 40, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    outputs = torch.randn(count, math.prod(task.outputs), generator=rng)
    if not task.targets.values:
        return outputs, torch.rand(count, generator=rng) * 40 - 10
    return outputs, torch.randint(task.targets.values, (count, *task.targets.shape), generator=rng)


def sums(task: SummedTask, outputs: torch.Tensor, targets: torch.Tensor) -> Sums:
    return task.evaluate(Given(task.outputs), outputs, targets, device=CPU)


def metrics(task: SummedTask, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    return task.finish(sums(task, outputs, targets))


@pytest.mark.parametrize("name", TASKS)
def test_metrics_of_two_sites_are_those_of_all_records(name: str):
    task = TASKS[name]
    outputs, targets = drawn(task)
    one, other = sums(task, outputs[:13], targets[:13]), sums(task, outputs[13:], targets[13:])
    assert list(one) == [field.name for field in task.fields()]
    found = task.finish({field: one[field] + other[field] for field in one})
    assert found == pytest.approx(metrics(task, outputs, targets))
    assert found["loss"] == pytest.approx(float(task.losses(shaped(task, outputs), targets).mean()))
    assert task.finish({field: torch.zeros_like(one[field]) for field in one}) == {}


def shaped(task: SummedTask, outputs: torch.Tensor) -> torch.Tensor:
    return outputs.reshape(-1, *task.outputs)


@pytest.mark.parametrize("name", TASKS)
def test_a_record_without_finite_outputs_counts_as_wrong_and_moves_no_count(name: str):
    task = TASKS[name]
    outputs, targets = drawn(task)
    broken = outputs.clone()
    broken[:5] = torch.nan
    with_nan = sums(task, broken, targets)
    assert all(bool(torch.isfinite(value).all()) for value in with_nan.values())
    for field, value in task.counts(targets).items():
        assert torch.equal(with_nan[field], value)
    whole, part = task.finish(sums(task, outputs, targets)), task.finish(with_nan)
    assert part["loss"] > whole["loss"]


@pytest.mark.parametrize("name", TASKS)
def test_a_loss_is_a_mean_over_records_which_private_steps_can_clip(name: str):
    task = TASKS[name]
    outputs, targets = drawn(task, 4)
    loss = supervised(task.criterion)
    assert loss.decomposes
    assert check_decomposes(loss, Given(task.outputs), (outputs, targets))
    mean = loss(Given(task.outputs), (outputs, targets)).mean()
    assert mean.item() == pytest.approx(task.criterion(shaped(task, outputs), targets).item(), rel=1e-5)


def test_regression_in_the_unit_of_the_outcome():
    task = TASKS["regression"]
    outputs, targets = drawn(task, 200)
    predicted = outputs[:, 0].double().clamp(0, 1).numpy() * 40 - 10
    errors, actual = predicted - targets.double().numpy(), targets.double().numpy()
    found = metrics(task, outputs, targets)
    assert found["mse"] == pytest.approx(np.mean(errors**2))
    assert found["mae"] == pytest.approx(np.mean(abs(errors)))
    assert found["r2"] == pytest.approx(1 - np.sum(errors**2) / np.sum((actual - actual.mean()) ** 2))
    half = 1.959964 * np.std(abs(errors), ddof=1) / math.sqrt(200)
    assert found["mae_interval_95"] == pytest.approx(half)
    assert "r2" not in metrics(task, outputs, torch.full((200,), 3.0))


def test_no_prediction_adds_more_than_the_bounds_allow():
    task = TASKS["regression"]
    found = sums(task, torch.tensor([[1e30], [-1e30], [torch.inf]]), torch.tensor([-10.0, 30.0, 10.0]))
    assert float(found["eval/error_squares"]) == 3.0


def test_multi_label_by_hand():
    task = TASKS["multi-label"]
    outputs, targets = drawn(task, 300)
    found = metrics(task, outputs, targets)
    said, actual = (outputs > 0).numpy(), targets.numpy() == 1
    hits, either = (said & actual).sum(axis=0), said.sum(axis=0) + actual.sum(axis=0)
    assert found["f1_micro"] == pytest.approx(2 * hits.sum() / either.sum())
    assert found["f1_macro"] == pytest.approx(np.mean(2 * hits / either))
    above = [
        (outputs[targets[:, at] == 1, at][:, None] > outputs[targets[:, at] == 0, at]).float().mean()
        for at in range(3)
    ]
    assert found["roc_auc"] == pytest.approx(float(sum(above)) / 3, abs=2e-3)
    assert 0.05 < found["roc_auc_2_interval_95"] < 0.08  # Hanley and McNeil, 150 against 150 near 0.5
    assert 0.03 < found["f1_micro_interval_95"] < 0.06


@pytest.mark.parametrize(
    ("time", "event", "code"),
    [(0.5, True, 1), (1.0, True, 1), (1.01, True, 3), (8.0, False, 6), (8.1, True, 8), (9.0, False, 8)],
)
def test_times_on_the_grid(time: float, event: bool, code: int):
    assert survival_target(time, event, (1, 2, 4, 8)) == code


def test_survival_likelihood_by_hand():
    hazards = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    outputs = torch.logit(hazards)
    likelihoods = {5: 0.9 * 0.8 * 0.3, 4: 0.9 * 0.8, 8: 0.9 * 0.8 * 0.7 * 0.6, 1: 0.1, 0: 1.0}
    for code, likelihood in likelihoods.items():
        loss = TASKS["survival"].losses(outputs, torch.tensor([code]))
        assert float(loss) == pytest.approx(-math.log(likelihood), abs=1e-6)


def test_concordance_pair_by_pair():
    task = TASKS["survival"]
    outputs, targets = drawn(task, 60)
    risk = 1 - torch.exp(-nn.functional.softplus(outputs.double()).sum(dim=1))
    bins, agreed, pairs = (risk * 256).long(), 0.0, 0
    for first in range(60):
        for second in range(60):
            if targets[first] % 2 == 1 and targets[second] // 2 > targets[first] // 2:
                pairs += 1
                agreed += float(bins[first] > bins[second]) + 0.5 * float(bins[first] == bins[second])
    assert metrics(task, outputs, targets)["concordance"] == pytest.approx(agreed / pairs)


def test_dice_and_iou_of_all_voxels_together():
    task = TASKS["segmentation"]
    outputs, targets = drawn(task, 10)
    predicted = shaped(task, outputs).argmax(dim=1)
    found = metrics(task, outputs, targets)
    dice, iou = [], []
    for one in (1, 2):
        both = float(((predicted == one) & (targets == one)).sum())
        either = float(((predicted == one) | (targets == one)).sum())
        dice.append(2 * both / (either + both))
        iou.append(both / either)
    assert found["dice_2"] == pytest.approx(dice[1])
    assert (found["dice"], found["iou"]) == pytest.approx((sum(dice) / 2, sum(iou) / 2))
    exact = 50.0 * nn.functional.one_hot(targets, 3).permute(0, 3, 1, 2).float().flatten(1)
    assert metrics(task, exact, targets)["dice"] == 1.0
