"""A malicious aggregator that asks for sums in which one hospital's values would meet nothing but zeros."""

from __future__ import annotations

import pytest
import torch

from secfed.crypto.refusals import Refusal
from secfed.errors import RoundAborted
from secfed.server.round import run_round, train
from secfed.wire.frames import encode_state
from tests.algorithms.fmcsc_case import study
from tests.algorithms.isolation_case import Hospitals

TARGET = "hospital-1"
OF_ANOTHER_GROUP = ("hospital-4", "hospital-5", "hospital-6")


@pytest.fixture
def hospitals(request):
    changes = getattr(request, "param", {"algorithm__pretrain_rounds": 0, "study__rounds": 2})
    made = Hospitals(study(protection__name="masked", **changes))
    yield made
    made.close()


def numbers(hospitals: Hospitals) -> set[int]:
    return {
        int(text.split()[1].rstrip(":")) for _, _, text in hospitals.refusals if text.startswith("refusal")
    }


@pytest.mark.parametrize("index", [0, 2])
def test_a_sum_over_one_member_and_sites_of_another_group(hospitals, index):
    with pytest.raises(RoundAborted, match="nothing was revealed"):
        hospitals.sum_over(1, index, (TARGET, *OF_ANOTHER_GROUP))
    assert Refusal.NOT_PLANNED.number in numbers(hospitals)


@pytest.mark.parametrize(
    "hospitals",
    [{"algorithm__pretrain_rounds": 0, "study__rounds": 2, "algorithm__view_types": "hidden"}],
    indirect=True,
)
def test_the_same_where_every_site_is_asked_for_everything(hospitals):
    with pytest.raises(RoundAborted, match="nothing was revealed"):
        hospitals.sum_over(1, 0, (TARGET, *OF_ANOTHER_GROUP))
    assert numbers(hospitals) == {Refusal.TOO_FEW_CONTRIBUTORS.number}


@pytest.mark.parametrize("hospitals", [{}], indirect=True)
def test_pretraining_with_one_owner_of_a_view(hospitals):
    with pytest.raises(RoundAborted, match="nothing was revealed"):
        hospitals.sum_over(1, 0, (TARGET, *OF_ANOTHER_GROUP))
    assert numbers(hospitals) == {Refusal.TOO_FEW_CONTRIBUTORS.number}


@pytest.mark.parametrize("hospitals", [{}], indirect=True)
def test_dropouts_that_leave_too_few_owners_cost_the_round_and_reveal_nothing(hospitals):
    """Hospitals 1, 2 and 3 have all views. One of them uploads nothing; five sites are left."""
    hospitals.silent = {"hospital-3": "mask"}
    before = hospitals.server.model()
    with pytest.raises(RoundAborted):
        run_round(1, hospitals.algorithm, hospitals.server, hospitals.rules, hospitals.ask, lambda _: None)
    assert numbers(hospitals) == {Refusal.TOO_FEW_CONTRIBUTORS.number}
    after = hospitals.server.model()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("hospitals", [{}], indirect=True)
def test_an_honest_aggregator_says_why_before_it_asks(hospitals):
    hospitals.silent = {"hospital-3": "train"}
    with pytest.raises(RoundAborted, match=r"more than zeros.*2 can take part, 3 are needed"):
        run_round(1, hospitals.algorithm, hospitals.server, hospitals.rules, hospitals.ask, lambda _: None)
    assert not hospitals.refusals


@pytest.mark.parametrize("hospitals", [{}], indirect=True)
def test_the_planned_cohort_is_summed(hospitals):
    done = []
    for number in (1, 3):
        run_round(number, hospitals.algorithm, hospitals.server, hospitals.rules, hospitals.ask, done.append)
    assert not hospitals.refusals
    assert len(done) == 4


def test_a_site_does_no_work_for_a_sum_that_it_is_no_member_of(hospitals):
    exchange = hospitals.algorithm.exchanges(1)[0]
    state = encode_state(hospitals.server.broadcast(1, exchange))
    assert train(1, 0, exchange, state, OF_ANOTHER_GROUP, hospitals.rules, hospitals.ask) == []
    assert numbers(hospitals) == {Refusal.NOT_PLANNED.number}
