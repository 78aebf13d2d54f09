from __future__ import annotations

import numpy as np
import pytest

from secfed.algorithms.data.image_text.partition import by_combination, by_value, combination
from tests.algorithms.image_text_case import mean_total_variation


def findings(n: int, seed: int = 0):
    return (np.random.default_rng(seed).random((n, 5)) < 0.28).astype(np.int64)


def divided(alpha: float, seed: int = 0, n: int = 2000, m: int = 500):
    train, test = combination(findings(n)), combination(findings(m, 1))
    return train, test, by_combination(train, test, 5, alpha, 10, np.random.default_rng(seed))


def test_a_combination_is_one_number():
    assert combination(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1]])).tolist() == [0, 1, 6, 7]


def test_shares_are_disjoint_complete_and_ascending():
    train, test, parts = divided(0.3)
    for labels, part in zip((train, test), parts, strict=True):
        assert np.array_equal(np.sort(np.concatenate(part)), np.arange(len(labels)))
        assert all((np.diff(rows) > 0).all() for rows in part)


def test_sites_are_tested_on_what_they_train_on():
    train, test, (own, held_out) = divided(0.3, m=2000)
    for rows, tested in zip(own, held_out, strict=True):
        assert mean_total_variation([train[rows], test[tested]]) < 0.15
        assert abs(len(rows) - len(tested)) < 150


def test_total_variation_falls_with_alpha_and_is_the_published_one_at_degree_one():
    found = []
    for alpha in (0.2, 1.0, 5.0, 1000.0):
        drawn = [divided(alpha, seed) for seed in range(10)]
        found.append(np.mean([mean_total_variation([t[rows] for rows in p[0]]) for t, _, p in drawn]))
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(0.76, abs=0.07)
    assert found[1] == pytest.approx(0.456, abs=0.05)
    assert found[2] == pytest.approx(0.22, abs=0.05)
    assert found[3] < 0.05


def test_whole_classes_go_to_sites():
    labels = np.array([0, 1, 0, 0, 1, 2, 0])
    assert [rows.tolist() for rows in by_value(labels, [[0, 2], [1], [2]])] == [[0, 3], [1, 4], [2, 5, 6]]
