from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.metrics.score_grid import LOSS_CAP
from secfed.errors import ConfigError, DataError, MalformedMessage, RangeError, WrongState
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Totals
from tests.algorithms.loop import BREAST_CANCER, Words, add, add_in_ring, same, simulate


@pytest.fixture
def study() -> Study:
    return Study.parse(BREAST_CANCER)


def test_a_few_rounds_learn_the_task(study):
    metrics = simulate(study.replace("study.rounds", 6)).metrics()
    assert sorted(metrics) == list(range(7))
    assert metrics[6]["roc_auc"] >= 0.97
    assert metrics[6]["loss"] < metrics[0]["loss"] / 2
    assert metrics[5]["train_loss"] < metrics[0]["train_loss"]
    assert "train_loss" not in metrics[6]


def test_metrics_belong_to_the_model_that_was_broadcast(study):
    algorithm = build(study)
    server, exchange = algorithm.server(), algorithm.exchanges(1)[0]
    got = {
        site: algorithm.site(site).contribute(1, exchange, server.broadcast(1, exchange))
        for site in algorithm.setting.sites
    }
    server.absorb(1, exchange, add(exchange, got))
    initial = simulate(study.replace("study.rounds", 0)).metrics()
    assert list(server.metrics()) == [0]
    for name in ("loss", "accuracy", "roc_auc"):
        assert server.metrics()[0][name] == initial[0][name]


def test_same_seed_gives_the_same_bytes_and_another_seed_others(study):
    assert same(simulate(study).model(), simulate(study).model())
    assert not same(simulate(study).model(), simulate(study.replace("study.seed", 12)).model())


def test_result_does_not_depend_on_the_order_of_sites_or_on_global_random_state(study):
    torch.manual_seed(1)
    forward = simulate(study, adder=add_in_ring, order=["hospital-1", "hospital-2", "hospital-3"])
    torch.manual_seed(2)
    backward = simulate(study, adder=add_in_ring, order=["hospital-3", "hospital-2", "hospital-1"])
    assert same(forward.model(), backward.model())
    assert forward.metrics() == backward.metrics()


def test_training_leaves_the_global_generator_alone(study):
    torch.manual_seed(5)
    expected = torch.random.get_rng_state()
    simulate(study)
    assert torch.equal(torch.random.get_rng_state(), expected)


def test_the_ring_changes_the_model_by_rounding_only(study):
    exact, ring = simulate(study).model(), simulate(study, adder=add_in_ring).model()
    for name in exact:
        assert torch.allclose(exact[name], ring[name], atol=1e-5)


def test_counts_survive_the_ring_exactly(study):
    exact, ring = simulate(study).metrics()[0], simulate(study, adder=add_in_ring).metrics()[0]
    for name in ("accuracy", "balanced_accuracy", "roc_auc"):
        assert exact[name] == ring[name]


def test_a_dropped_site_equals_an_absent_one(study):
    model = simulate(study, dropped=["hospital-2"]).model()
    assert same(model, simulate(study, order=["hospital-1", "hospital-3"]).model())
    assert not same(model, simulate(study).model())


def one_round(study):
    """The site models of round 1, computed from what each site contributes."""
    algorithm = build(study)
    server, exchange = algorithm.server(), algorithm.exchanges(1)[0]
    state = server.broadcast(1, exchange)
    got = {site: algorithm.site(site).contribute(1, exchange, state) for site in algorithm.setting.sites}
    local = {
        site: {n: state[n] + one[f"update/{n}"] / one["weight"] for n in state} for site, one in got.items()
    }
    server.absorb(1, exchange, add(exchange, got))
    return algorithm, local, got, server.model()


def test_equal_weights_give_the_plain_mean_of_the_local_models(study):
    _, local, got, model = one_round(study.replace("algorithm.weighting", "equal"))
    assert {one["weight"] for one in got.values()} == {1.0}
    for name, value in model.items():
        mean = torch.stack([one[name] for one in local.values()]).mean(dim=0)
        assert torch.allclose(value, mean, atol=1e-6)


def test_record_weights_give_the_record_weighted_mean(study):
    study = study.replace("data.partition", "dirichlet").replace("data.alpha", 2.0)
    algorithm, local, _, model = one_round(study)
    records = {site: len(algorithm.site_data(site).train_y) for site in local}
    assert len(set(records.values())) > 1
    for name, value in model.items():
        mean = sum(records[site] * local[site][name] for site in local) / sum(records.values())
        assert torch.allclose(value, mean, atol=1e-5)


def test_a_weight_is_capped_at_one(study):
    algorithm = build(study.replace("algorithm.weight_cap", 100))
    assert algorithm.weight(25) == 0.25
    assert algorithm.weight(100) == algorithm.weight(10**6) == 1.0


def test_without_any_weight_the_model_stays(study):
    algorithm = build(study)
    server, exchange = algorithm.server(), algorithm.exchanges(1)[0]
    before = server.model()
    zeros = {field.name: torch.zeros(field.shape, dtype=torch.float64) for field in exchange.layout.fields}
    server.absorb(1, exchange, Totals(zeros, ()))
    assert same(before, server.model())
    assert server.metrics() == {0: {}}


def test_zero_rounds_evaluate_the_initial_model_and_nothing_else(study):
    study = study.replace("study.rounds", 0)
    algorithm = build(study)
    assert [exchange.name for exchange in algorithm.exchanges(1)] == ["evaluate"]
    server = simulate(study)
    assert list(server.metrics()) == [0]
    assert same(server.model(), algorithm.initial)


def test_the_plan_covers_all_rounds_and_no_other(study):
    algorithm = build(study)
    assert [[e.name for e in algorithm.exchanges(r)] for r in (1, 2, 3, 4)] == [["update"]] * 3 + [
        ["evaluate"]
    ]
    for number in (0, 5):
        with pytest.raises(WrongState, match=f"no round {number}"):
            algorithm.exchanges(number)


def test_layout_has_the_bits_and_bounds_of_the_study_and_wide_scalars(study):
    study = study.replace("protection.bits", 16).replace("protection.bound", 2.0)
    fields = {field.name: field for field in build(study).exchanges(1)[0].layout.fields}
    for name, field in fields.items():
        assert (field.bits, field.bound) == (16, 2.0) if name.startswith("update/") else field.bits == 64


def test_a_site_refuses_an_exchange_that_is_not_in_the_plan(study):
    algorithm = build(study)
    site, state = algorithm.site("hospital-1"), algorithm.server().broadcast(1, algorithm.exchanges(1)[0])
    [update], [evaluate] = algorithm.exchanges(1), algorithm.exchanges(4)
    other = dataclasses.replace(update, layout=evaluate.layout)
    for number, exchange in ((4, update), (1, evaluate), (1, other)):
        with pytest.raises(WrongState, match="no exchange"):
            site.contribute(number, exchange, state)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda state: state.pop("1.bias"), "does not have this study's parameters: 1.bias"),
        (lambda state: state.update(extra=torch.zeros(1)), "does not have this study's parameters: extra"),
        (lambda state: state.update({"1.bias": torch.zeros(3)}), "'1.bias' has shape"),
        (lambda state: state.update({"1.bias": torch.tensor([math.nan, 0.0])}), "'1.bias' contains NaN"),
        (lambda state: state.update({"1.bias": torch.tensor([math.inf, 0.0])}), "'1.bias' contains NaN"),
    ],
)
def test_a_broadcast_that_is_not_the_studys_model_is_refused(study, change, what):
    algorithm = build(study)
    state = dict(algorithm.server().broadcast(1, algorithm.exchanges(1)[0]))
    change(state)
    with pytest.raises(MalformedMessage, match=what):
        algorithm.site("hospital-1").contribute(1, algorithm.exchanges(1)[0], state)


def test_diverged_training_is_an_error_that_names_field_and_remedy(study):
    algorithm = build(study.replace("algorithm.learning_rate", 1e38))
    exchange = algorithm.exchanges(1)[0]
    summands = algorithm.site("hospital-1").contribute(
        1, exchange, algorithm.server().broadcast(1, algorithm.exchanges(1)[0])
    )
    with pytest.raises(RangeError, match=r"update/.*learning rate"):
        exchange.layout.encoder(summands, Words(0))


def test_a_received_model_that_overflows_is_measured_as_wrong_everywhere(study):
    algorithm = build(study)
    state = {
        name: torch.full_like(value, 3e38)
        for name, value in algorithm.server().broadcast(1, algorithm.exchanges(1)[0]).items()
    }
    exchange, site = algorithm.exchanges(1)[0], algorithm.site("hospital-1")
    summands = site.contribute(1, exchange, state)
    known = site.settled(1, exchange)
    assert {"weight", "eval/records", "eval/class_records"} == set(known)
    assert all(
        torch.equal(torch.as_tensor(summands[name]), torch.as_tensor(one)) for name, one in known.items()
    )
    evaluated = {name: one for name, one in summands.items() if name.startswith("eval/")}
    assert all(bool(torch.isfinite(one).all()) for one in evaluated.values())
    assert float(evaluated["eval/loss"]) == LOSS_CAP * float(known["eval/records"])


class Handmade:
    """A data set under the test's control."""

    sites = ("a", "b")
    input_shape = (2,)
    classes = 2

    def __init__(self, a: SiteData, b: SiteData) -> None:
        self._data = {"a": a, "b": b}

    def site(self, site_id: str) -> SiteData:
        return self._data[site_id]


def records(n: int, label: int | None = None, held_out: int = 4) -> SiteData:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n + held_out, 2, generator=generator)
    y = (x[:, 0] > 0).long() if label is None else torch.full((n + held_out,), label)
    return SiteData(x[:n], y[:n], x[n:], y[n:])


HANDMADE: dict[str, Handmade] = {}

HANDMADE_STUDY = """
study = { name = "handmade", rounds = 3, seed = 1 }
algorithm = { name = "fedavg", learning_rate = 0.5 }
model = { name = "logistic-regression" }
data = { name = "tests.algorithms.federated_averaging.test_fedavg:handmade", which = "WHICH" }
protection = { name = "plain", min_cohort = 2 }
"""


def handmade(which: str) -> Handmade:
    return HANDMADE[which]


def with_data(a: SiteData, b: SiteData) -> Study:
    # The factory runs in the module that the name imports, which may be another copy than this one.
    import tests.algorithms.federated_averaging.test_fedavg as module

    module.HANDMADE["now"] = Handmade(a, b)
    return Study.parse(HANDMADE_STUDY.replace("WHICH", "now"))


def test_batch_order_differs_between_sites_and_rounds_and_is_repeatable():
    study = with_data(records(64), records(64)).replace("algorithm.batch_size", 8)
    algorithm = build(study)
    state, exchange = algorithm.server().broadcast(1, algorithm.exchanges(1)[0]), algorithm.exchanges(1)[0]

    def update(site: str, number: int) -> torch.Tensor:
        return algorithm.site(site).contribute(number, exchange, state)["update/1.weight"]

    first = update("a", 1)
    assert torch.equal(first, update("a", 1))
    assert not torch.equal(first, update("b", 1))  # same records and model, another site
    assert not torch.equal(first, update("a", 2))


def test_a_site_with_one_class_only_works():
    server = simulate(with_data(records(20, label=1), records(30)), adder=add_in_ring)
    final = server.metrics()[3]
    assert math.isfinite(final["roc_auc"])
    assert all(bool(torch.isfinite(value).all()) for value in server.model().values())


def test_one_class_everywhere_has_no_roc_auc_but_the_rest():
    final = simulate(with_data(records(20, label=1), records(30, label=1))).metrics()[3]
    assert set(final) == {"loss", "accuracy", "balanced_accuracy"}
    assert final["accuracy"] == 1.0


def test_sites_without_held_out_records_train_and_report_no_metrics():
    server = simulate(with_data(records(20, held_out=0), records(30, held_out=0)))
    assert server.metrics()[3] == {}
    assert set(server.metrics()[0]) == {"train_loss"}


def broken(**changes: torch.Tensor) -> SiteData:
    return dataclasses.replace(records(10), **changes)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (records(0, held_out=0), "site 'b' has no records"),
        (records(0), "site 'b' has no training records"),
        (broken(train_x=torch.zeros(10, 3)), "site 'b': training records have shape"),
        (broken(test_x=torch.zeros(3, 2)), "site 'b': held-out records have shape"),
        (broken(train_x=torch.full((10, 2), math.nan)), "site 'b': training records contain NaN"),
        (broken(test_x=torch.full((4, 2), math.inf)), "site 'b' has features that are infinite"),
        (broken(train_y=torch.full((10,), 2)), "site 'b': training records have a label outside"),
        (broken(train_y=torch.full((10,), -1)), "site 'b': training records have a label outside"),
        (
            broken(train_x=torch.zeros(10, 2, dtype=torch.float64)),
            "site 'b': training records are torch.float64",
        ),
    ],
)
def test_unusable_records_are_an_error_that_names_the_site(data, what):
    algorithm = build(with_data(records(10), data))
    algorithm.site("a")
    with pytest.raises(DataError, match=what) as caught:
        algorithm.site("b")
    assert caught.value.remedy


def test_building_reads_no_records():
    # What the aggregator does: site b's records would be refused, but nobody asks for them.
    assert build(with_data(records(10), records(0))).server().model()


def test_server_continues_from_its_checkpoint(study):
    algorithm = build(study)
    programs = [algorithm.site(site) for site in algorithm.setting.sites]
    uninterrupted = simulate(study, algorithm=algorithm)
    server = algorithm.server()
    for number in (1, 2, 3, 4):
        for exchange in algorithm.exchanges(number):
            state = server.broadcast(number, exchange)
            got = {str(i): p.contribute(number, exchange, state) for i, p in enumerate(programs)}
            saved, server = server.save(), algorithm.server()
            server.load(saved)
            server.absorb(number, exchange, add(exchange, got))
    assert same(server.model(), uninterrupted.model())
    assert server.metrics() == uninterrupted.metrics()


def test_a_checkpoint_of_another_model_is_refused(study):
    other = build(study.replace("model.name", "mlp")).server()
    with pytest.raises(MalformedMessage, match="another model"):
        other.load(build(study).server().save())


def test_a_gpu_that_is_not_there_is_a_config_error(study, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"algorithm\.device"):
        build(study.replace("algorithm.device", "cuda")).site("hospital-1")
