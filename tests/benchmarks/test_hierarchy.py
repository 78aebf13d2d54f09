"""Two levels of masked sums give the flat sum, and each level holds what docs/adr/027 says."""

from dataclasses import replace

import hierarchy
import pytest
from hierarchy_cost import Constants, Graph, changed, site_bytes

WHAT = "one exchange"


@pytest.fixture(scope="module")
def whole():
    return hierarchy.play(WHAT, 3, 4, 5)


def test_the_sum_of_regional_sums_is_the_flat_sum(whole):
    assert whole.total is not None
    assert hierarchy.same(whole.total, whole.flat)
    assert whole.is_right
    assert [len(region.survivors) for region in whole.regions] == [3, 3, 3]


def test_each_level_holds_its_sum_and_two_together_hold_the_rest(whole):
    assert [(who, hospitals) for who, _, hospitals, _ in whole.held] == [
        ("aggregator of region 1", 3),
        ("aggregator of region 2", 3),
        ("aggregator of region 3", 3),
        ("the top", 9),
        ("both, with region 1", 6),
    ]


def test_another_sum_is_told_from_the_flat_one(whole):
    other = tuple(run + run.dtype.type(1) for run in whole.total)
    assert not replace(whole, total=other).is_right
    assert "NOT" in hierarchy.told(replace(whole, total=other))


def test_of_three_regions_none_may_be_lost_and_of_four_one():
    three = hierarchy.play(WHAT, 3, 4, 5, lost=1)
    assert three.total is None
    assert three.is_right
    assert three.held[-1] == ("the top", "masked sums of regions only", 0, True)
    four = hierarchy.play(WHAT, 4, 4, 5, lost=1)
    assert four.is_right
    assert four.held[-2][2] == 9


def test_a_sparse_graph_has_fewer_neighbours_and_secrets_that_can_be_rebuilt():
    sparse, complete = Graph.sparse(300), Graph.complete(300)
    assert sparse.threshold <= sparse.holders < sparse.neighbours < complete.neighbours == 299
    constants = Constants(1e-3, 1e-3, 1e-3, 1e-4, 1e-4, 1e-7, 1e-7, 1e-9, 1e-9)
    assert constants.of_site(300, sparse) < constants.of_site(300, complete)
    assert constants.of_server(300, sparse) < constants.of_server(300, complete)
    assert site_bytes(300, sparse) < site_bytes(300, complete)


def test_a_region_tolerates_its_own_colluders_and_hides_less_under_the_same_noise():
    first, *_, last = changed()
    assert first[:4] == ["30 in 3", "10", "4", "3 of 10"]
    assert float(last[-2]) > float(first[-2]) > 3.0
