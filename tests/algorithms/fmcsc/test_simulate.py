"""FMCSC through the whole round: protections, dropouts, hidden view types, scores."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from secfed.algorithms.fmcsc import kmeans
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.framework.server_state import part_of
from secfed.runs.run_report import RunReport
from secfed.study.build import build_data
from secfed.study.study import Study
from tests.algorithms.fmcsc_case import study, tiny, whole
from tests.algorithms.loop import simulate as loop
from tests.algorithms.pooled_kmeans import pooled_kmeans
from tests.algorithms.whole import model_bytes, run

QUICK = {"study__rounds": 2, "algorithm__pretrain_rounds": 1}
QUICK |= {"algorithm__kmeans_iterations": 2, "algorithm__group_iterations": 1}


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, RunReport]:
    """The model and report of the plain run with public view types."""
    out = tmp_path_factory.mktemp("public")
    report = run(study(**QUICK), out)
    return model_bytes(out), report


def test_model_and_scores_are_identical_under_encrypted_and_plain(tmp_path, public):
    report = run(study(**QUICK, protection__name="encrypted"), tmp_path)
    assert [entry.aborted for entry in report.rounds] == [None] * 2
    assert report.final == public[1].final
    assert set(report.final) == {"acc", "nmi", "ari"}
    assert model_bytes(tmp_path) == public[0]


def test_hiding_view_types_changes_no_model(tmp_path, public):
    run(study(**QUICK, protection__name="masked", algorithm__view_types="hidden"), tmp_path)
    assert model_bytes(tmp_path) == public[0]


def test_hidden_view_types_leave_every_site_the_same_number_of_bytes():
    algorithm = tiny(algorithm__view_types="hidden")
    layouts = {exchange.layout.elements for exchange in algorithm.exchanges(3)}
    assert len(layouts) == 1


def test_a_dropped_site_equals_an_absent_one(tmp_path):
    run(study(**QUICK), tmp_path / "absent", "hospital-5@train:2")
    report = run(study(**QUICK, protection__name="masked"), tmp_path / "dropped", "hospital-5@mask:2")
    assert ("hospital-5", "mask") in report.rounds[1].drops
    assert report.rounds[1].aborted is None
    assert model_bytes(tmp_path / "absent") == model_bytes(tmp_path / "dropped")


def test_scores_are_those_of_all_records_together(tmp_path):
    algorithm = tiny()
    server = whole()
    centres = server.save()["scoring/found"]
    found, labels = [], []
    for site in algorithm.plan.tabled:
        data = algorithm.site_data(site)
        view = algorithm.plan.view_of[site]
        group = 0 if view is None else view + 1
        network = algorithm.networks.holding(part_of(server.model(), algorithm.plan.groups[group] + "/"))
        with torch.no_grad():
            found.append(kmeans.assign(network(data.views), centres[group]))
        labels.append(data.labels)
    found, labels = torch.cat(found).numpy(), torch.cat(labels).numpy()
    metrics = server.metrics()[4]
    assert metrics["nmi"] == pytest.approx(normalized_mutual_info_score(labels, found))
    assert metrics["ari"] == pytest.approx(adjusted_rand_score(labels, found))


def pooled_features(algorithm, server, group: int) -> torch.Tensor:
    """h of all records that are scored with a group's model."""
    network = algorithm.networks.holding(part_of(server.model(), algorithm.plan.groups[group] + "/"))
    with torch.no_grad():
        sites = algorithm.plan.scored(group)
        return torch.cat([network(algorithm.site_data(site).views) for site in sites])


def lloyd(features: torch.Tensor, centres: torch.Tensor, iterations: int):
    """Lloyd's algorithm on records that lie together."""
    inertia = torch.zeros(len(centres))
    for _ in range(iterations):
        sums, counts, inertia = kmeans.local_sums(features, centres)
        centres = kmeans.next_centres(centres, sums, counts)
    return centres, inertia


def test_federated_clusters_are_those_of_lloyd_on_the_pooled_features():
    algorithm, server = tiny(), whole()
    full = pooled_features(algorithm, server, 0)
    mean, covariance = kmeans.mean_and_covariance(*kmeans.moments(full))
    centres, inertia = lloyd(full, kmeans.starts(mean, covariance, 3, 3, derive_seed(5, "k-means", 5)), 3)
    chosen = centres[kmeans.best(inertia)]
    moved, _ = lloyd(pooled_features(algorithm, server, 1), chosen[None], 2)
    found = server.save()["scoring/found"]
    assert torch.allclose(found[0], chosen, atol=1e-9)
    assert torch.allclose(found[1], moved[0], atol=1e-9)
    assert not torch.allclose(found[1], chosen, atol=1e-3)
    assert algorithm.plan.tabled == algorithm.plan.sites[:6]
    assert torch.equal(found[2], found[0])  # one site is too few for a sum: it keeps the centres of all views


def test_participants_and_others_are_scored_apart_and_together():
    changes = {**QUICK, "data__views": [-1] * 10 + [0] * 10, "algorithm__participation": 0.7}
    assert len(tiny(**changes).plan.participants) == 14
    metrics = loop(study(**changes)).metrics()[2]
    assert {"acc", "participating_acc", "others_acc"} <= set(metrics)
    # One matching for all records is never better than one for each part.
    assert metrics["acc"] <= 0.7 * metrics["participating_acc"] + 0.3 * metrics["others_acc"] + 1e-9


def test_too_few_others_for_a_sum_are_not_scored_apart():
    algorithm = tiny(**QUICK, data__views=[-1] * 4 + [0] * 4, algorithm__participation=0.75)
    assert len(algorithm.plan.participants) == 6
    table = algorithm.exchanges(3)[-1]
    assert [field.name for field in table.layout.fields] == ["table"]
    program, state = algorithm.site("hospital-4"), {"centres": torch.zeros(3, 3, 4)}
    program._scoring.remember(3, torch.rand(24, 4))
    assert float(program._scoring.contribute(3, algorithm.stage(3, table), state)["table"].sum()) == 24


def test_a_site_that_does_not_take_part_never_trains():
    report = run(study(**QUICK, data__views=[-1] * 4 + [0] * 4, algorithm__participation=0.75), None)
    for entry in report.rounds:
        assert set(entry.asked) == {f"hospital-{at}" for at in (1, 2, 3, 5, 6, 7)}


def test_the_model_file_holds_every_group(public):
    assert {name.split("/")[0] for name in load(public[0])} == {"full", "view-1", "view-2"}


EXAMPLES = ["fmcsc-digits", "fmcsc-mnist-usps", "fmcsc-mnist-usps-full", "fmcsc-bdgp-full"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_parse(repository, name):
    made = Study.load(repository / "examples" / f"{name}.toml")
    assert made.algorithm.name == "fmcsc"
    assert made.study.rounds - made.algorithm.pretrain_rounds >= 4


def smaller(made: Study) -> Study:
    """400 records at four sites and one main round: a look at the real data, not at accuracy."""
    changes = {
        "study.rounds": 5,
        "algorithm.pretrain_rounds": 4,
        "algorithm.pretrain_epochs": 5,
        "algorithm.pretrain_share": 1.0,
        "algorithm.local_epochs": 2,
        "algorithm.distillation_epochs": 3,
        "algorithm.kmeans_iterations": 3,
        "algorithm.restarts": 3,
        "model.hidden": [64, 64, 128],
        "data.per_class": 40,
        "data.sites": 4,
        "data.single_view_sites": 1,
        "protection.name": "plain",
    }
    tables = made.model_dump(exclude_unset=True)
    del tables["data"]["ratio"]
    for key, value in changes.items():
        section, name = key.split(".")
        tables[section][name] = value
    return Study._from_tables({name: table for name, table in tables.items() if table}, made.folder)


def check_smoke(made: Study) -> None:
    report = run(made, None)
    assert [entry.aborted for entry in report.rounds] == [None] * 5
    losses = [entry.metrics["pretrain_loss"] for entry in report.rounds[:3]]
    assert losses == sorted(losses, reverse=True)
    assert 0.1 <= report.final["acc"] <= 1


def test_smoke_on_digits(repository):
    check_smoke(smaller(Study.load(repository / "examples" / "fmcsc-digits.toml")))


@pytest.mark.shared_data
def test_smoke_on_mnist_usps(repository, shared_data, monkeypatch):
    monkeypatch.setenv("SECFED_DATA", str(shared_data))
    check_smoke(smaller(Study.load(repository / "examples" / "fmcsc-mnist-usps.toml")))


@pytest.mark.slow
def test_digits_beat_pooled_kmeans_and_averaging_without_synergy(repository):
    made = Study.load(repository / "examples" / "fmcsc-digits.toml").replace("protection.name", "plain")
    found = run(made, None).final["acc"]
    assert found >= 0.8
    assert found > pooled_kmeans(build_data(made), 10, made.seed)["acc"] + 0.2
    for key in ("distillation", "model_contrast"):
        made = made.replace(f"algorithm.{key}", False)
    assert found > run(made.replace("algorithm.weights", "equal"), None).final["acc"] + 0.1


@pytest.mark.slow
@pytest.mark.shared_data
def test_mini_mnist_usps_needs_distillation_and_a_common_start(repository, shared_data, monkeypatch):
    monkeypatch.setenv("SECFED_DATA", str(shared_data))
    made = Study.load(repository / "examples" / "fmcsc-mnist-usps.toml").replace("protection.name", "plain")
    made = made.replace("algorithm.small_kinds", "summed")  # as published: all eight hospitals
    assert run(made, None).final["acc"] >= 0.75
    assert run(made.replace("algorithm.distillation", False), None).final["acc"] <= 0.65
    # The same local work, but every site starts elsewhere and the models are averaged once.
    made = made.replace("study.rounds", 7).replace("algorithm.pretrain_rounds", 1)
    made = made.replace("algorithm.pretrain_epochs", 300).replace("algorithm.pretrain_share", 1.0)
    assert run(made.replace("algorithm.pretrain_start", "independent"), None).final["acc"] <= 0.5
