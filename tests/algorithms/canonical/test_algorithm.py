"""The programs of canonical clustering: what does not matter, what fails, and how a study goes on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.canonical.algorithm import Canonical
from secfed.algorithms.data.multiview.base import ViewRecords
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.algorithms.models.feature_maps import FeatureMap
from secfed.errors import DataError, MalformedMessage, RangeError
from secfed.site.containment import Failure, contained
from secfed.testing import check_algorithm
from tests.algorithms.canonical_case import held_by, on, pool, study, tiny
from tests.algorithms.loop import add_in_ring, simulate

EVERYTHING: dict[str, Any] = {
    "algorithm__maps": ["standard", "l2"],
    "algorithm__starts": "divisive",
    "algorithm__refinements": 2,
}


def acc(server: Any) -> float:
    return float(server.metrics()[1]["acc"])


@pytest.mark.parametrize("changes", [{}, EVERYTHING], ids=["default", "everything"])
def test_it_keeps_the_rules_of_algorithms(changes: dict[str, Any]) -> None:
    check_algorithm(Canonical, study=study(**changes))


@pytest.mark.parametrize("maps", ["l2", "standard", "projection:20"])
def test_clusters_that_views_share_are_found(maps: str) -> None:
    server = simulate(study(algorithm__maps=maps))
    assert acc(server) > 0.95
    assert set(server.metrics()[1]) == {"acc", "nmi", "ari"}


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("changes", [{}, {"algorithm__starts": "divisive", "algorithm__refinements": 2}])
def test_how_records_are_spread_does_not_matter(views: int, changes: dict[str, Any]) -> None:
    """The same records with the same views, in other shares and another order."""
    records = pool(180, views)
    cuts = [[0, 30, 60, 90, 110, 130, 150, 160, 170, 180], [0, 3, 70, 90, 91, 140, 150, 165, 166, 180]]
    holds = [-1, -1, -1, 0, 0, 0, 1, 1, 1]
    servers = []
    for ends in cuts:
        shares = [np.arange(low, high)[::-1] for low, high in pairwise(ends)]
        servers.append(simulate(study(), algorithm=on(held_by(records, holds, shares), **changes)))
    one, other = (server.model() for server in servers)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.allclose(value, other[name], atol=1e-6), name
    assert servers[0].metrics() == servers[1].metrics()


def test_a_view_of_noise_changes_accuracy_by_less_than_a_point() -> None:
    holds = [-1] * 6
    records = pool(1200, 2, noise=0.7)
    noise = np.random.default_rng(1).normal(size=(1200, 7)).astype(np.float32)
    shares = np.arange(1200).reshape(6, -1)
    with_it = held_by(ViewRecords((*records.views, noise), records.labels), holds, shares)
    found = [acc(simulate(study(), algorithm=on(one))) for one in (held_by(records, holds, shares), with_it)]
    assert found[0] > 0.9
    assert found[1] == pytest.approx(found[0], abs=0.01)


def test_sums_through_fixed_point_give_the_same_clusters() -> None:
    exact, ring = simulate(study()), simulate(study(), adder=add_in_ring)
    assert acc(ring) == acc(exact)


def test_refinement_helps_where_hospitals_hold_one_view() -> None:
    changes: dict[str, Any] = {
        "data__holds": [-1, -1, -1, 0, 0, 0, 0, 0, 0],
        "data__noise": 1.1,
        "data__per_site": 60,
    }
    plain, refined = simulate(study(**changes)), simulate(study(**changes, algorithm__refinements=3))
    assert acc(refined) > acc(plain)


def test_many_clusters_start_from_splits() -> None:
    changes: dict[str, Any] = {"data__clusters": 12, "data__noise": 0.15, "data__per_site": 100}
    found = [
        acc(simulate(study(**changes, algorithm__restarts=1, algorithm__starts=s)))
        for s in ("simplex", "divisive")
    ]
    assert found[1] > max(found[0], 0.9)


def test_a_server_goes_on_from_its_checkpoint_and_from_no_other_study_s() -> None:
    algorithm = tiny()
    server = simulate(study(), algorithm=algorithm)
    again = algorithm.server()
    again.load(server.save())
    assert again.metrics() == server.metrics()
    assert all(torch.equal(value, again.model()[name]) for name, value in server.model().items())
    assert all(value.dtype == torch.float32 for value in server.model().values())
    with pytest.raises(MalformedMessage):
        tiny(algorithm__refinements=1).server().load(server.save())


def test_without_clusters_nothing_is_scored() -> None:
    algorithm = tiny()
    server, (table,) = algorithm.server(), algorithm.exchanges(2)
    program = algorithm.site("hospital-1")
    given = program.contribute(2, table, server.broadcast(2, table))
    assert float(torch.as_tensor(given["table"]).sum()) == 30
    server.absorb(2, table, add_in_ring(table, {"hospital-1": given}))
    assert not server.metrics()


def test_what_fails_at_a_site_adds_zeros_and_its_records_count(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = tiny(**EVERYTHING)
    server, program = algorithm.server(), algorithm.site("hospital-1")
    monkeypatch.setattr(FeatureMap, "__call__", _fails)
    heard: list[Failure] = []
    for number in (1, 2):
        for exchange in algorithm.exchanges(number):
            sent = server.broadcast(number, exchange)
            given = contained(
                number,
                exchange,
                lambda n=number, e=exchange, s=sent: program.contribute(n, e, s),  # type: ignore[misc]
                lambda n=number, e=exchange: program.settled(n, e),  # type: ignore[misc]
                heard.append,
            )
            counts = {
                name: value for name, value in given.items() if name.endswith(("records", "counts", "table"))
            }
            for name, value in given.items():
                if name not in counts and exchange.name != "scale":
                    assert not value.any(), (exchange.name, name)
            for name, value in counts.items():
                halved = exchange.name == "moments" or exchange.name.startswith("split")
                assert float(value.sum()) == (15 if halved else 30), (exchange.name, name)
    assert {failure.kind for failure in heard} == {"RangeError"}


def _fails(*_: object) -> torch.Tensor:
    raise RangeError("a value was in the way")


def test_a_record_that_becomes_nan_adds_nothing_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = tiny()
    real = FeatureMap.__call__

    def spoilt(self: FeatureMap, *given: Any) -> torch.Tensor:
        values = real(self, *given)
        values[3] = torch.nan
        return values

    honest = algorithm.site("hospital-1")
    moments = algorithm.exchanges(1)[0]
    whole = honest.contribute(1, moments, {})
    monkeypatch.setattr(FeatureMap, "__call__", spoilt)
    given = algorithm.site("hospital-1").contribute(1, moments, {})
    assert given["view-1/records"] == whole["view-1/records"] == 15.0
    record = honest._fixed[0][3]  # type: ignore[index]
    assert torch.allclose(
        torch.as_tensor(given["view-1/sum"]), torch.as_tensor(whole["view-1/sum"]) - record / 2
    )


def test_more_records_than_the_study_allows_are_left_out_at_a_hospital() -> None:
    algorithm = tiny(algorithm__max_records=20)
    with pytest.raises(DataError, match=r"algorithm\.max_records"):
        algorithm.site("hospital-1")
    said: list[DataError] = []
    with counted_as_defaults(said.append):
        data = algorithm.site_data("hospital-1")
    assert len(said) == 1
    assert len(data.labels) == 20
    assert all(view is not None and len(view) == 20 for view in data.views)
