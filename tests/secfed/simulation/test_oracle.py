from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from secfed.runs.run_report import Comparison
from secfed.simulation.comparison import Comparer
from secfed.simulation.oracle import worst_site_metrics
from secfed.study.build import build, build_data
from secfed.study.study import Study
from secfed.wire.layout import State
from tests.algorithms.loop import BREAST_CANCER, add_in_ring, simulate

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("SECFED_DATA") or ROOT / ".." / "shared" / "data")


def compare_alone(study: Study, model: State) -> Comparison:
    return Comparer(study, build(study), build_data(study), "alone").result(model)


def test_metrics_per_site_average_to_the_summed_metrics():
    study = Study.parse(BREAST_CANCER)
    server, algorithm = simulate(study), build(study)
    per_site = algorithm.per_site(server.model())
    records = {site: len(algorithm.site_data(site).test_y) for site in per_site}
    pooled = sum(per_site[site]["accuracy"] * records[site] for site in per_site) / sum(records.values())
    assert pooled == pytest.approx(server.metrics()[3]["accuracy"])


def test_alone_equals_a_federation_in_which_only_that_site_has_weight():
    study = Study.parse(BREAST_CANCER).replace("algorithm.momentum", 0.5)
    only = simulate(study, order=["hospital-2"])
    _, row, *_ = compare_alone(study, only.model()).rows
    assert row.where == "hospital-2"
    assert row.other["accuracy"] == row.federated["accuracy"]
    assert row.other["loss"] == pytest.approx(row.federated["loss"], rel=1e-4)


def test_adapters_are_put_in_once_for_training_alone_too():
    study = Study.parse(
        BREAST_CANCER.replace('name = "fedavg"', 'name = "fedavg"\nadapters = ["*"]\nadapter_rank = 1')
    )
    assert len(compare_alone(study, build(study).initial).rows) > 1


def test_alone_ignores_the_pull_of_fedprox():
    averaging = Study.parse(BREAST_CANCER)
    prox = Study.parse(BREAST_CANCER.replace('"fedavg"', '"fedprox"\nmu = 5.0'))
    model = build(averaging).initial
    assert compare_alone(prox, model).rows == compare_alone(averaging, model).rows


def test_comparison_uses_the_same_held_out_records_and_ends_with_the_means():
    study = Study.parse(BREAST_CANCER)
    model = simulate(study).model()
    *rows, mean = compare_alone(study, model).rows
    assert {row.where: row.federated for row in rows} == build(study).per_site(model)
    assert mean.where == "mean"
    assert mean.other["loss"] == pytest.approx(sum(row.other["loss"] for row in rows) / len(rows))


def test_the_worst_site_is_of_those_that_have_the_metric():
    metrics = {"a": {"roc_auc": 0.8, "loss": 1.0}, "b": {"loss": 3.0}, "c": {"roc_auc": 0.6, "loss": 2.0}}
    assert worst_site_metrics(metrics) == {"roc_auc": 0.6, "loss": 3.0}
    assert worst_site_metrics({"a": {"mse": 1.0}, "b": {"mse": 9.0}}) == {"mse": 9.0}


def test_breast_cancer_example_reaches_its_goal_on_held_out_patients():
    study = Study.load(ROOT / "examples" / "breast-cancer.toml")
    metrics = simulate(study, adder=add_in_ring).metrics()
    assert 10 <= study.rounds <= 15
    assert len(build(study).setting.sites) == 4
    assert metrics[study.rounds]["roc_auc"] >= 0.97


def test_digits_example_learns():
    study = Study.load(ROOT / "examples" / "digits-cnn.toml").replace("study.rounds", 3)
    assert simulate(study, adder=add_in_ring).metrics()[3]["accuracy"] > 0.7


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.skipif(not (DATA / "fed_heart_disease.csv").is_file(), reason=f"{DATA} (SECFED_DATA) is absent")
def test_federated_hearts_beat_the_mean_of_hospitals_alone(monkeypatch):
    """Four real hospitals, three seeds that the settings were not chosen on."""
    monkeypatch.setenv("SECFED_DATA", str(DATA))
    example = Study.load(ROOT / "examples" / "heart-disease.toml")
    gains: dict[str, list[float]] = {}
    for seed in (301, 302, 303):
        study = example.replace("study.seed", seed)
        *rows, mean = compare_alone(study, simulate(study).model()).rows
        assert len(rows) == 4
        for name in ("roc_auc", "accuracy", "balanced_accuracy"):
            gains.setdefault(name, []).append(mean.federated[name] - mean.other[name])
    assert all(sum(gain) / 3 > 0 for gain in gains.values()), gains


@pytest.mark.shared_data
@pytest.mark.skipif(not (DATA / "fed_heart_disease.csv").is_file(), reason=f"{DATA} (SECFED_DATA) is absent")
def test_heart_disease_is_the_four_hospitals_as_documented(monkeypatch):
    monkeypatch.setenv("SECFED_DATA", str(DATA))
    algorithm = build(Study.load(ROOT / "examples" / "heart-disease.toml"))
    sites = {site: algorithm.site_data(site) for site in algorithm.setting.sites}
    counts = {site: len(data.train_y) + len(data.test_y) for site, data in sites.items()}
    assert counts == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    positive = {s: int(torch.cat([d.train_y, d.test_y]).sum()) for s, d in sites.items()}
    assert positive == {"cleveland": 139, "hungarian": 106, "switzerland": 115, "va": 149}
    assert bool((sites["switzerland"].train_x[:, -4] == 1).all())  # cholesterol was never measured
