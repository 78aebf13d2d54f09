"""FedDMVC as sums allow: what teaches, who takes part, and what a study may not be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from secfed.algorithms.feddmvc import site as module
from secfed.algorithms.feddmvc.algorithm import FedDmvc
from secfed.errors import ConfigError, MalformedMessage, WrongState
from secfed.study.build import build
from secfed.testing import check_algorithm
from tests.algorithms import fmcsc_case
from tests.algorithms.feddmvc_case import study
from tests.algorithms.loop import Rounds, add_in_ring, simulate


def before(number: int, **changes: object) -> Rounds:
    """A study before this round."""
    made = Rounds(study(**changes))
    for one in range(1, number):
        made.round(one)
    return made


def acc(server: Any) -> float:
    return float(server.metrics()[4]["acc"])


def test_it_keeps_the_rules_of_algorithms() -> None:
    check_algorithm(FedDmvc, study=study())


def test_clusters_are_found_and_served_to_sites_with_one_view() -> None:
    assert acc(simulate(study())) > 0.8


def test_sums_through_fixed_point_give_the_same_clusters() -> None:
    assert acc(simulate(study(), adder=add_in_ring)) == acc(simulate(study()))


def test_every_sum_is_over_those_that_add_something() -> None:
    made = before(3)
    members = {
        exchange.name: set(made.algorithm.members(3, exchange, made.algorithm.setting.sites))
        for exchange in made.algorithm.exchanges(3)
    }
    sites = [f"hospital-{at}" for at in range(1, 10)]
    assert members["moments"] == members["kmeans-04"] == set(sites[:3])
    assert members["train-view-1"] == set(sites[:6])
    assert members["train-view-2"] == {*sites[:3], *sites[6:]}
    table = made.algorithm.exchanges(5)[-1]
    assert set(made.algorithm.members(5, table, made.algorithm.setting.sites)) == set(sites)


def test_the_mean_update_moves_a_view_and_leaves_the_other() -> None:
    made = before(1)
    start = made.server.model()
    exchange = made.algorithm.exchanges(1)[0]
    added = made.contributions(1, 0)
    made.take(1, 0)
    for name, value in made.server.model().items():
        total = sum(one[f"update/{name}"] for one in added.values()) if name.split(".")[1] == "0" else 0.0
        torch.testing.assert_close(value, start[name] + total / len(added), msg=name)
    assert len(added) == 6
    assert all(field.name.startswith(("update/", "loss")) for field in exchange.layout.fields)


def test_soft_assignments_are_students_t_of_scaled_distances() -> None:
    features, centres = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    near = torch.tensor([[1.0, 1 / (1 + 4 / 0.5)], [1 / (1 + 1 / 0.5), 1 / (1 + 5 / 0.5)]])
    expected = near / near.sum(dim=1, keepdim=True)
    torch.testing.assert_close(module.soft_assignment(features, centres, 0.5), expected)


def test_sharpening_squares_and_divides_by_the_frequencies_of_clusters() -> None:
    soft, frequencies = torch.tensor([[0.5, 0.5], [0.8, 0.2]]), torch.tensor([30.0, 10.0])
    weighted = torch.tensor([[0.25 / 30, 0.25 / 10], [0.64 / 30, 0.04 / 10]])
    torch.testing.assert_close(
        module.sharpened(soft, frequencies), weighted / weighted.sum(dim=1, keepdim=True)
    )


def test_an_empty_cluster_draws_nobody() -> None:
    soft = torch.tensor([[0.6, 0.3, 0.1], [0.3, 0.6, 0.1]])
    found = module.sharpened(soft, soft.sum(dim=0))
    assert found.argmax(dim=1).tolist() == [0, 1]
    assert float(found[:, 2].max()) < 0.1


def test_frequencies_are_soft_assignments_summed_over_hospitals_with_all_views() -> None:
    made = before(3)
    names = [exchange.name for exchange in made.algorithm.exchanges(3)]
    for at in range(names.index("frequencies")):
        made.take(3, at)
    given = made.server.broadcast(3, made.algorithm.exchanges(3)[names.index("frequencies")])
    added = made.contributions(3, names.index("frequencies"))
    assert set(added) == {"hospital-1", "hospital-2", "hospital-3"}
    features = torch.cat([made.programs[site]._features[1] for site in added])
    soft = module.soft_assignment(features, given["best"].float(), float(given["scale"]))
    total = sum(one["frequencies"] for one in added.values())
    torch.testing.assert_close(total, soft.sum(dim=0), atol=1e-3, rtol=1e-4)
    assert float(total.sum()) == pytest.approx(len(features), rel=1e-4)


def test_distances_are_in_units_of_the_variance_of_the_records_that_are_in_the_sum() -> None:
    made = before(3)
    names = [exchange.name for exchange in made.algorithm.exchanges(3)]
    for at in range(names.index("kmeans-04")):
        made.take(3, at)
    centres = made.server.broadcast(3, made.algorithm.exchanges(3)[names.index("kmeans-04")])["centres"]
    made.take(3, names.index("kmeans-04"))
    features = torch.cat([made.programs[f"hospital-{at}"]._features[1] for at in (1, 2, 3)]).double()
    best = [torch.cdist(features, one).square().min(dim=1).values.mean() for one in centres]
    assert float(made.server._found["scale"]) == pytest.approx(float(min(best)), rel=1e-6)


def test_the_loss_is_reconstruction_and_divergence_from_the_target() -> None:
    network = build(study()).networks.holding(build(study()).initial)
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(5, fmcsc_case.SIZES[0], generator=generator)
    centres = torch.randn(3, 4, generator=generator)
    target = torch.rand(5, 3, generator=generator).softmax(dim=1)
    with torch.no_grad():
        found = module.self_supervised_loss(0, centres, 0.3, 0.25)(network, (records, target))
        low = network.enc[0](records)
        said = module.soft_assignment(nn.functional.normalize(low, dim=1), centres, 0.3)
        error = (network.dec[0](low) - records).square().mean(dim=1)
        divergence = nn.functional.kl_div(said.log(), target, reduction="none").sum(dim=1)
    torch.testing.assert_close(found, error + 0.25 * divergence)


def test_a_site_with_one_view_is_taught_by_its_part_of_the_centres() -> None:
    made = before(3)
    exchanges = made.algorithm.exchanges(3)
    for at in range(len(exchanges) - 2):
        made.take(3, at)
    given = made.server.broadcast(3, exchanges[-2])
    single = made.programs["hospital-4"]
    features = nn.functional.normalize(single._network(given).enc[0](single._views[0]).detach(), dim=1)
    soft = module.soft_assignment(features, given["best"][:, :4].float(), float(given["scale"]) / 2)
    torch.testing.assert_close(
        single._target(3, given), module.sharpened(soft, given["frequencies"].float()), atol=1e-6, rtol=1e-5
    )
    whole = made.programs["hospital-1"]
    soft = module.soft_assignment(whole._features[1], given["best"].float(), float(given["scale"]))
    torch.testing.assert_close(whole._target(3, given), module.sharpened(soft, given["frequencies"].float()))


def test_clusters_change_what_is_learnt_and_without_weight_they_do_not() -> None:
    models = {
        weight: simulate(study(algorithm__self_supervision=weight)).model() for weight in (0.0, 0.1, 1.0)
    }
    assert not torch.equal(models[0.0]["enc.0.0.weight"], models[0.1]["enc.0.0.weight"])
    assert not torch.equal(models[0.1]["enc.0.0.weight"], models[1.0]["enc.0.0.weight"])


def test_a_site_goes_on_within_a_round_from_what_it_saved() -> None:
    made = before(3)
    made.take(3, 0)
    exchange = made.algorithm.exchanges(3)[1]
    broadcast = made.server.broadcast(3, exchange)
    again = made.algorithm.site("hospital-1")
    with pytest.raises(WrongState, match="no features of the model of round 3"):
        again.contribute(3, exchange, broadcast)
    again.load(made.programs["hospital-1"].save())
    found, expected = (one.contribute(3, exchange, broadcast) for one in (again, made.programs["hospital-1"]))
    assert all(
        torch.equal(torch.as_tensor(found[name]), torch.as_tensor(expected[name])) for name in expected
    )


def test_the_server_goes_on_from_what_it_saved() -> None:
    made = before(4)
    again = made.algorithm.server()
    again.load(made.server.save())
    for exchange in made.algorithm.exchanges(4):
        found, expected = again.broadcast(4, exchange), made.server.broadcast(4, exchange)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    with pytest.raises(MalformedMessage):
        build(study(algorithm__restarts=4)).server().load(made.server.save())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study__rounds": 2}, "none for the clusters"),
        ({"model": {"name": "none"}}, "autoencoder per view"),
        ({"data": {"name": "digits", "sites": 4}}, "needs several views"),
        ({"data__views": [-1, -1, 0, 0, 1, 1]}, "2 sites hold all views"),
        ({"protection__threshold": 5}, "sites hold all views"),
    ],
)
def test_a_study_that_it_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(study(**changes))
