"""Exchanges that build on earlier ones: an aggregator cannot choose whose summand is alone in a sum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from secfed.algorithms.framework.base import SiteProgram
from secfed.algorithms.framework.links import LINK, LinkedServer, needed_later, split
from secfed.errors import RangeError, RoundAborted
from secfed.study.build import build
from secfed.study.registry import ALGORITHMS
from secfed.study.study import Study
from secfed.study.warm_start import initial_server
from secfed.testing import AlgorithmFault, links
from secfed.testing.case import Case, network
from secfed.testing.links import check_links
from secfed.wire.frames import decode_state, encode_state
from secfed.wire.layout import Exchange, Field, Layout, State, Summands, state_digest
from tests.algorithms import fedcola_case, feddmvc_case, fmcsc_case
from tests.algorithms.isolation_case import Hospitals
from tests.algorithms.loop import BREAST_CANCER
from tests.properties.readiness_studies import tiny

MASKED = {"protection__name": "masked"}
# The study, the round, the earlier exchange, one that builds on it, and who may be in both.
CASES = {
    "fmcsc, taught views": (
        lambda: fmcsc_case.study(**MASKED, algorithm__pretrain_rounds=0, study__rounds=2),
        (1, "train-full", "train-view-1"),
    ),
    "fmcsc, clusters": (
        lambda: fmcsc_case.study(**MASKED, algorithm__pretrain_rounds=0, study__rounds=1),
        (2, "score-moments", "score-full-01"),
    ),
    "fmcsc, clusters of one view": (
        lambda: fmcsc_case.study(**MASKED, algorithm__pretrain_rounds=0, study__rounds=1),
        (2, "score-view-1-01", "score-view-1-02"),
    ),
    "feddmvc, clusters": (lambda: feddmvc_case.study(**MASKED), (3, "moments", "kmeans-01")),
    "feddmvc, training": (lambda: feddmvc_case.study(**MASKED), (3, "moments", "train-view-1")),
    "fedcola, shared layers": (
        lambda: fedcola_case.study(**MASKED, algorithm__participation=1.0),
        (1, "own-pairs", "attention-image"),
    ),
    "fedrgb, teacher": (
        lambda: tiny("fedrgb").replace("protection.name", "masked"),
        (2, "encoder", "teacher"),
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[Hospitals, int, int, int]]:
    """Hospitals before the round, the round, and the places of both exchanges."""
    study, (number, earlier, later) = CASES[request.param]
    hospitals = Hospitals(study())
    for one in range(1, number):
        hospitals.honest(one)
    names = [exchange.name for exchange in hospitals.algorithm.exchanges(number)]
    yield hospitals, number, names.index(earlier), names.index(later)
    hospitals.close()


def planned(hospitals: Hospitals, number: int, *places: int) -> list[str]:
    """Who is in all of these exchanges."""
    algorithm = hospitals.algorithm
    members = [
        set(algorithm.members(number, algorithm.exchanges(number)[at], algorithm.setting.sites))
        for at in places
    ]
    return sorted(set.intersection(*members))


def naming(hospitals: Hospitals, number: int, at: int, sent: bytes, earlier: int) -> bytes:
    """The later broadcast with the digest of what somebody was sent before."""
    state = decode_state(hospitals.broadcast(number, at))
    name = LINK + hospitals.algorithm.exchanges(number)[earlier].name
    assert name in state
    state[name] = torch.frombuffer(bytearray(state_digest(sent)), dtype=torch.uint8)
    return encode_state(state)


def test_who_was_not_asked_before_does_not_add_zeros(case: tuple[Hospitals, int, int, int]) -> None:
    hospitals, number, earlier, later = case
    target, *others = planned(hospitals, number, earlier, later)
    assert len(others) >= 2
    sent = hospitals.broadcast(number, earlier)
    assert hospitals.task(number, earlier, [target], sent) == [target]
    state = naming(hospitals, number, later, sent, earlier)
    assert hospitals.task(number, later, [target, *others], state) == [target]
    assert [site for _, site, _ in hospitals.refusals] == others
    assert all("refusal 50" in why for _, _, why in hospitals.refusals)


def test_who_had_another_broadcast_before_is_in_no_sum_with_the_others(
    case: tuple[Hospitals, int, int, int],
) -> None:
    hospitals, number, earlier, later = case
    target, *others = planned(hospitals, number, earlier, later)
    sent = hospitals.broadcast(number, earlier)
    other = encode_state(
        {
            name: value if name.startswith(LINK) else torch.zeros_like(value)
            for name, value in decode_state(sent).items()
        }
    )
    assert hospitals.task(number, earlier, [target], sent) == [target]
    assert hospitals.task(number, earlier, others, other) == others
    for choice, ready in ((sent, [target]), (other, others)):
        state = naming(hospitals, number, later, choice, earlier)
        assert hospitals.task(number, later, [target, *others], state) == ready
        hospitals.refusals.clear()


def test_what_the_earlier_work_came_to_decides_no_refusal(case: tuple[Hospitals, int, int, int]) -> None:
    hospitals, number, earlier, later = case
    sites = planned(hospitals, number, earlier, later)
    failing = hospitals.programs[sites[0]]
    whole = failing.contribute

    def fails(*_: object) -> None:
        raise RangeError("no number")

    failing.contribute = fails  # type: ignore[method-assign,assignment]
    sent = hospitals.broadcast(number, earlier)
    assert hospitals.task(number, earlier, sites, sent) == sites
    failing.contribute = whole  # type: ignore[method-assign]
    state = naming(hospitals, number, later, sent, earlier)
    assert hospitals.task(number, later, sites, state) == sites
    assert not hospitals.refusals


def test_a_broadcast_that_names_nothing_it_builds_on_is_refused(
    case: tuple[Hospitals, int, int, int],
) -> None:
    hospitals, number, earlier, later = case
    sites = planned(hospitals, number, earlier, later)
    assert hospitals.task(number, earlier, sites, hospitals.broadcast(number, earlier)) == sites
    _, rest = split(decode_state(hospitals.broadcast(number, later)))
    assert hospitals.task(number, later, sites, encode_state(rest)) == []
    assert all("refusal 44" in why for _, _, why in hospitals.refusals)


@pytest.mark.parametrize("name", ["feddmvc, training", "fedrgb, teacher"])
def test_an_honest_round_comes_to_its_end_also_after_a_restart_of_the_server(name: str) -> None:
    study, (number, _, _) = CASES[name]
    hospitals = Hospitals(study())
    for one in range(1, number):
        hospitals.honest(one)
    for index, exchange in enumerate(hospitals.algorithm.exchanges(number)):
        cohort = hospitals.algorithm.members(number, exchange, hospitals.algorithm.setting.sites)
        summed = hospitals.sum_over(number, index, cohort)
        assert set(summed.totals.survivors) == set(cohort)
        hospitals.server.absorb(number, exchange, summed.totals)
        again = initial_server(hospitals.algorithm, None)
        again.load(hospitals.server.save())
        hospitals.server = again
    assert not hospitals.refusals
    hospitals.close()


def test_a_sum_of_one_is_not_to_be_had() -> None:
    """The attack that this is for: hospital-1 alone is asked to train, then three are summed."""
    study, (number, earlier, later) = CASES["fmcsc, taught views"]
    hospitals = Hospitals(study())
    names = [exchange.name for exchange in hospitals.algorithm.exchanges(number)]
    sent = hospitals.broadcast(number, names.index(earlier))
    hospitals.task(number, names.index(earlier), ["hospital-1"], sent)
    with pytest.raises(RoundAborted, match="nothing was revealed"):
        hospitals.sum_over(number, names.index(later), ["hospital-1", "hospital-2", "hospital-3"])
    hospitals.close()


def test_digests_are_of_what_was_sent_and_of_the_running_round_alone() -> None:
    algorithm = build(feddmvc_case.study())
    server = LinkedServer(algorithm, algorithm.server())
    moments, kmeans, *_ = algorithm.exchanges(3)
    assert needed_later(algorithm, 3, moments) == {"moments"}
    assert needed_later(algorithm, 3, kmeans) == {"moments"}
    assert not needed_later(algorithm, 1, algorithm.exchanges(1)[0])
    assert split(server.broadcast(3, moments))[0] == {}
    assert split(server.broadcast(3, kmeans))[0] == {"moments": bytes(32)}  # not sent yet
    sent = encode_state(server.broadcast(3, moments))
    server._round, server._digests = 3, {"moments": torch.arange(32, dtype=torch.uint8)}
    assert split(server.broadcast(3, kmeans))[0] == {"moments": bytes(range(32))}
    assert split(server.broadcast(4, kmeans))[0] == {"moments": bytes(32)}
    assert state_digest(sent) != hashlib.sha256(sent).digest()  # in a domain of its own


def test_a_study_without_such_exchanges_sends_what_it_sent_before() -> None:
    algorithm = build(Study.parse(BREAST_CANCER))
    [exchange], server = algorithm.exchanges(1), initial_server(algorithm, None)
    assert encode_state(server.broadcast(1, exchange)) == encode_state(
        algorithm.server().broadcast(1, exchange)
    )
    assert encode_state(server.save()) == encode_state(algorithm.server().save())


# What check_algorithm says of an algorithm that keeps more between exchanges than it says.


def checked(name: str) -> None:
    made = tiny(name)
    kind = type(build(made))
    check_links(Case(kind, {}, network, records=dict.fromkeys(build(made).setting.sites), own=made))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_says_which_of_its_exchanges_build_on_others(name: str) -> None:
    checked(name)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("fmcsc", "links: .* of 'train-view-1' vanishes at a hospital that did not do 'train-full'; name"),
        ("feddmvc", "links: .*'moments'"),
        ("fedcola", "links: .*'attention-image' .*'own-image'"),
        ("creamfl", "links: .*'own-"),
        ("fedrgb", "links: .*'weights' .*'encoder'"),
    ],
)
def test_one_that_does_not_is_told(monkeypatch: pytest.MonkeyPatch, name: str, fault: str) -> None:
    monkeypatch.setattr(type(build(tiny(name))), "builds_on", lambda *_: ())
    with pytest.raises(AlgorithmFault, match=fault):
        checked(name)


class Falling(SiteProgram):
    """Work that falls back on 1 without the earlier one, and else is made of what that one was sent."""

    def __init__(self) -> None:
        self._kept = torch.ones(3)

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        if exchange.name == "earlier":
            self._kept = broadcast["model"].clone()
            return {"count": 1.0}
        return {"update": self._kept}

    def save(self) -> State:
        return {}

    def load(self, state: State) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("said", [(), ("earlier",)])
def test_work_made_of_another_broadcast_is_found_also_where_nothing_is_missing(said: tuple[str, ...]) -> None:
    plan = [
        Exchange(name, "all", Layout((Field(name, (3,), bound=1.0),), 3)) for name in ("earlier", "later")
    ]
    algorithm = SimpleNamespace(
        site=lambda _: Falling(), builds_on=lambda _, one: said if one.name == "later" else ()
    )
    case = SimpleNamespace(
        algorithm=lambda: algorithm, fault=lambda check, what, remedy: AlgorithmFault(f"{check}: {what}")
    )
    sent = {(1, one.name): {"model": torch.full((3,), 0.5)} for one in plan}
    with nullcontext() if said else pytest.raises(AlgorithmFault, match="'update' of 'later' vanishes"):
        links._check_site(case, "hospital-1", {1: plan}, sent)  # type: ignore[arg-type]
