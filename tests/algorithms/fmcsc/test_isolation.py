"""A malicious aggregator that asks for sums in which one hospital's values would meet nothing but zeros."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest
import torch

from secfed.algorithms.framework.base import Algorithm
from secfed.config.cohort_rules import min_cohort, threshold
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.keystream import RoundingStream
from secfed.crypto.refusals import Refusal
from secfed.errors import RoundAborted, SecfedError
from secfed.protection.registry import MASKED
from secfed.server.round import Rules, run_round, sum_securely, train
from secfed.site.journal import Journal
from secfed.site.session import Site
from secfed.study.build import build
from secfed.study.limits import limits_of, study_id
from secfed.wire.frames import encode_state
from secfed.wire.transport import OnReply
from tests.algorithms.fmcsc_case import study

TARGET = "hospital-1"
OF_ANOTHER_GROUP = ("hospital-4", "hospital-5", "hospital-6")


class _Log:
    def append(self, kind: str, body: Mapping[str, object]) -> None:
        """Nothing is kept."""


class Hospitals:
    """Real sites with the limits that the study gives them, and an aggregator that may ask for anything."""

    def __init__(self, **changes: object) -> None:
        made = study(protection__name="masked", **changes)
        self.algorithm: Algorithm = build(made)
        names = self.algorithm.plan.sites
        aggregator = Identity.generate("aggregator")
        people = {name: Identity.generate(name) for name in names}
        roster = Roster.of(aggregator, list(people.values()))
        self.journals = [Journal() for _ in names]
        self.sites = {
            name: Site(
                identity=people[name],
                roster=roster,
                study=study_id(made),
                algorithm=self.algorithm,
                program=self.algorithm.site(name),
                protection=MASKED,
                journal=journal,
                log=_Log(),
                rounding=lambda _round, _index: RoundingStream(b"k" * 32),
                limits=limits_of(made, len(names)),
            )
            for name, journal in zip(names, self.journals, strict=True)
        }
        self.rules = Rules(
            study=study_id(made),
            identity=aggregator,
            roster=roster,
            protection=MASKED,
            threshold=partial(threshold, made.protection, len(names)),
            min_cohort=min_cohort(made.protection, len(names)),
        )
        self.server = self.algorithm.server()
        self.refusals: list[tuple[str, str, str]] = []
        self.silent: dict[str, str] = {}

    def ask(self, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
        for site, message in requests.items():
            if self.silent.get(site) == stage:
                continue
            try:
                reply = self.sites[site].handle(message)
            except SecfedError as error:
                self.refusals.append((stage, site, error.message))
            else:
                on_reply(site, reply)

    def sum_over(self, number: int, index: int, cohort: tuple[str, ...]):
        """What :func:`run_round` does, but over sites of the aggregator's choice."""
        exchange = self.algorithm.exchanges(number)[index]
        state = encode_state(self.server.broadcast(number, exchange))
        ready = train(number, index, exchange, state, cohort, self.rules, self.ask)
        return sum_securely(number, index, exchange, state, ready, self.rules, self.ask)

    def close(self) -> None:
        for journal in self.journals:
            journal.close()


@pytest.fixture
def hospitals(request):
    made = Hospitals(**getattr(request, "param", {"algorithm__pretrain_rounds": 0, "study__rounds": 2}))
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
    """View 2 belongs to hospitals 1, 2, 3 and 7. Two of them upload nothing; five sites are left."""
    hospitals.silent = {"hospital-3": "mask", "hospital-7": "mask"}
    before = hospitals.server.model()
    with pytest.raises(RoundAborted):
        run_round(1, hospitals.algorithm, hospitals.server, hospitals.rules, hospitals.ask, lambda _: None)
    assert numbers(hospitals) == {Refusal.TOO_FEW_CONTRIBUTORS.number}
    after = hospitals.server.model()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("hospitals", [{}], indirect=True)
def test_an_honest_aggregator_says_why_before_it_asks(hospitals):
    hospitals.silent = {"hospital-3": "train", "hospital-7": "train"}
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
