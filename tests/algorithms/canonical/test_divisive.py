"""Divisive starts on many clusters, beside k-means++ on the pooled embedding, which no sum could give."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from secfed.algorithms.canonical import clusters
from secfed.algorithms.canonical.algorithm import Canonical
from secfed.algorithms.canonical.projections import embedded
from secfed.algorithms.metrics.clustering import contingency, scores
from secfed.algorithms.models.feature_maps import unit
from tests.algorithms.canonical_case import held_by, on, species
from tests.algorithms.loop import simulate

SITES = 4


def algorithm(records: Any, count: int, **changes: Any) -> Canonical:
    shares = np.array_split(np.arange(len(records.labels)), SITES)
    data = held_by(records, [-1] * SITES, shares, count)
    return on(data, data__holds=[-1] * SITES, **changes)


def accuracies(count: int, seed: int, records: int, latent: int, iterations: int) -> dict[str, float]:
    pool = species(records, count, latent=latent, spread=0.35, seed=seed)
    common = {"dimensions": min(count - 1, 60), "kmeans_iterations": iterations}
    found = {}
    for starts, restarts in (("simplex", 4), ("divisive", 1)):
        options = {"starts": starts, "restarts": restarts, **common}
        made = algorithm(pool, count, **{f"algorithm__{name}": value for name, value in options.items()})
        server = simulate(made.setting.study, algorithm=made)
        found[starts] = server.metrics()[1]["acc"]
    model = {name: value.double() for name, value in server.model().items()}
    views = [one(torch.from_numpy(view), 0) for one, view in zip(made.maps, pool.views, strict=True)]
    means, projections = ([model[f"{what}/{v}"] for v in range(3)] for what in ("mean", "projection"))
    seen = embedded(views, means, projections).numpy()
    labels = KMeans(count, n_init=10, random_state=seed).fit(seen).labels_
    table = contingency(torch.from_numpy(labels), torch.from_numpy(pool.labels), count, count)
    return {**found, "k-means++": scores(table)["acc"]}


def check(runs: list[dict[str, float]]) -> None:
    mean = {name: fmean(run[name] for run in runs) for name in runs[0]}
    assert mean["divisive"] >= mean["k-means++"] - 0.03
    assert mean["divisive"] >= mean["simplex"] + 0.03


def test_thirty_clusters_are_found_as_well_as_by_kmeans_plus_plus() -> None:
    check([accuracies(30, seed, 450, 9, 8) for seed in (1, 2)])


@pytest.mark.slow
def test_a_hundred_clusters_are_found_as_well_as_by_kmeans_plus_plus() -> None:
    check([accuracies(100, seed, 1600, 12, 15) for seed in (1, 2, 3)])


def test_parts_that_hold_two_clusters_are_split_and_halves_joined() -> None:
    """Of four clusters one lies in two parts, and one part holds two: one sum of moments mends it."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(4), 50)
    seen = unit(torch.from_numpy(np.eye(5)[labels] + rng.normal(0, 0.1, (200, 5))))
    axes = torch.eye(5, dtype=torch.float64)
    tilt = 0.1 * axes[4]
    centres = unit(torch.stack([axes[0] + tilt, axes[0] - tilt, axes[1], axes[2] + axes[3]]))
    shares = [clusters.parts_moments(part, centres, 4) for part in seen.split(60)]
    whole = clusters.Moments(
        sum(share.outer for share in shares),  # type: ignore[arg-type]
        sum(share.sums for share in shares),  # type: ignore[arg-type]
        sum(share.records for share in shares),  # type: ignore[arg-type]
    )
    mended = clusters.mended(whole)
    nearest = clusters.assigned(seen, mended[None])[0][:, 0]
    assert len({(int(label), int(part)) for label, part in zip(labels, nearest, strict=True)}) == 4
    again = clusters.mended(clusters.parts_moments(seen, mended, 4))
    assert torch.equal(clusters.assigned(seen, again[None])[0][:, 0], nearest)  # nothing is left to mend


@pytest.mark.parametrize("count", [1, 2, 4])
def test_mending_nothing_gives_numbers_all_the_same(count: int) -> None:
    none = clusters.parts_moments(torch.zeros(0, 6).double(), torch.zeros(count, 6).double(), count)
    assert bool(torch.isfinite(clusters.mended(none)).all())
