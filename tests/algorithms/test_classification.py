from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss, roc_auc_score
from torch import nn

from secfed.algorithms.metrics import classification
from secfed.algorithms.metrics.classification import area_under_curve, evaluate, finish, score_histograms
from secfed.errors import RangeError

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


def test_a_model_with_the_wrong_number_of_scores_is_an_error():
    with pytest.raises(RangeError, match=r"scores of shape \(3,\), not \(2,\)"):
        evaluate(nn.Identity(), torch.zeros(4, 3), torch.zeros(4).long(), classes=2, device=CPU)
