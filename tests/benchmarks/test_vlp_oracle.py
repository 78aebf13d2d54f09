import math
import statistics

import pytest
import torch
import vlp_costs
import vlp_drift
import vlp_figures
import vlp_oracle
from distortion import mean_cosine

from secfed.algorithms.metrics import retrieval
from secfed.errors import ConfigError
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.loop import simulate
from tests.algorithms.toy_pairs import toy_pairs

STUDY = """
[study]
name = "small"
rounds = 2
seed = 3
[algorithm]
name = "{algorithm}"
learning_rate = 1e-3
batch_size = 8
evaluation_batch = 8
device = "cpu"
{keys}
[model]
name = "vision-language"
size = "tiny"
[data]
name = "chest-synthetic"
sites = 4
train = 24
test = 12
size = 16
[protection]
name = "plain"
"""
FEDAVG = ("vlp-fedavg", "local_steps = 2")
FEDDRA = ("feddra", "align_steps = 1\njoint_steps = 1\nloss_batches = 2\nloss_batch_size = 8")


def algorithm(which=FEDAVG, **changed):
    text = STUDY.format(algorithm=which[0], keys=which[1])
    for key, value in changed.items():
        text = text.replace(f"{key} = ", f"{key} = {value} #")
    return build(Study.parse(text))


@pytest.fixture(scope="module")
def fedavg():
    return algorithm()


@pytest.fixture(scope="module")
def trajectory():
    return vlp_oracle.run_in_clear(algorithm(FEDDRA))


def test_a_run_in_the_clear_is_the_run_of_the_study(fedavg):
    found = vlp_oracle.run_in_clear(fedavg)
    server = simulate(fedavg.setting.study, algorithm=fedavg)
    model = server.model()
    assert all(torch.equal(found.model[name], value) for name, value in model.items())
    assert found.metrics == server.metrics()
    mean = vlp_oracle.summary(found.per_site[-1])["recall_at_1"]
    assert mean == pytest.approx(server.metrics()[2]["recall_at_1"])
    assert found.weights == found.losses == ()
    network = fedavg.network(model)
    for site, scores in found.per_site[-1].items():
        alike = mean_cosine(network, fedavg.site_data(site).test, fedavg.device)
        assert scores["similarity"] == pytest.approx(alike)


def test_weights_and_losses_are_seen_after_every_round(trajectory):
    assert len(trajectory.weights) == len(trajectory.losses) == 2
    assert len(trajectory.per_site) == 3
    for weights, losses in zip(trajectory.weights, trajectory.losses, strict=True):
        assert sum(weights) == pytest.approx(1)
        assert all(0 < loss < 10 for loss in losses)
    first, losses = trajectory.weights[0], trajectory.losses[0]
    # From equal weights a larger loss gives a larger weight.
    assert sorted(range(4), key=lambda i: first[i]) == sorted(range(4), key=lambda i: losses[i])


def test_alone_is_federated_averaging_without_the_others(fedavg):
    others = [site for site in fedavg.setting.sites if site != "hospital-2"]
    wanted = simulate(fedavg.setting.study, dropped=others).model()
    found = vlp_oracle.train_alone(fedavg, "hospital-2")
    # AdamW turns even the rounding of a gradient that is zero into a step, so some differ in the fifth digit.
    assert all(torch.allclose(found[name], value, atol=1e-4) for name, value in wanted.items())
    assert max(float((found[name] - value).abs().max()) for name, value in fedavg.initial.items()) > 2e-3


def test_all_pairs_in_one_place_take_all_sites_steps_together(fedavg, monkeypatch):
    assert vlp_oracle.steps_of(fedavg) == 4
    assert vlp_oracle.steps_of(algorithm(FEDDRA)) == 4
    taken = []
    rows = vlp_oracle.contrastive_batches

    def counting(count, **keys):
        taken.append((count, keys["steps"]))
        return rows(count, **{**keys, "steps": 1})

    monkeypatch.setattr(vlp_oracle, "contrastive_batches", counting)
    vlp_oracle.train_centralised(fedavg)
    vlp_oracle.train_centralised(fedavg, steps=3)
    assert taken == [(4 * 24, 4 * 4), (4 * 24, 3)]


def test_recall_at_home_is_the_mean_over_the_models(fedavg):
    sites = fedavg.setting.sites
    initial = dict(fedavg.initial)
    models = dict.fromkeys(sites, initial)
    models[sites[0]] = vlp_oracle.train_alone(fedavg, sites[0])
    home = [fedavg.per_site(models[site])[site]["recall_at_5"] for site in sites]
    assert vlp_oracle.recall_at_home(fedavg, models)["recall_at_5"] == pytest.approx(sum(home) / 4)


def test_a_summary_is_over_sites():
    per_site = {
        "a": {"recall_at_1": 0.2, "recall_at_5": 0.5},
        "b": {"recall_at_1": 0.4, "recall_at_5": 0.3},
        "without pairs": {},
    }
    wanted = {"recall_at_1": 0.3, "recall_at_5": 0.4, "worst_at_1": 0.2, "worst_at_5": 0.3}
    assert vlp_oracle.summary(per_site) == pytest.approx({**wanted, "disparity": 0.1, "max_min": 0.2})
    with pytest.raises(ConfigError):
        vlp_oracle.summary({"a": {}})


def test_distortion_is_what_one_round_at_a_site_does(fedavg):
    sites = fedavg.setting.sites
    found = vlp_oracle.distortion(fedavg, fedavg.initial)
    assert tuple(found.shape) == (4, 4)
    after = fedavg.network(vlp_oracle.retrain(fedavg, fedavg.initial, sites[1]))
    before, pairs = fedavg.network(fedavg.initial), fedavg.site_data(sites[2]).test
    change = mean_cosine(before, pairs, fedavg.device) - mean_cosine(after, pairs, fedavg.device)
    assert float(found[1, 2]) == pytest.approx(change, abs=1e-6)
    assert not torch.equal(found, vlp_oracle.distortion(fedavg, fedavg.initial, 1))


def test_pooling_keeps_masks_only_if_all_have_them():
    one, other = toy_pairs(3), toy_pairs(4, 1)
    both = vlp_oracle.pooled([one, other])
    assert len(both) == 7
    assert torch.equal(both.masks, torch.cat([one.masks, other.masks]))
    assert torch.equal(both.tokens[3:], other.tokens)
    bare = type(one)(one.images, one.tokens, one.findings)
    assert vlp_oracle.pooled([bare, other]).masks is None
    with pytest.raises(ConfigError):
        vlp_oracle.pooled([])


def test_figures_are_labelled_and_reproducible(trajectory, tmp_path):
    found = vlp_figures.write_figures(trajectory, tmp_path / "one")
    again = vlp_figures.write_figures(trajectory, tmp_path / "two")
    assert [path.name for path in found] == ["dro.svg", "convergence.svg"]
    assert [path.read_bytes() for path in found] == [path.read_bytes() for path in again]


def test_sites_without_held_out_pairs_are_left_out():
    some = algorithm(test="[12, 0, 12, 12]")
    found = vlp_oracle.run_in_clear(some)
    assert set(found.per_site[-1]) == set(some.setting.sites) - {"hospital-2"}
    values = [site["recall_at_5"] for site in found.per_site[-1].values()]
    assert found.metrics[2]["recall_at_5"] == pytest.approx(math.fsum(values) / 3)
    assert set(retrieval.METRICS) <= set(found.metrics[2])


def test_the_probe_of_distortion_can_train_with_the_methods_own_loss(fedavg):
    model = fedavg.initial
    plain, own = (vlp_oracle.distortion(fedavg, model, 2, own_loss=own) for own in (False, True))
    torch.testing.assert_close(plain, own)  # federated averaging has no other loss
    held = algorithm((FEDDRA[0], FEDDRA[1] + '\nmu = 1000.0\nanchor_reduction = "sumdim"'))
    plain, own = (vlp_oracle.distortion(held, model, 6, own_loss=own) for own in (False, True))
    assert float(own.abs().mean()) < 0.8 * float(plain.abs().mean())


def test_recall_is_also_summed_up_by_its_ceiling(fedavg):
    plain = vlp_oracle.summary(fedavg.per_site(fedavg.initial))
    found = vlp_oracle.relative_summary(fedavg, fedavg.initial)
    assert set(found) == {"relative_at_1", "worst_relative_at_1", "relative_disparity"}
    assert plain["recall_at_1"] <= found["relative_at_1"] <= 1.0


def test_first_layers_train_alone(fedavg):
    model = vlp_drift.shallow(fedavg, fedavg.initial, fedavg.site_data("hospital-1").train, "a", 1, 2)
    moved = {name for name, value in model.items() if not torch.equal(value, fedavg.initial[name])}
    assert any(name.startswith("image_encoder.blocks.0.") for name in moved)
    assert any(name.startswith("text_encoder.encoder.layer.0.") for name in moved)
    assert not any(".blocks.1." in name or ".layer.1." in name or "align" in name for name in moved)


def test_costs_are_counted_from_the_plans():
    rows = [line.split("|")[1:-1] for line in vlp_costs.costs("tiny").splitlines()[2:]]
    found = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert found["FedDRA"][0] == found["FedRGB"][2] == found["FedRGB"][0]
    assert float(found["FedDRA"][2]) > float(found["FedDRA"][0])


def test_fair_evaluations_have_mean_worst_and_disparity(fedavg):
    found = vlp_oracle.fair_summary(fedavg, fedavg.initial)
    assert len(found) == 9
    for name in ("common_", "common_relative_", "distinct_"):
        mean, worst = found[f"{name}at_1"], found[f"worst_{name}at_1"]
        assert 0 <= worst <= mean <= 1
        assert worst <= mean - found[f"{name}disparity"] / 4
    assert found["common_relative_at_1"] >= found["common_at_1"]


def test_the_drift_probes_measure_every_model_at_every_site(fedavg):
    found = vlp_drift.drift(fedavg, layers=1, steps=1)
    assert list(found) == list(vlp_drift.TITLES)
    for recalls in found.values():
        *each, mean = recalls.values()
        assert mean == pytest.approx(statistics.fmean(each))
    row = vlp_drift.as_rows(found, 3)[0]
    assert row["variant"] == "fedavg"
    assert row["recall_at_1"] == f"{found['fedavg']['recall_at_1']:.6g}"
