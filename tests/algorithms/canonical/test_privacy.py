"""Canonical clustering under ``noise = "sum"``: what it pays for, what noise does, and what is refused."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.canonical.discriminants import discriminants
from secfed.algorithms.canonical.moments import Moments, moments
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.unit_sums import ADDED_UP, UnitSums
from secfed.errors import ConfigError
from secfed.pipeline.noised_algorithm import NoisedAlgorithm, with_privacy
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Totals
from tests.algorithms.canonical_case import pool, study
from tests.algorithms.loop import Rounds
from tests.secfed import privacy_case

EXAMPLES = Path(__file__).parents[3] / "examples"
PRIVATE = {"unit": "record", "noise": "sum", "epsilon": 8.0, "delta": 1e-4}


PATIENTS = {"unit": "group", "group_size": 4, "adjacency": "replace-patient"}


def private(**changes: Any) -> Study:
    """The tiny study with noise in the sum; keys of ``[privacy]``, None removes one."""
    table = {key: value for key, value in {**PRIVATE, **changes}.items() if value is not None}
    return study().replace("protection.name", "masked").replace("privacy", table)


def noised(chosen: Study) -> NoisedAlgorithm:
    algorithm = build(chosen)
    found = with_privacy(chosen, algorithm, algorithm.setting.sites)
    assert isinstance(found, NoisedAlgorithm)
    return found


@pytest.mark.parametrize("refinements", [0, 2])
@pytest.mark.parametrize("metrics", ["withheld", "private", "unprotected"])
def test_every_sum_has_the_bound_and_the_share_of_its_stage(metrics: str, refinements: int) -> None:
    chosen = private(metrics=metrics).replace("algorithm.refinements", refinements)
    algorithm = build(chosen)
    bounds = [algorithm.unit_bound(stage.exchange) for stage in algorithm.plan.summing]
    for stage, bound in zip(algorithm.plan.summing, bounds, strict=True):
        assert bound is not None
        assert bound.norm == stage.sensitivity * ADDED_UP > stage.sensitivity
        assert bound.scales == {}
    for_clusters = 0.9 if metrics == "private" else 1.0
    assert sum(bound.share for bound in bounds if bound) == pytest.approx(for_clusters)
    with_noise = noised(chosen)
    scoring = with_noise.exchanges(2)
    assert len(scoring) == (0 if metrics == "withheld" else 1)
    for exchange in (*with_noise.exchanges(1), *scoring):
        bare = metrics == "unprotected" and exchange in scoring
        assert (with_noise.event_of(exchange) is None) == bare == bool(with_noise.unprotected(exchange))
    if metrics == "private":
        [bound] = [algorithm.unit_bound(exchange) for exchange in algorithm.exchanges(2)]
        assert bound is not None
        assert bound.share == pytest.approx(0.1)  # privacy.metrics_share


def test_hospitals_with_one_view_add_their_noise_to_what_views_have_in_common() -> None:
    """They add zeros and a share: the shares of this sum are as small as those of all others."""
    chosen = private().replace("protection.max_dropouts", 0)
    with_noise, algorithm = noised(chosen), build(chosen)
    sites = algorithm.setting.sites
    full = frozenset(algorithm.plan.full)
    assert len(full) < len(sites)
    for exchange in with_noise.exchanges(1):
        assert tuple(with_noise.members(1, exchange, sites)) == tuple(sites)
        noise = with_noise._noises[with_noise.inner_exchange(exchange)]
        assert (noise.min_survivors, noise.colluders) == (len(sites), 1)
    cross = algorithm.exchanges(1)[1]
    assert cross.name == "cross"
    # Zeros hide nothing: two honest hospitals that hold all views are in every sum, whoever colludes.
    assert with_noise.contributors(1, with_noise.exchanges(1)[1]) == ((full, 3),)
    # Of the kinds with one view two are too few, and one: they add noise to zeros.
    rounds = Rounds(algorithm)
    for exchange in algorithm.exchanges(1):
        got = rounds.take(1, exchange.name)
        if exchange.name not in ("moments", "cross"):
            assert algorithm.contributors(1, exchange) == ((full, 3),)
            adding = {site for site in sites if any(bool(one.any()) for one in got[site].values())}
            assert adding == full
    broadcast = algorithm.server().broadcast(1, cross)
    for site in sites:
        algorithm.check_broadcast(1, cross, broadcast)
        added = algorithm.site(site).contribute(1, cross, broadcast)["cross-1-2"]
        assert bool(torch.as_tensor(added).any()) == (site in full)
    with pytest.raises(ConfigError, match="2 sites hold all views, but a sum over them needs 3"):
        noised(chosen.replace("data.holds", [-1, -1, 0, 0, 0, 1]))
    # More hospitals in every sum than hold all views.
    assert noised(private().replace("protection.min_cohort", 5))


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"noise": None}, {}, r"privacy\.unit: .*"),
    ({**PATIENTS, "metrics": "private"}, {}, r"privacy\.metrics: "),
    ({"clip_norm": 2.0}, {}, r"privacy\.clip_norm: "),
    ({}, {"algorithm.maps": "standard"}, r"algorithm\.maps: "),
]


@pytest.mark.parametrize(("privacy", "changes", "said"), REFUSED)
def test_what_noise_in_the_sum_cannot_hide_is_refused(
    privacy: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    def build_it() -> None:
        chosen = private(**privacy)
        for key, value in changes.items():
            chosen = chosen.replace(key, value)
        noised(chosen)

    with pytest.raises(ConfigError, match=said) as refused:
        build_it()
    assert refused.value.remedy


def test_noise_adds_to_variances_and_shrinks_means() -> None:
    torch.manual_seed(0)
    records = torch.nn.functional.normalize(torch.randn(200, 6, dtype=torch.float64), dim=1)
    total = moments(records)
    assert float(total.spread()) == pytest.approx(3**0.5 / 200)
    assert float(Moments(total.outer, total.sums, 0 * total.records).spread()) < 10
    labels = records[:, 0] > 0
    sums = torch.stack([records[~labels].sum(dim=0), records[labels].sum(dim=0)])
    counts = torch.tensor([float((~labels).sum()), float(labels.sum())], dtype=torch.float64)
    given = [sums], [counts], [total.means()], [total.covariances()], 0.1
    exact, little, much = (discriminants(*given, noise=noise) for noise in (0.0, 1e-3, 1e4))
    assert torch.allclose(exact.directions[0], little.directions[0], atol=1e-4)
    assert float(much.directions[0].abs().max()) == 0.0  # means that are noise tell nothing
    assert torch.isfinite(much.offsets[0]).all()


def test_ridges_grow_with_the_noise_of_moments_and_of_cross_covariances() -> None:
    algorithm = build(study(algorithm__noise_ridge=0.5))
    server, spread = algorithm.server(), []
    for exchange, noise in zip(algorithm.exchanges(1)[:2], (2.0, 3.0), strict=True):
        ones = {field.name: torch.ones(field.shape, dtype=torch.float64) for field in exchange.layout.fields}
        server.absorb(1, exchange, Totals(ones, tuple(algorithm.plan.sites), noise=noise))
        spread = [float(server.save()[f"model/spread/{v}"]) for v in range(2)]
    assert server._floors() == pytest.approx([0.5 * (2.0 + 3.0) * one for one in spread])


def test_digits_are_clustered_within_epsilon(tmp_path: Path) -> None:
    chosen = Study.load(EXAMPLES / "canonical-digits.toml").replace("protection.min_cohort", 4)
    chosen = chosen.replace("privacy", {**PRIVATE, "epsilon": 60.0, "metrics": "private"})
    report = privacy_case.run(chosen.replace("algorithm.kmeans_iterations", 5), tmp_path)
    assert report.final["acc"] > 0.5  # 0.1 by chance
    assert report.privacy is not None
    assert report.privacy.unprotected == ()
    assert all(30 < site.epsilon <= 60 for site in report.privacy.sites)
    assert max(site.epsilon for site in report.privacy.sites) > 59  # whoever adds to every sum


def test_patients_are_clustered_within_epsilon(tmp_path: Path) -> None:
    """Twice the norm of add-or-remove, and pairs of records that count as one."""
    rows = pool(6 * 200, noise=0.2)
    patients = np.concatenate([np.repeat(np.arange(100), 2)] * 6)
    sites = np.repeat([f"hospital-{number}" for number in range(1, 7)], 200)
    views = {f"X{number}": view for number, view in enumerate(rows.views, start=1) if view is not None}
    np.savez(tmp_path / "views.npz", **views, Y=rows.labels, where=sites, whose=patients)  # type: ignore[arg-type]
    data = {
        "name": "multiview",
        "path": str(tmp_path / "views.npz"),
        "classes": 3,
        "sites": sorted(set(sites.tolist())),
        "site_key": "where",
        "patient_key": "whose",
    }
    chosen = private(**{**PATIENTS, "epsilon": 300.0, "metrics": "unprotected"}).replace("data", data)
    report = privacy_case.run(chosen.replace("protection.min_cohort", 4), tmp_path / "run")
    assert report.final["acc"] > 0.9
    assert report.privacy is not None
    assert all(200 < site.epsilon <= 300 for site in report.privacy.sites)


def test_patients_that_nobody_names_are_refused() -> None:
    chosen = private(**PATIENTS)
    algorithm = build(chosen)
    sums = UnitSums(chosen.privacy, seed=1, random=lambda *_: SecureRandom())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="which records are of one patient"):
        algorithm.site("hospital-1").use_unit_sums(sums)


@pytest.mark.slow
@pytest.mark.shared_data
def test_mnist_usps_at_epsilon_10() -> None:
    found = []
    for seed in (1, 2, 3):
        chosen = Study.load(EXAMPLES / "canonical-mnist-usps.toml").replace("study.seed", seed)
        assert chosen.privacy is not None
        assert (chosen.privacy.epsilon, chosen.privacy.noise) == (10.0, "sum")
        assert chosen.protection.colluders == 2
        found.append(privacy_case.run(chosen).final["acc"])
    assert mean(found) >= 0.94
