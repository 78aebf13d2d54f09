"""k-means on concatenated views: completion, and what a study may not be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from secfed.algorithms.view_kmeans.algorithm import ViewKmeans
from secfed.errors import ConfigError
from secfed.study.build import build
from secfed.study.study import Study
from secfed.testing import check_algorithm
from tests.algorithms.canonical_case import pool
from tests.algorithms.canonical_case import study as canonical
from tests.algorithms.loop import Rounds, add_in_ring, simulate


def study(**changes: object) -> Study:
    made = canonical().replace("algorithm", {"name": "view-kmeans", "restarts": 4, "kmeans_iterations": 6})
    for key, value in changes.items():
        made = made.replace(key.replace("__", "."), value)
    return made


def acc(server: Any) -> float:
    return float(server.metrics()[1]["acc"])


@pytest.mark.parametrize("completion", ["mean", "regression", "prototypes"])
def test_it_keeps_the_rules_of_algorithms(completion: str) -> None:
    check_algorithm(ViewKmeans, study=study(algorithm__completion=completion))


def test_clusters_are_found_and_completion_by_regression_serves_sites_with_one_view() -> None:
    assert acc(simulate(study(data__holds=[-1] * 4))) > 0.95
    few = {"data__holds": [-1, -1, -1, 0, 0, 0, 1, 1, 1], "data__noise": 0.6, "data__per_site": 60}
    by_mean, by_regression = (
        acc(simulate(study(**few, algorithm__completion=how))) for how in ("mean", "regression")
    )
    assert by_regression > by_mean


def test_a_completed_record_is_what_ridge_regression_of_the_pooled_records_gives() -> None:
    made = Rounds(study(data__holds=[-1, -1, -1, 0]))
    made.take(1, 0)
    found = made.server._state
    seen = pool(120)
    known, lacking = (view[:90].astype(np.float64) for view in seen.views if view is not None)
    variances = known.var(axis=0).max()
    ridge = Ridge(alpha=0.01 * variances * 90).fit(known, lacking)
    one = np.asarray(seen.views[0])[90:].astype(np.float64)
    whole = np.hstack([one, ridge.predict(one)]) - np.hstack([known.mean(axis=0), lacking.mean(axis=0)])
    expected = whole @ found["projection/all"].numpy()
    projected = made.programs["hospital-4"]._projected(found).numpy()
    assert np.allclose(projected, expected, atol=1e-6)


def test_sums_through_fixed_point_give_the_same_clusters() -> None:
    assert acc(simulate(study(), adder=add_in_ring)) == acc(simulate(study()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study__rounds": 2}, "one round of sums"),
        ({"model__name": "logistic-regression"}, "no network"),
        ({"data": {"name": "digits", "sites": 4}}, "needs several views"),
        ({"data__holds": [-1, -1, 0, 0]}, "hold all views"),
        ({"protection__name": "masked", "protection__reveal": "sites"}, "repeats the server's step"),
    ],
)
def test_a_study_that_it_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(study(**changes))


def test_the_projection_is_onto_the_directions_in_which_records_vary_most() -> None:
    made = Rounds(study(data__holds=[-1] * 4))
    made.take(1, 0)
    records = torch.cat([program._records for program in made.programs.values()])
    centred = records - records.mean(dim=0)
    leading = made.server._state["projection/all"]
    spread = (centred @ leading).var(dim=0, correction=0)
    largest = torch.linalg.eigvalsh(centred.T @ centred / len(centred)).flip(0)[: leading.shape[1]]
    torch.testing.assert_close(spread, largest)


def test_prototypes_complete_a_record_by_what_belongs_to_the_nearest() -> None:
    made = Rounds(study(data__holds=[-1, -1, -1, 0], algorithm__completion="prototypes"))
    made.take(1, 0)
    exchanges = [exchange.name for exchange in made.algorithm.exchanges(1)]
    last = max(at for at, name in enumerate(exchanges) if name.startswith("prototypes-"))
    for at in range(1, last + 1):
        assert set(made.contributions(1, at)) == {"hospital-1", "hospital-2", "hospital-3"}
        made.take(1, at)
    given = made.server.broadcast(1, made.algorithm.exchanges(1)[last + 1])
    size = given["projection/0"].shape[1]
    whole = given["prototypes"][0]
    single = made.programs["hospital-4"]
    own = (single._records - given["mean"][: single._records.shape[1]]) @ given["projection/0"]
    nearest = torch.cdist(own, whole[:, :size]).argmin(dim=1)
    torch.testing.assert_close(single._projected(given), own + whole[nearest, size:])


def test_records_of_hospitals_with_one_view_are_completed_better_by_prototypes_than_by_means() -> None:
    few = {"data__holds": [-1, -1, -1, 0, 0, 0, 1, 1, 1], "data__noise": 0.6, "data__per_site": 60}
    by_mean, by_prototypes = (
        acc(simulate(study(**few, algorithm__completion=how))) for how in ("mean", "prototypes")
    )
    assert by_prototypes > by_mean


def test_hospitals_alone_sum_nothing_but_their_tables() -> None:
    alone = Rounds(study(algorithm__sharing="none"))
    assert [exchange.name for exchange in alone.algorithm.exchanges(1)] == ["table"]
    assert not alone.algorithm.exchanges(2)
    alone.round(1)
    assert 0.5 < alone.server.metrics()[1]["acc"] <= 1
    with pytest.raises(ConfigError, match=r"algorithm\.completion"):
        study(algorithm__sharing="none", algorithm__completion="mean")
