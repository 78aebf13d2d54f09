from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss, roc_auc_score
from torch import nn

from secfed.algorithms.metrics import classification
from secfed.algorithms.metrics.classification import (
    area_under_curve,
    counts,
    evaluate,
    finish,
    score_histograms,
)
from secfed.algorithms.metrics.score_grid import LOSS_CAP

CPU = torch.device("cpu")


def scores(kind: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = rng.integers(0, 2, n)
    spread = {"weak": 0.3, "usual": 1.0, "saturated": 8.0, "near-even odds": 0.02}[kind]
    return (y - 0.5) * 1.5 * spread + rng.normal(size=n) * spread, y


@pytest.mark.parametrize("kind", ["weak", "usual", "saturated", "near-even odds"])
@pytest.mark.parametrize("n", [40, 1000, 20000])
def test_area_under_the_curve_agrees_with_scikit_learn_to_2e_3(kind, n):
    log_odds, y = scores(kind, n, np.random.default_rng(n))
    found = area_under_curve(score_histograms(torch.from_numpy(log_odds), torch.from_numpy(y)))
    assert found == pytest.approx(roc_auc_score(y, log_odds), abs=2e-3)


def test_ties_count_one_half():
    log_odds, y = torch.tensor([1.0, 1.0, 2.0, 0.0]), torch.tensor([0, 1, 1, 0])
    assert area_under_curve(score_histograms(log_odds, y)) == roc_auc_score(y, log_odds) == 0.875


def test_extreme_scores_stay_in_the_histogram():
    log_odds = torch.tensor([-1e300, 1e300, 0.0, -1e-30])
    assert score_histograms(log_odds.double(), torch.tensor([0, 1, 1, 0])).sum() == 4


@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_from_the_sums_of_three_sites_equal_those_of_the_pooled_records(classes):
    rng = torch.Generator().manual_seed(classes)
    x = torch.randn(3000, classes, generator=rng)
    y = (x + torch.randn(3000, classes, generator=rng)).argmax(dim=1)
    parts = [evaluate(nn.Identity(), x[i::3], y[i::3], classes=classes, device=CPU) for i in range(3)]
    found = finish({name: sum(part[name] for part in parts) for name in parts[0]}, classes)
    predicted, probability = x.argmax(dim=1), torch.softmax(x.double(), dim=1).numpy()
    assert found["accuracy"] == pytest.approx(accuracy_score(y, predicted))
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, predicted))
    assert found["loss"] == pytest.approx(log_loss(y, probability), abs=1e-6)
    assert ("roc_auc" in found) == (classes == 2)


def test_every_sum_has_a_field_of_its_shape():
    for classes in (2, 3):
        sums = evaluate(
            nn.Identity(), torch.zeros(4, classes), torch.zeros(4).long(), classes=classes, device=CPU
        )
        assert {f.name: f.shape for f in classification.fields(classes)} == {
            name: tuple(value.shape) for name, value in sums.items()
        }


def test_no_records_add_zeros_and_give_no_metrics():
    sums = evaluate(nn.Identity(), torch.zeros(0, 2), torch.zeros(0).long(), classes=2, device=CPU)
    assert all(not value.any() for value in sums.values())
    assert finish(sums, 2) == {}


def test_recall_is_averaged_over_the_classes_that_occur():
    x, y = torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1])
    found = finish(evaluate(nn.Identity(), x, y, classes=3, device=CPU), 3)
    assert found["balanced_accuracy"] == 0.75


class Trap(nn.Module):
    """Scores are the inputs; what happens to a record whose first feature is above 10 is up to the test."""

    def __init__(self, spring) -> None:
        super().__init__()
        self.spring = spring

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        caught = inputs[:, 0] > 10
        return self.spring(inputs.clone(), caught) if bool(caught.any()) else inputs


def _to(value: float):
    def spring(scores: torch.Tensor, caught: torch.Tensor) -> torch.Tensor:
        scores[caught] = value
        return scores

    return spring


def _raises(scores: torch.Tensor, caught: torch.Tensor) -> torch.Tensor:
    raise ValueError("a record is in it")


def _loses(scores: torch.Tensor, caught: torch.Tensor) -> torch.Tensor:
    return scores[~caught]


@pytest.mark.parametrize("spring", [_to(math.nan), _to(math.inf), _to(-math.inf), _raises, _loses])
@pytest.mark.parametrize("label", [0, 1])
def test_a_record_that_gets_no_scores_counts_as_wrong_and_changes_nothing_else(spring, label):
    x = torch.tensor([[0.0, 2.0], [1.0, 0.0], [0.5, 0.1]])
    y = torch.tensor([1, 0, 1])
    others = evaluate(nn.Identity(), x, y, classes=2, device=CPU)
    caught_x, caught_y = torch.cat([x, torch.tensor([[11.0, 0.0]])]), torch.cat([y, torch.tensor([label])])
    sums = evaluate(Trap(spring), caught_x, caught_y, classes=2, device=CPU)
    one = torch.nn.functional.one_hot(torch.tensor(label), 2)
    assert sums["eval/records"] == 4
    assert torch.equal(sums["eval/class_records"], others["eval/class_records"] + one)
    assert torch.equal(sums["eval/class_correct"], others["eval/class_correct"])
    assert sums["eval/loss"] == pytest.approx(float(others["eval/loss"]) + LOSS_CAP)
    moved = sums["eval/scores"] - others["eval/scores"]
    assert moved.sum() == moved[label, -1 if label == 0 else 0] == 1  # at the wrong end
    assert set(counts(caught_y, 2)) <= set(sums)
    assert all(torch.equal(sums[name], value) for name, value in counts(caught_y, 2).items())


def test_one_record_moves_the_loss_by_no_more_than_the_cap():
    sums = evaluate(nn.Identity(), torch.tensor([[3e38, -3e38]]), torch.tensor([1]), classes=2, device=CPU)
    assert float(sums["eval/loss"]) == LOSS_CAP
