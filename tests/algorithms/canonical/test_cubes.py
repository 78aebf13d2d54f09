"""Third moments by sums, and starts where they peak."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from secfed.algorithms.canonical.clusters import simplexes
from secfed.algorithms.canonical.cubes import cubes, peaks, size_of_cubes
from secfed.algorithms.models.feature_maps import unit


def records(clusters: int = 5, size: int = 5, count: int = 600, spread: float = 0.3) -> torch.Tensor:
    """Records about the corners of a simplex, which are the first K rows."""
    generator = torch.Generator().manual_seed(3)
    corners = simplexes(1, clusters, size, seed=1)[0]
    drawn = torch.randn(count, size, dtype=torch.float64, generator=generator)
    return torch.cat([corners, unit(corners[torch.arange(count) % clusters] + spread * drawn)])


def test_they_are_the_pooled_third_moments_each_product_once() -> None:
    seen = records(size=6).numpy()
    summed = sum(cubes(part) for part in torch.from_numpy(seen).split(100))
    whole = np.einsum("na,nb,nc->abc", seen, seen, seen)
    assert summed.shape == (size_of_cubes(6),)
    assert float(summed.norm()) == pytest.approx(np.linalg.norm(whole))
    assert float(summed[1]) == pytest.approx(np.sqrt(3) * whole[0, 0, 1])
    assert float(summed[7]) == pytest.approx(np.sqrt(6) * whole[0, 1, 2])
    half = cubes(torch.from_numpy(seen), torch.full((len(seen),), 0.5, dtype=torch.float64))
    assert torch.allclose(2 * half, summed)


def test_a_record_adds_the_third_power_of_its_norm() -> None:
    for row in (*records()[:20], 0.5 * records()[0], torch.eye(5, dtype=torch.float64)[2]):
        assert float(cubes(row[None]).norm()) == pytest.approx(float(row.norm()) ** 3)


@pytest.mark.parametrize(("clusters", "size", "noise"), [(5, 5, 0.0), (5, 5, 8.0), (3, 4, 0.0), (8, 8, 0.0)])
def test_peaks_are_one_at_every_cluster(clusters: int, size: int, noise: float) -> None:
    seen = records(clusters, size)
    summed = cubes(seen)
    drawn = torch.randn(summed.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    found = peaks(summed + noise * drawn, size, clusters, seed=1)
    assert torch.allclose(found.norm(dim=1), torch.ones(clusters, dtype=torch.float64))
    cosines = found @ seen[:clusters].T
    assert sorted(cosines.argmax(dim=1).tolist()) == list(range(clusters))
    assert float(cosines.max(dim=1).values.min()) > 0.9


def test_nothing_has_no_peaks_and_is_no_division_by_zero() -> None:
    assert bool(torch.isfinite(peaks(torch.zeros(size_of_cubes(4)).double(), 4, 3, seed=1)).all())
