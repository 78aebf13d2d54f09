from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from secfed.algorithms.metrics.clustering import contingency, scores
from secfed.crypto.fixedpoint import FixedPoint
from secfed.errors import RangeError

CLUSTERS, CLASSES = 4, 3


@st.composite
def labelled(draw) -> tuple[torch.Tensor, torch.Tensor]:
    n = draw(st.integers(1, 40))
    clusters = draw(st.lists(st.integers(0, CLUSTERS - 1), min_size=n, max_size=n))
    classes = draw(st.lists(st.integers(0, CLASSES - 1), min_size=n, max_size=n))
    return torch.tensor(clusters), torch.tensor(classes)


def best_matching(assigned: torch.Tensor, labels: torch.Tensor) -> float:
    """Accuracy by trying every injective map of classes to clusters."""
    return max(
        sum(int(cluster == chosen[label]) for cluster, label in zip(assigned, labels, strict=True))
        for chosen in permutations(range(CLUSTERS), CLASSES)
    ) / len(labels)


@given(st.lists(labelled(), min_size=1, max_size=4))
def test_scores_of_the_summed_table_are_those_of_all_records_together(sites):
    table = sum(contingency(a, y, CLUSTERS, CLASSES) for a, y in sites)
    assigned, labels = (torch.cat(parts) for parts in zip(*sites, strict=True))
    found = scores(table)
    assert set(found) == {"acc", "nmi", "ari"}
    assert found["acc"] == pytest.approx(best_matching(assigned, labels), abs=1e-12)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(labels, assigned), abs=1e-12)
    assert found["ari"] == pytest.approx(adjusted_rand_score(labels, assigned), abs=1e-12)


def test_the_matching_is_one_to_one():
    # Both clusters are mostly class 0: a majority vote would give 0.9, a matching cannot.
    assert scores(torch.tensor([[6.0, 1.0], [3.0, 0.0]]))["acc"] == pytest.approx(0.6)


@pytest.mark.parametrize("table", [[[5.0]], [[5.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
def test_equal_partitions_score_one_even_without_a_pair_of_records(table):
    assert scores(torch.tensor(table)) == {"acc": 1.0, "nmi": 1.0, "ari": 1.0}


def test_an_empty_table_has_no_scores():
    assert scores(torch.zeros(2, 2)) == {}


@given(labelled(), st.integers(0, 2**32))
def test_a_table_that_went_through_fixed_point_scores_exactly_the_same(records, seed):
    table = contingency(*records, CLUSTERS, CLASSES)
    rule = FixedPoint.choose(bound=2.0**32, bits=64, sites=100)
    noise = torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, (CLUSTERS, CLASSES)))
    assert scores(table + 100 * noise * 2.0**-rule.exponent) == scores(table)
    assert scores(table + 0.4 * noise) == scores(table)


def test_a_table_of_many_records_does_not_overflow():
    table = torch.full((10, 10), 1e7) + torch.eye(10) * 1e9
    found = scores(table)
    assert found["acc"] == pytest.approx((1e9 + 1e7) / (1e9 + 1e8))
    assert 0 < found["ari"] < 1
    assert math.isclose(found["ari"], scores(table / 100)["ari"], rel_tol=1e-6)


def test_a_site_without_records_adds_nothing():
    none = torch.zeros(0, dtype=torch.int64)
    assert torch.equal(contingency(none, none, 2, 3), torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("assigned", "labels"), [([0, 4], [0, 0]), ([0, -1], [0, 0]), ([0, 0], [0, 3]), ([0], [0, 0])]
)
def test_clusters_and_classes_outside_the_table_are_refused(assigned, labels):
    with pytest.raises(RangeError):
        contingency(torch.tensor(assigned), torch.tensor(labels), CLUSTERS, CLASSES)
