from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from secfed.algorithms.metrics import clustering
from secfed.algorithms.metrics.classification import NOISY, finish
from secfed.algorithms.metrics.clustering import noisy_scores, scores
from secfed.algorithms.metrics.noise_error import WITHHELD_ABOVE, is_withheld, ratio_error


def of_counts(whole: list[float], right: list[float], deviation: float) -> dict[str, float]:
    pairs = zip(NOISY, (whole, right), strict=True)
    sums = {name: torch.tensor(value, dtype=torch.float64) for name, value in pairs}
    return finish(sums, len(whole), deviation=deviation)


@pytest.mark.parametrize("deviation", [3.0, 15.0])
def test_the_truth_lies_within_the_error_in_95_of_100_cases(deviation):
    rng = np.random.default_rng(0)
    whole, right = np.array([700.0, 300.0]), np.array([637.0, 203.1])
    truth = (right.sum() / 1000, (right / whole).mean())
    within = np.zeros(2)
    for _ in range(400):
        noisy = [(one + rng.normal(0, deviation, 2)).tolist() for one in (whole, right)]
        found = of_counts(*noisy, deviation)
        for at, name in enumerate(("accuracy", "balanced_accuracy")):
            within[at] += is_withheld(found, name) or (
                abs(found[name] - truth[at]) <= found[f"{name}_error_95"]
            )
    assert (within >= 0.92 * 400).all()


def test_noisy_shares_are_not_brought_between_0_and_1():
    found = of_counts([500.0, 500.0], [510.0, 520.0], 5.0)
    assert found["accuracy"] == pytest.approx(1.03)
    assert found["accuracy_error_95"] < WITHHELD_ABOVE


@pytest.mark.parametrize("whole", [[40.0, 40.0], [-300.0, -300.0], [0.0, 0.0]])
def test_a_metric_that_says_nothing_is_withheld(whole):
    found = of_counts(whole, [80.0, 80.0], 30.0)
    for name in ("accuracy", "balanced_accuracy"):
        assert math.isnan(found[name])
        assert is_withheld(found, name)
        assert WITHHELD_ABOVE < found[f"{name}_error_95"] <= 1.0


def test_without_a_bound_on_the_ratio_the_error_is_infinite():
    assert ratio_error(10.0, 19.0, 10.0) == math.inf
    assert ratio_error(10.0, 1000.0, 0.0) == 0.0


def test_cluster_scores_have_errors_or_are_withheld():
    table = torch.full((4, 4), 50.0, dtype=torch.float64) + torch.eye(4, dtype=torch.float64) * 400
    exact, rng, within = scores(table), np.random.default_rng(0), 0
    for _ in range(20):
        found = noisy_scores(table + torch.from_numpy(rng.normal(0, 4.0, (4, 4))), 4.0)
        within += sum(abs(found[name] - exact[name]) <= found[f"{name}_error_95"] for name in exact)
    assert within >= 54  # of 60
    assert all(is_withheld(noisy_scores(table, 50.0), name) for name in exact)


@pytest.mark.parametrize(
    ("diagonal", "elsewhere", "clusters", "deviation"),
    [(1000.0, 0.0, 3, 5.0), (300.0, 15.0, 3, 3.0), (200.0, 0.0, 10, 0.5), (50.0, 50.0, 3, 3.0)],
    ids=["without other cells", "with small ones", "ten clusters", "no structure"],
)
def test_shown_cluster_scores_lie_within_their_errors(diagonal, elsewhere, clusters, deviation, monkeypatch):
    """Empty cells become noise without its negative half, and the best of many matchings is the luckiest."""
    monkeypatch.setattr(clustering, "_REDRAWN", 60)
    table = np.full((clusters, clusters), elsewhere) + np.eye(clusters) * (diagonal - elsewhere)
    exact, rng = scores(torch.from_numpy(table)), np.random.default_rng(2)
    shown, within = dict.fromkeys(exact, 0), dict.fromkeys(exact, 0)
    for _ in range(60):
        found = noisy_scores(torch.from_numpy(table + rng.normal(0, deviation, table.shape)), deviation)
        for name, truth in exact.items():
            shown[name] += not is_withheld(found, name)
            within[name] += abs(found[name] - truth) <= found[f"{name}_error_95"]
    assert min(shown.values()) >= 50
    assert all(within[name] >= 0.93 * shown[name] for name in exact), within


def test_cluster_scores_that_empty_cells_would_bias_are_withheld():
    table = torch.eye(3, dtype=torch.float64) * 100
    rng, shown = np.random.default_rng(3), 0
    for _ in range(10):
        found = noisy_scores(table + torch.from_numpy(rng.normal(0, 2.0, (3, 3))), 2.0)
        shown += not is_withheld(found, "nmi")
        assert not is_withheld(found, "acc")
    assert shown <= 1
