"""Losses are in no sum over sites that change by a public draw: rounds would be equations for each one's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms import fedcola_case, fmcsc_case

SITES = {f"data__{kind}_sites": 8 for kind in ("image", "text", "pair")}
VIEWS = [-1] * 9 + [0] * 6
DRAWN: dict[str, Callable[..., Study]] = {
    "fmcsc": lambda **changes: fmcsc_case.study(
        data__views=VIEWS, algorithm__pretrain_rounds=6, study__rounds=8, **changes
    ),
    "fedcola": lambda **changes: fedcola_case.study(**SITES, study__rounds=6, **changes),
    "creamfl": lambda **changes: fedcola_case.study(fedcola_case.CREAM, **SITES, study__rounds=6, **changes),
}
SHARE = {"fmcsc": "pretrain_share", "fedcola": "participation", "creamfl": "participation"}


def losses(made: Study) -> dict[bool, set[str]]:
    """Exchanges that sum a loss, by whether their members change from round to round."""
    algorithm = build(made)
    members, summed = defaultdict(set), set()
    for number in range(1, made.study.rounds + 1):
        for exchange in algorithm.exchanges(number):
            members[exchange.name].add(algorithm.members(number, exchange, algorithm.setting.sites))
            if "loss" in {field.name for field in exchange.layout.fields}:
                summed.add(exchange.name)
    return {
        changing: {name for name in summed if (len(members[name]) > 1) == changing}
        for changing in (False, True)
    }


@pytest.mark.parametrize("name", DRAWN)
def test_losses_are_summed_over_the_same_sites_in_every_round(name: str) -> None:
    share = f"algorithm__{SHARE[name]}"
    found = losses(DRAWN[name](protection__name="masked", **{share: 0.5}))
    assert not found[True]
    everybody = losses(DRAWN[name](protection__name="masked", **{share: 1.0}))
    first = "pretrain" if name == "fmcsc" else "own-image"
    assert first in everybody[False]
    assert first not in found[False]
    assert first in losses(DRAWN[name](protection__name="plain", **{share: 0.5}))[True]


@pytest.mark.parametrize("share", [0.75, 0.8, 0.85, 0.9])
def test_samples_that_happen_to_be_everybody_are_drawn_all_the_same(share: float) -> None:
    """Which kinds are drawn changes how many are: by chance the first sample may have all hospitals."""
    views = [-1] * 3 + [0] * 4 + [1] * 3
    for seed in range(12):
        found = losses(
            fmcsc_case.study(
                data__views=views,
                study__seed=seed,
                protection__name="masked",
                algorithm__pretrain_rounds=12,
                algorithm__pretrain_share=share,
                study__rounds=14,
            )
        )
        assert not found[True]


@pytest.mark.parametrize("name", DRAWN)
def test_a_study_without_sums_of_losses_runs(name: str) -> None:
    made = DRAWN[name](protection__name="masked", **{f"algorithm__{SHARE[name]}": 0.5})
    rounds = fedcola_case.Rounds(made)
    rounds.round(1)
    rounds.round(2)
    assert rounds.server.model()
