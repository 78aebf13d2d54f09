"""Events: values with a canonical form and a meaning that never changes."""

from __future__ import annotations

import json

import pytest

from secfed.dp.accounting.events import (
    DistributedDiscreteGaussian,
    Event,
    Gaussian,
    PoissonSampledGaussian,
    Skellam,
    bounded_mean,
    common_adjacency,
    compose,
    from_value,
    to_json,
    to_value,
)
from secfed.dp.accounting.unit import Adjacency
from secfed.errors import ConfigError

ADD, REPLACE, HIDES = (Adjacency.ADD_OR_REMOVE_RECORD, Adjacency.REPLACE_RECORD, Adjacency.REPLACE_PATIENT)
ZERO, SWAP = Adjacency.ZERO_OUT_SITE, Adjacency.REPLACE_SITE

EVENTS: list[tuple[Event, str]] = [
    (
        PoissonSampledGaussian(ADD, 0.1, 1.0, 3),
        '{"adjacency":"add-or-remove-record","event":"poisson-sampled-gaussian/1",'
        '"noise_multiplier":1.0,"sampling_rate":0.1,"steps":3}',
    ),
    (
        Gaussian(REPLACE, 2.5, 1),
        '{"adjacency":"replace-record","count":1,"event":"gaussian/1","noise_multiplier":2.5}',
    ),
    (
        Skellam(ZERO, 10.0, 20.0, 1e6, 2),
        '{"adjacency":"zero-out-site","count":2,"event":"skellam/1","l1":20.0,"l2":10.0,"variance":1000000.0}',
    ),
    (
        DistributedDiscreteGaussian(SWAP, 10.0, 20.0, 4.0, 3, 5, 2),
        '{"adjacency":"replace-site","count":2,"dimension":5,"event":"distributed-discrete-gaussian/1",'
        '"l1":20.0,"l2":10.0,"shares":3,"sigma":4.0}',
    ),
]


@pytest.mark.parametrize(("event", "text"), EVENTS)
def test_the_canonical_form_never_changes(event: Event, text: str) -> None:
    """These strings stand in signed ledgers: a change here breaks every ledger ever written."""
    assert to_json(event) == text
    assert from_value(json.loads(text)) == event


WELL_FORMED = {"event": "gaussian/1", "adjacency": "replace-record", "count": 1, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"event": "unheard-of/1"},
        {name: value for name, value in WELL_FORMED.items() if name != "noise_multiplier"},
        {**WELL_FORMED, "more": 1},
        {**WELL_FORMED, "adjacency": "sideways"},
        *({**WELL_FORMED, "count": count} for count in (1.0, True, 0)),
        *({**WELL_FORMED, "noise_multiplier": noise} for noise in (-1.0, "1", float("nan"))),
        *({**to_value(EVENTS[0][0]), "sampling_rate": rate} for rate in (0.0, -0.1, 1.1, float("nan"))),
    ],
)
def test_anything_else_is_not_an_event(value: object) -> None:
    assert from_value(WELL_FORMED) == Gaussian(REPLACE, 1.0, 1)
    with pytest.raises(ConfigError):
        from_value(value)


def test_halves_compose_to_the_whole_in_any_order() -> None:
    first, second = PoissonSampledGaussian(ADD, 0.1, 1.0, 40), Gaussian(ADD, 3.0, 2)
    whole = compose([first.repeated(100), second])
    assert compose([first, second, first.repeated(60)]) == whole
    assert compose([second, first.repeated(99), first.repeated(1)]) == whole


def test_only_widening_restates() -> None:
    event = Gaussian(ADD, 1.0, 1)
    assert event.restated(REPLACE).adjacency is REPLACE
    assert Gaussian(ZERO, 1.0, 1).restated(REPLACE).adjacency is REPLACE
    assert Gaussian(HIDES, 1.0, 1).restated(REPLACE) == Gaussian(REPLACE, 1.0, 1)
    wider = [(REPLACE, ADD), (SWAP, ZERO), (ADD, ZERO), (REPLACE, SWAP)]
    for narrow, target in [*wider, (REPLACE, HIDES), (ADD, HIDES), (HIDES, ADD)]:
        with pytest.raises(ConfigError, match="cannot be restated"):
            Gaussian(narrow, 1.0, 1).restated(target)


@pytest.mark.parametrize(
    ("given", "common"),
    [
        ([ADD, ADD], ADD),
        ([ADD, REPLACE], REPLACE),
        ([ZERO, ZERO], ZERO),
        ([ZERO, SWAP], SWAP),
        ([ZERO, ADD], REPLACE),
        ([SWAP, REPLACE], REPLACE),
    ],
)
def test_a_mixture_is_stated_under_the_narrowest_shared_relation(
    given: list[Adjacency], common: Adjacency
) -> None:
    adjacency, events = common_adjacency([Gaussian(one, 1.0, 1) for one in given])
    assert adjacency is common
    assert {event.adjacency for event in events} == {common}


def test_nothing_has_no_relation() -> None:
    with pytest.raises(ConfigError, match="no privacy event"):
        common_adjacency([])


def test_a_bounded_mean_has_sensitivity_two_c_and_is_for_replacement_only() -> None:
    assert bounded_mean(5.0, 25) == Gaussian(REPLACE, 10.0, 25)
    assert bounded_mean(5.0, 2, HIDES) == Gaussian(HIDES, 10.0, 2)
    with pytest.raises(ConfigError, match="says nothing about add-or-remove-record"):
        bounded_mean(5.0, 2, ADD)
