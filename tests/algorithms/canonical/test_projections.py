"""Moments and projections against computations on pooled records, written with NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from secfed.algorithms.canonical.moments import BLOCK_NORM, HALF, Moments, moments, power
from secfed.algorithms.canonical.projections import canonical, embedded, pairs, shortened
from tests.algorithms.canonical_case import SIZES


def views(count: int = 3, records: int = 200, seed: int = 1) -> list[torch.Tensor]:
    """Records of norm at most 1 that share three numbers."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(records, 3))
    seen = [shared @ rng.normal(size=(3, d)) + rng.normal(size=(records, d)) for d in SIZES[:count]]
    return [torch.from_numpy(one / np.linalg.norm(one, axis=1).max()) for one in seen]


def covariance(one: torch.Tensor, other: torch.Tensor) -> np.ndarray:
    left, right = one.numpy(), other.numpy()
    return (left - left.mean(0)).T @ (right - right.mean(0)) / len(left)


def found(records: list[torch.Tensor], dimensions: int, ridge: float) -> list[np.ndarray]:
    parts = [moments(one) for one in records]
    crosses = {
        (u, v): (records[u] - parts[u].means()).T @ (records[v] - parts[v].means())
        for u, v in pairs(len(records))
    }
    return [one.numpy() for one in canonical([p.covariances() for p in parts], crosses, dimensions, ridge)]


def regularised(records: list[torch.Tensor], ridge: float) -> list[np.ndarray]:
    within = [covariance(one, one) for one in records]
    return [one + ridge * np.linalg.eigvalsh(one)[-1] * np.eye(len(one)) for one in within]


def subspace(projection: np.ndarray) -> np.ndarray:
    basis = np.linalg.qr(projection)[0]
    return basis @ basis.T


def test_summed_moments_are_those_of_the_pooled_records() -> None:
    (one,) = views(1)
    parts = [moments(share) for share in one.split([50, 120, 30])]
    total = Moments(sum(p.outer for p in parts), sum(p.sums for p in parts), sum(p.records for p in parts))
    assert np.allclose(total.means(), one.numpy().mean(0))
    assert np.allclose(total.covariances(), np.cov(one.numpy().T, bias=True))
    assert float(total.records) == HALF * 200


def test_a_block_is_as_long_for_every_record_of_norm_1() -> None:
    """So the noise is no larger than it must be, whatever the record."""
    for row in (torch.eye(5, dtype=torch.float64)[:1], torch.full((1, 4), 0.5, dtype=torch.float64)):
        block = moments(row)
        parts = [block.outer, block.sums, block.records.reshape(1)]
        assert float(torch.cat([part.flatten() for part in parts]).norm()) == pytest.approx(BLOCK_NORM)


def test_moments_of_no_records_are_zeros() -> None:
    nothing = moments(torch.zeros(0, 4, dtype=torch.float64))
    assert not nothing.means().any()
    assert not nothing.covariances().any()


@pytest.mark.parametrize("exponent", [-0.5, -1.0])
def test_power_is_of_the_matrix_without_its_negative_part(exponent: float) -> None:
    matrix = covariance(*views(1) * 2) - 4e-3 * np.eye(SIZES[0])
    values, vectors = np.linalg.eigh(matrix)
    assert values[0] < 0 < values[-1]
    positive = vectors * values.clip(0) @ vectors.T
    for floor, least in ((0.0, 0.1 * values[-1]), (1.0, 1.0)):
        expected = scipy.linalg.fractional_matrix_power(positive + least * np.eye(len(values)), exponent)
        assert np.allclose(power(torch.from_numpy(matrix), exponent, 0.1, floor), expected)
    assert not power(torch.zeros(3, 3, dtype=torch.float64), exponent, 0.1).any()


@pytest.mark.parametrize("ridge", [0.01, 0.3])
def test_two_views_are_regularised_cca(ridge: float) -> None:
    """Generalised eigenvectors of C_ab C_b^-1 C_ba against C_a, and their regression on the other view."""
    one, other = views(2)
    a, b = regularised([one, other], ridge)
    cross = covariance(one, other)
    squares, vectors = scipy.linalg.eigh(cross @ np.linalg.solve(b, cross.T), a)
    leading, correlations = vectors[:, ::-1][:, :3], np.sqrt(squares[::-1][:3])
    expected = [leading * correlations, np.linalg.solve(b, cross.T @ leading)]
    for projection, wanted in zip(found([one, other], 3, ridge), expected, strict=True):
        scaled = wanted / np.abs(wanted).max()
        signs = np.sign((projection * scaled).sum(0))
        assert np.allclose(projection, scaled * signs, atol=1e-8)


def test_several_views_are_regularised_mcca() -> None:
    """Generalised eigenvectors of all cross-covariances against the block diagonal of the covariances."""
    records = views(3)
    within = regularised(records, 0.05)
    starts = np.cumsum([0, *SIZES])
    between = np.zeros((starts[-1], starts[-1]))
    for u in range(3):
        for v in range(3):
            if u != v:
                between[starts[u] : starts[u + 1], starts[v] : starts[v + 1]] = covariance(
                    records[u], records[v]
                )
    values, vectors = scipy.linalg.eigh(between, scipy.linalg.block_diag(*within))
    wanted = vectors[:, ::-1][:, :4] * values[::-1][:4]
    for view, projection in enumerate(found(records, 4, 0.05)):
        scaled = wanted[starts[view] : starts[view + 1]]
        scaled = scaled / np.abs(scaled).max()
        signs = np.sign((projection * scaled).sum(0))
        assert np.allclose(projection, scaled * signs, atol=1e-8)


def test_two_views_by_the_block_matrix_are_two_views_by_singular_values() -> None:
    records = [*views(2), torch.zeros(200, 2, dtype=torch.float64)]
    for one, other in zip(found(records[:2], 3, 0.1), found(records, 3, 0.1), strict=False):
        assert np.allclose(np.abs(one), np.abs(other), atol=1e-8)
    assert not found(records, 3, 0.1)[2].any()  # a view without content has no projection


def test_a_rotation_of_the_features_changes_no_embedding() -> None:
    records = views(2)
    turn = torch.from_numpy(np.linalg.qr(np.random.default_rng(2).normal(size=(SIZES[0], SIZES[0])))[0])
    turned = [records[0] @ turn, records[1]]
    for ridge in (1e-6, 0.1):  # a rotation keeps eigenvalues; any other change only without a ridge
        one, other = (_embedding(seen, found(seen, 3, ridge)) for seen in (records, turned))
        assert torch.allclose(one @ one.T, other @ other.T, atol=1e-6)
    stretched = [records[0] * torch.linspace(0.5, 1, SIZES[0]), records[1]]
    one, other = (_embedding(seen, found(seen, 3, 1e-10)) for seen in (records, stretched))
    assert torch.allclose(one @ one.T, other @ other.T, atol=1e-6)


def _embedding(records: list[torch.Tensor], projections: list[np.ndarray]) -> torch.Tensor:
    means = [one.mean(dim=0) for one in records]
    return embedded(records, means, [torch.from_numpy(one) for one in projections])


def test_a_record_is_embedded_alike_by_hospitals_with_one_view_and_with_all() -> None:
    records = views(2)
    projections = found(records, 3, 0.1)
    means, onto = [one.mean(dim=0) for one in records], [torch.from_numpy(one) for one in projections]
    for view in (0, 1):
        one_view = [one if v == view else None for v, one in enumerate(records)]
        only = embedded(one_view, means, onto)
        assert torch.allclose(only.norm(dim=1), torch.ones(200, dtype=torch.float64))
        # A second view that says nothing: every record is the mean.
        silent = [one if v == view else means[v].expand(200, -1) for v, one in enumerate(records)]
        assert torch.allclose(embedded(silent, means, onto), only)


def test_rows_are_shortened_and_never_lengthened() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(shortened(rows, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0, 0]]).double())


def test_what_noise_adds_to_variances_whitens_less() -> None:
    """So much more than any variance is the same as no variance and as much in all directions."""
    records = views(2)
    parts = [moments(one) for one in records]
    crosses = {(0, 1): records[0].T @ records[1]}
    much = canonical([part.covariances() for part in parts], crosses, 4, 0.01, [1e9, 1e9])
    none = canonical([torch.zeros_like(part.covariances()) for part in parts], crosses, 4, 0.01, [1.0, 1.0])
    little = canonical([part.covariances() for part in parts], crosses, 4, 0.01)
    for one, other, third in zip(much, none, little, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
        assert not torch.allclose(one, third, atol=1e-2)


@pytest.mark.parametrize("count", range(2, 9))
def test_no_embedding_depends_on_the_other_records_to_the_last_bit(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    drawn = [torch.randn(31, 4, generator=generator, dtype=torch.float64) for _ in range(count)]
    means = [one[0] for one in drawn]
    projections = [torch.randn(4, 2, generator=generator, dtype=torch.float64) for _ in range(count)]
    alone = torch.cat([embedded([one[at : at + 1] for one in drawn], means, projections) for at in range(31)])
    for number in range(1, 32):
        assert torch.equal(embedded([one[:number] for one in drawn], means, projections), alone[:number])
