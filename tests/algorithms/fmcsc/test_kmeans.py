from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from secfed.algorithms.fmcsc import kmeans
from secfed.errors import RangeError

seeds = st.integers(0, 2**32)

KNOWN_STARTS = "e62ec9721faa920bf32d1dcf3ef495ca628e3554ab36e56ed8baae453b8f92aa"


def blobs(n: int, d: int, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, d)) + 4 * rng.integers(0, 3, size=(n, 1)))


def pooled_start(features: torch.Tensor, restarts: int, clusters: int, seed: int) -> torch.Tensor:
    return kmeans.starts(*kmeans.mean_and_covariance(*kmeans.moments(features)), restarts, clusters, seed)


def lloyd(features: np.ndarray, centres: np.ndarray, iterations: int) -> tuple[np.ndarray, list[float]]:
    """Textbook Lloyd on one table, record by record."""
    inertia = []
    for _ in range(iterations):
        distances = [[float(((x - c) ** 2).sum()) for c in centres] for x in features]
        nearest = [int(np.argmin(row)) for row in distances]
        inertia.append(sum(min(row) for row in distances))
        members = [features[[n == k for n in nearest]] for k in range(len(centres))]
        centres = np.array([m.mean(axis=0) if len(m) else c for m, c in zip(members, centres, strict=True)])
    return centres, inertia


@given(n=st.integers(1, 25), seed=seeds)
def test_with_one_site_it_is_lloyd_on_the_pooled_records_from_the_same_start(n, seed):
    features = blobs(n, 2, seed)
    centres = pooled_start(features, 2, 3, seed)
    expected = [lloyd(features.numpy(), start.numpy(), 4) for start in centres]
    history = []
    for _ in range(4):
        sums, counts, inertia = kmeans.local_sums(features, centres)
        history.append(inertia)
        centres = kmeans.next_centres(centres, sums, counts)
    for restart, (found, inertias) in enumerate(expected):
        assert np.allclose(centres[restart], found, rtol=0, atol=1e-9)
        assert np.allclose([step[restart] for step in history], inertias, rtol=1e-9)


@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5), seed=seeds)
def test_sums_over_sites_are_those_of_the_pooled_records(sizes, seed):
    features = blobs(sum(sizes) + 1, 3, seed)
    centres = pooled_start(features, 3, 4, seed)
    parts = features[:-1].split(sizes)
    pooled = [*kmeans.local_sums(features[:-1], centres), *kmeans.moments(features[:-1])]
    each = [[*kmeans.local_sums(part, centres), *kmeans.moments(part)] for part in parts]
    for at, expected in enumerate(pooled):
        found = sum(site[at] for site in each)
        assert torch.allclose(torch.as_tensor(found), torch.as_tensor(expected), rtol=0, atol=1e-8)


def test_counts_and_sums_cover_every_record_in_every_restart():
    features = blobs(5000, 2, 1)  # more than one batch
    sums, counts, _ = kmeans.local_sums(features, pooled_start(features, 3, 5, 1))
    assert counts.sum(dim=1).tolist() == [5000.0] * 3
    assert torch.allclose(sums.sum(dim=1), features.sum(dim=0).expand(3, 2))


def test_an_empty_cluster_keeps_its_centre_whatever_fixed_point_left_in_its_sums():
    centres = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    moved = kmeans.next_centres(centres, torch.tensor([[1e-9, -1e-9], [10.0, 20.0]]), torch.tensor([1e-9, 2]))
    assert moved.tolist() == [[1.0, 2.0], [5.0, 10.0]]
    # ... and so does every cluster when nobody contributed
    assert torch.equal(kmeans.next_centres(centres, torch.zeros(2, 2), torch.zeros(2)), centres.double())


def test_quality_is_near_scikit_learns_on_digits():
    images = load_digits().data / 16
    features = torch.from_numpy(images)
    sites = features.split(300)
    totals = [sum(part) for part in zip(*(kmeans.moments(site) for site in sites), strict=True)]
    centres = kmeans.starts(*kmeans.mean_and_covariance(*totals), 10, 10, seed=1)
    for _ in range(30):
        sums, counts, inertia = (
            sum(part) for part in zip(*(kmeans.local_sums(s, centres) for s in sites), strict=True)
        )
        centres = kmeans.next_centres(centres, sums, counts)
    chosen = centres[kmeans.best(inertia)]
    found = float((features - chosen[kmeans.assign(features, chosen)]).square().sum())
    assert found <= KMeans(10, n_init=10, random_state=0).fit(images).inertia_ * 1.01
    assert found == pytest.approx(float(inertia.min()), rel=1e-3)


def test_starts_have_the_mean_and_covariance_of_the_records():
    features = blobs(400, 3, 2) @ torch.tensor([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [-1.0, 0.3, 0.1]]).double()
    mean, covariance = kmeans.mean_and_covariance(*kmeans.moments(features))
    drawn = kmeans.starts(mean, covariance, 100, 200, seed=3).reshape(-1, 3)
    spread = covariance.diagonal().sqrt()
    assert bool(((drawn.mean(dim=0) - mean).abs() < 0.03 * spread).all())
    assert torch.allclose(torch.cov(drawn.T), covariance, atol=0.05 * float(spread.max()) ** 2)


def test_starts_depend_on_the_seed_and_restart_only():
    mean, covariance = torch.zeros(2), torch.eye(2)
    one, other = (kmeans.starts(mean, covariance, 4, 3, seed) for seed in (1, 2))
    assert not torch.equal(one, other)
    assert len({tuple(start.flatten().tolist()) for start in one}) == 4
    assert torch.equal(one, kmeans.starts(mean, covariance, 4, 3, 1))


def test_starts_are_the_same_bits_on_every_machine():
    mean = torch.tensor([0.1, -0.2, 0.3])
    covariance = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 0.5]])
    drawn = kmeans.starts(mean.double(), covariance.double(), 2, 4, seed=7)
    # A known answer: whatever changes it makes aggregator and sites disagree under encrypted protection.
    assert hashlib.sha256(drawn.numpy().astype("<f8").tobytes()).hexdigest() == KNOWN_STARTS


@pytest.mark.parametrize("constant", [0.0, 1e-18, -1e-12])
def test_a_singular_or_slightly_indefinite_covariance_gives_finite_starts(constant):
    covariance = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, constant]], dtype=torch.float64)
    drawn = kmeans.starts(torch.zeros(3), covariance, 2, 3, 1)
    assert bool(torch.isfinite(drawn).all())
    assert torch.allclose(drawn[..., 0], drawn[..., 1])
    assert float(drawn[..., 2].abs().max()) < 1e-5


def test_equal_restarts_and_equal_distances_go_to_the_first():
    assert kmeans.best(torch.tensor([2.0, 1.0, 1.0])) == 1
    assert kmeans.assign(torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])).tolist() == [0]
    assert kmeans.assign(torch.zeros(0, 2), torch.zeros(3, 2)).tolist() == []


def test_distances_far_from_the_origin_do_not_cancel():
    features = torch.tensor([[1e8 + 1.0], [1e8 - 1.0]], dtype=torch.float64)
    _, counts, inertia = kmeans.local_sums(features, features.reshape(1, 2, 1))
    assert (counts.tolist(), inertia.tolist()) == ([[1.0, 1.0]], [0.0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_record_without_finite_features_counts_as_the_origin(bad):
    features, centres = torch.tensor([[bad, 5.0], [3.0, 4.0]]), torch.tensor([[[1.0, 0.0], [3.0, 3.0]]])
    origin = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    for function in (
        lambda rows: kmeans.local_sums(rows, centres),
        kmeans.moments,
        lambda rows: (kmeans.assign(rows, centres[0]),),
    ):
        for found, wanted in zip(function(features), function(origin), strict=True):
            assert torch.equal(torch.as_tensor(found), torch.as_tensor(wanted))
    assert kmeans.local_sums(features, centres)[1].sum() == 2  # nobody is missing from the counts


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_sum_that_is_no_number_cannot_start(bad):
    with pytest.raises(RangeError, match="NaN"):
        kmeans.starts(torch.tensor([bad, 0.0]), torch.eye(2), 1, 1, 0)


def test_no_records_at_all_is_an_error_of_the_mean():
    with pytest.raises(RangeError, match="no records"):
        kmeans.mean_and_covariance(torch.zeros(2), torch.zeros(2, 2), 0.0)


def unit_rows(n: int, seed: int) -> torch.Tensor:
    return torch.nn.functional.normalize(blobs(n, 3, seed) + 0.1, dim=1)


@given(n=st.integers(5, 40), seed=seeds)
def test_centres_on_the_sphere_make_it_spherical_k_means(n, seed):
    features = unit_rows(n, seed)
    centres = kmeans.on_sphere(pooled_start(features, 2, 3, seed))
    before = [float("inf")] * 2
    for _ in range(5):
        assert torch.allclose(centres.norm(dim=-1), torch.ones(2, 3, dtype=torch.float64))
        sums, counts, inertia = kmeans.local_sums(features, centres)
        cosines = features @ centres.transpose(-1, -2)  # [runs, n, K]
        assert torch.allclose(inertia, 2 * n - 2 * cosines.max(dim=-1).values.sum(dim=-1), atol=1e-9)
        assert all(float(now) <= then + 1e-9 for now, then in zip(inertia, before, strict=True))
        before = inertia.tolist()
        centres = kmeans.on_sphere(kmeans.next_centres(centres, sums, counts))


def test_the_sphere_keeps_directions_and_a_centre_without_any():
    centres = torch.tensor([[[3.0, 4.0], [0.0, 0.0]], [[-2.0, 0.0], [1e-3, 0.0]]], dtype=torch.float64)
    expected = torch.tensor([[[0.6, 0.8], [0.0, 0.0]], [[-1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    assert torch.equal(kmeans.on_sphere(centres), expected)
