"""Kinds of sites that are too small: in no sum with others, named in reports."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from secfed.errors import ConfigError
from secfed.pipeline.noised_algorithm import NoisedAlgorithm
from secfed.runs.aggregator_saw import who_was_left_out
from secfed.study.build import build
from tests.algorithms.framework.test_kinds import ALIKE, views
from tests.algorithms.loop import Rounds
from tests.properties.readiness_studies import tiny


@pytest.mark.parametrize("name", ["fmcsc", "feddmvc", "canonical", "view-kmeans"])
def test_a_kind_that_is_too_small_is_in_no_sum_with_another_that_reads_something_else(name: str) -> None:
    held = [-1, -1, -1, 0, 0, 0, 1, 1]
    rounds = Rounds(tiny(name).replace("data.views", held))
    algorithm, lone = rounds.algorithm, {"hospital-7", "hospital-8"}
    asked = set()
    for number in range(1, algorithm.setting.study.rounds + 2):
        for exchange in algorithm.exchanges(number):
            members = algorithm.members(number, exchange, algorithm.setting.sites)
            if not lone.isdisjoint(members):
                asked.add(exchange.name)
    alike = {"feddmvc": {"pretrain-view-2"}}
    assert asked == alike.get(name, set())
    rounds.run()
    assert rounds.server.metrics()


@pytest.mark.parametrize("name", ["fmcsc", "feddmvc", "canonical", "view-kmeans"])
def test_a_report_names_who_is_left_out(name: str) -> None:
    few, enough = (build(views(name, data__views=[-1] * 4 + [0] * count)) for count in (2, 3))
    assert [*enough.left_out()] == []
    assert [*few.left_out()] == ["hospital-5", "hospital-6"]
    private = NoisedAlgorithm.left_out  # a wrapped algorithm says the same
    assert private(SimpleNamespace(inner=few)) == few.left_out()  # type: ignore[arg-type]
    assert "too few hospitals hold what they do: hospital-5, hospital-6." in who_was_left_out(few.left_out())
    assert who_was_left_out(enough.left_out()) == ""


@pytest.mark.parametrize("name", ["fmcsc", "feddmvc", "canonical", "view-kmeans"])
def test_small_kinds_are_summed_for_research_without_protection_and_nowhere_else(name: str) -> None:
    few = views(name, data__views=[-1] * 4 + [0] * 2, protection__name="plain")
    summed = few.replace("algorithm.small_kinds", "summed")
    made = build(summed)
    everybody = made.setting.sites
    assert not made.left_out()
    table = made.exchanges(summed.study.rounds + 1)[-1]
    assert set(made.members(summed.study.rounds + 1, table, everybody)) == set(everybody)
    assert not any(
        made.contributors(number, exchange)
        for number in range(1, summed.study.rounds + 2)
        for exchange in made.exchanges(number)
        if (name, exchange.name) not in ALIKE
    )
    with pytest.raises(ConfigError, match=r"algorithm.small_kinds: .* and protection.name is \"masked\""):
        build(summed.replace("protection.name", "masked"))


def test_who_is_left_out_of_clusters_is_left_out_of_moments() -> None:
    """Moments less the sums over all clusters would be those of the hospitals that are in the first alone."""
    made = build(views("canonical", data__views=[-1] * 4 + [0] * 4 + [1], algorithm__refinements=1))
    sites = made.setting.sites
    asked = {made.members(number, one, sites) for number in (1, 2) for one in made.exchanges(number)}
    assert asked == {sites[:-1], sites[:4]}  # the second: how views vary together
    assert [*made.left_out()] == ["hospital-9"]
    parts = {part for one in made.exchanges(1) for part, _ in made.contributors(1, one)}
    assert not any("hospital-9" in part for part in parts)


def test_a_small_kind_counts_for_nothing_where_its_work_died() -> None:
    """Under noise it is asked, to hide others; what stands for failed work must be zeros as well."""
    privacy = {"unit": "record", "epsilon": 8.0, "delta": 1e-4}
    held, starts = (
        [-1] * 4 + [0] * 4 + [1],
        {"algorithm__starts": "cubes", "algorithm__restarts": 1, "algorithm__maps": "l2"},
    )
    made = build(views("canonical", data__views=held, privacy=privacy, **starts))
    asked = [one for one in made.exchanges(1) if "hospital-9" in made.members(1, one, made.setting.sites)]
    assert "moments" in {one.name for one in asked}
    assert not any(made.site("hospital-9").settled(1, one) for one in asked)
    assert any(made.site("hospital-8").settled(1, one) for one in asked)


@pytest.mark.parametrize("share", [0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("held", [(5, 7, 7), (6, 4, 4), (9, 3, 5), (6, 12, 0), (8, 2, 6)])
def test_a_table_has_everybody_whose_records_are_clustered(share: float, held: tuple[int, ...]) -> None:
    """Else the numbers of records by cluster, less the table, would be those of one hospital."""
    several = [-1] * held[0] + [0] * held[1] + [1] * held[2]
    study = views("fmcsc", data__views=several, algorithm__participation=share)
    made = build(study)
    sites, number = made.setting.sites, study.study.rounds + 1
    exchanges = made.exchanges(number)
    clustered = {site for one in exchanges[:-1] for site in made.members(number, one, sites)}
    assert exchanges[-1].name == "score-table"
    tabled = set(made.members(number, exchanges[-1], sites))
    assert tabled | set(made.left_out()) == set(sites)
    assert clustered <= tabled
    assert not tabled & set(made.left_out())
    parts = made.contributors(number, exchanges[-1])
    assert sorted(site for part, _ in parts for site in part) == sorted(tabled)
    assert all(len(part) >= fewest for part, fewest in parts)
