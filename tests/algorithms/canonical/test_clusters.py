"""Spherical k-means, starts and discriminants, against computations on pooled records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from secfed.algorithms.canonical import clusters
from secfed.algorithms.canonical.discriminants import class_sums, discriminants
from secfed.algorithms.canonical.moments import Moments, moments
from secfed.algorithms.models.feature_maps import unit


def records(count: int = 300, groups: int = 4, size: int = 6, spread: float = 0.15, seed: int = 1):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, groups, count)
    seen = np.eye(size)[:groups][labels] + rng.normal(0, spread, (count, size))
    return unit(torch.from_numpy(seen)), torch.from_numpy(labels)


def test_a_simplex_has_corners_equally_far_apart_and_no_two_are_alike() -> None:
    starts = clusters.simplexes(3, 4, 6, seed=1)
    for one in starts:
        cosines = one @ one.T
        expected = torch.where(torch.eye(4, dtype=torch.bool), 1.0, -1 / 3).double()
        assert torch.allclose(cosines, expected, atol=1e-12)
    assert not torch.allclose(starts[0], starts[1])
    assert torch.equal(starts, clusters.simplexes(3, 4, 6, seed=1))
    flat = clusters.simplexes(1, 10, 3, seed=1)  # more corners than dimensions
    assert torch.allclose(flat.norm(dim=2), torch.ones(1, 10, dtype=torch.float64))


def test_an_iteration_is_that_of_spherical_kmeans_on_the_pooled_records() -> None:
    seen, _ = records()
    centres = clusters.simplexes(3, 4, 6, seed=2)
    summed = sum(clusters.local_sums(part, centres) for part in seen.split([100, 150, 50]))
    moved = clusters.moved(centres, summed)
    for one, after in zip(centres.numpy(), moved.numpy(), strict=True):
        nearest = (seen.numpy() @ one.T).argmax(1)
        for cluster in range(4):
            mine = seen.numpy()[nearest == cluster]
            total = mine.sum(0)
            wanted = total / np.linalg.norm(total) if len(mine) else one[cluster]
            assert np.allclose(after[cluster], wanted)


def test_an_empty_cluster_keeps_its_centre_and_batches_change_nothing(monkeypatch) -> None:
    seen, _ = records(50, 3)
    axes = torch.eye(6, dtype=torch.float64)[:3]
    centres = torch.cat([axes, -unit(axes.sum(dim=0, keepdim=True))])[None]
    before = clusters.local_sums(seen, centres)
    assert not before[0, 3].any()
    assert torch.equal(clusters.moved(centres, before)[0, 3], centres[0, 3])
    monkeypatch.setattr(clusters, "_BATCH", 7)
    assert torch.allclose(clusters.local_sums(seen, centres), before)
    assert clusters.assigned(torch.zeros(0, 6).double(), centres)[0].shape == (0, 1)


def test_records_without_direction_count_as_nearest_to_the_first() -> None:
    found, cosines = clusters.assigned(torch.zeros(2, 6).double(), clusters.simplexes(2, 4, 6, seed=1))
    assert not found.any()
    assert not cosines.any()


@pytest.mark.parametrize("groups", [2, 3, 5, 6])
def test_divisive_starts_find_separate_groups(groups: int) -> None:
    seen, labels = records(400, groups)
    centres, count = torch.zeros(groups, 6, dtype=torch.float64), 1
    while count < groups:
        wanted = min(2 * count, groups)
        shares = [clusters.parts_moments(part, centres, count) for part in seen.split(130)]
        whole = Moments(*(sum(getattr(s, name) for s in shares) for name in ("outer", "sums", "records")))
        alone = clusters.parts_moments(seen, centres, count)
        assert torch.allclose(whole.outer, alone.outer)
        centres, count = clusters.split(whole, count, wanted), wanted
        assert torch.allclose(centres[:count].norm(dim=1), torch.ones(count, dtype=torch.float64))
        assert not centres[count:].any()
    for _ in range(5):
        centres = clusters.moved(centres[None], clusters.local_sums(seen, centres[None]))[0]
    nearest = clusters.assigned(seen, centres[None])[0][:, 0]
    for label in range(groups):  # every group is one cluster, of which there are as many
        assert (nearest[labels == label] == nearest[labels == label].mode().values).float().mean() > 0.99
    assert len(nearest.unique()) == groups


def test_nothing_to_split_gives_numbers_all_the_same() -> None:
    empty = clusters.parts_moments(torch.zeros(0, 6).double(), torch.zeros(4, 6).double(), 1)
    assert bool(torch.isfinite(clusters.split(empty, 1, 2)).all())


def test_discriminants_are_those_of_the_pooled_records() -> None:
    """scikit-learn's linear discriminants by least squares, with the covariance inside classes."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, 500)
    seen = (rng.normal(size=(3, 5))[labels] + rng.normal(size=(500, 5)) @ rng.normal(size=(5, 5))) / 40
    view, classes = torch.from_numpy(seen), torch.from_numpy(labels)
    total = moments(view)
    sums, counts = class_sums(view, classes, 3)
    found = discriminants([sums], [counts], [total.means()], [total.covariances()], 1e-9)
    peer = LinearDiscriminantAnalysis(solver="lsqr").fit(seen, labels)
    expected = peer.decision_function(seen)
    score = ((view - total.means()) @ found.directions[0] + found.offsets[0] + found.sizes).numpy()
    factor = (expected - expected[:, :1]).std() / (score - score[:, :1]).std()
    assert np.allclose((score - score[:, :1]) * factor, expected - expected[:, :1], atol=1e-4)
    assert torch.equal(found.assigned([view], [total.means()]), torch.from_numpy(peer.predict(seen)))


def test_views_add_up_and_a_cluster_without_records_is_no_division_by_zero() -> None:
    seen, labels = records(100, 3, 5)
    total = moments(seen)
    sums, counts = class_sums(seen, labels, 4)  # nobody is in the fourth
    one = discriminants([sums], [counts], [total.means()], [total.covariances()], 0.1)
    two = discriminants([sums] * 2, [counts] * 2, [total.means()] * 2, [total.covariances()] * 2, 0.1)
    for found in (one, two):
        assert all(
            bool(torch.isfinite(part).all()) for part in (*found.directions, *found.offsets, found.sizes)
        )
        assert max(float(part.abs().max()) for part in (*found.directions, *found.offsets, found.sizes)) <= 1
    means = [total.means()] * 2
    only = two.assigned([None, seen], means)
    assert torch.equal(only, one.assigned([seen], means[:1]))
    assert (two.assigned([seen, seen], means) == labels).double().mean() > 0.95
    nothing = [torch.zeros(2, 5).double(), torch.zeros(2).double()]
    found = discriminants([nothing[0]], [nothing[1]], [means[0]], [torch.zeros(5, 5).double()], 0.1)
    assert not found.assigned([seen], means[:1]).any()
