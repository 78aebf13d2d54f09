"""What a site's own work draws follows from the site's seed, for every algorithm; simulation is as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from secfed.algorithms.fmcsc import site as fmcsc_site
from secfed.algorithms.framework import randomness
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms import fedcola_case, fmcsc_case, vlp_case
from tests.algorithms.loop import BREAST_CANCER, add

STUDY, ONE, TWO = 5, 111, 222


def fedavg() -> Study:
    return Study.parse(BREAST_CANCER).replace("study.seed", STUDY).replace("algorithm.batch_size", 32)


def fedprox() -> Study:
    return fedavg().replace("algorithm.name", "fedprox").replace("algorithm.mu", 0.1)


def vlp(**changes: object) -> Study:
    return vlp_case.study(algorithm__augment_images=0.5, algorithm__drop_words=0.2, **changes)


ALGORITHMS: dict[str, Callable[[], Study]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "ditto": lambda: fedavg().replace("algorithm.name", "ditto"),
    "fedcola": lambda: fedcola_case.study(model__drop_path=0.5),
    "feddra": vlp,
    "vlp-fedavg": lambda: vlp_case.study(algorithm=vlp_case.AVERAGING),
    "fmcsc": lambda: fmcsc_case.study(algorithm__batch_size=8),
    "fmcsc-independent": lambda: fmcsc_case.study(
        algorithm__pretrain_rounds=1, algorithm__pretrain_start="independent"
    ),
    "fmcsc-laplace": lambda: fmcsc_case.study(
        algorithm__paper_laplace_epsilon=10.0, algorithm__batch_size=8
    ).replace("algorithm.pretrain_rounds", 0),
}


class Seeds:
    """The seeds that are drawn from while sites work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used: set[int] = set()
        self.working = False
        real = randomness.derive_seed

        def noted(seed: int, *purpose: str | int) -> int:
            if self.working:
                self.used.add(seed)
            return real(seed, *purpose)

        monkeypatch.setattr(randomness, "derive_seed", noted)


def first_round(chosen: Study, site_seed: int | None, seeds: Seeds) -> tuple[Any, list[Any]]:
    """The first broadcast, and everything that sites contribute in round 1."""
    algorithm = build(chosen, site_seed=site_seed)
    server = algorithm.server()
    programs = {site: algorithm.site(site) for site in algorithm.setting.sites}  # type: ignore[attr-defined]
    given, first = [], None
    for exchange in algorithm.exchanges(1):
        state = server.broadcast(1, exchange)
        first = state if first is None else first
        members = algorithm.members(1, exchange, tuple(programs))
        seeds.working = True
        got = {site: programs[site].contribute(1, exchange, state) for site in members}
        seeds.working = False
        server.absorb(1, exchange, add(exchange, got))
        given += [value for site in members for _, value in sorted(got[site].items())]
    return first, given


def same(left: list[Any], right: list[Any]) -> bool:
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_local_work_follows_from_the_seed_of_the_site_and_what_is_agreed_from_the_studys(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, seeds = ALGORITHMS[name](), Seeds(monkeypatch)
    broadcast, one = first_round(chosen, ONE, seeds)
    assert seeds.used <= {ONE, 0}  # 0: parameters that are overwritten at once
    assert ONE in seeds.used
    assert same(first_round(chosen, ONE, seeds)[1], one)
    other_broadcast, two = first_round(chosen, TWO, seeds)
    assert not same(two, one)
    assert same(
        [broadcast[key] for key in sorted(broadcast)], [other_broadcast[key] for key in sorted(broadcast)]
    )


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if not name.startswith("fmcsc")])
def test_without_a_seed_of_its_own_a_site_works_from_the_studys(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, seeds = ALGORITHMS[name](), Seeds(monkeypatch)
    assert chosen.seed == STUDY
    simulated = first_round(chosen, None, seeds)[1]
    assert seeds.used <= {STUDY, 0}
    assert same(first_round(chosen, STUDY, seeds)[1], simulated)


def test_in_simulation_fmcsc_takes_records_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = Seeds(monkeypatch)
    first_round(ALGORITHMS["fmcsc"](), None, seeds)
    assert seeds.used <= {0}


@pytest.mark.parametrize("name", ["fedavg", "fmcsc"])
def test_rounds_that_begin_with_one_broadcast_give_different_updates(name: str) -> None:
    """Or an aggregator that repeats a broadcast averages the noise of batches away."""
    chosen = ALGORITHMS[name]().replace("study.rounds", 5)
    algorithm: Any = build(chosen, site_seed=ONE)
    site, updates = algorithm.setting.sites[0], []
    broadcast = algorithm.server().broadcast(3, algorithm.exchanges(3)[0])
    for number in (3, 4):
        exchange = algorithm.exchanges(number)[0]
        given = algorithm.site(site).contribute(number, exchange, broadcast)
        updates.append([value for key, value in sorted(given.items()) if key.startswith("update/")])
    assert not same(*updates)


def test_every_exchange_of_fmcsc_has_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[tuple[Any, ...]] = []
    real = fmcsc_site.torch_generator

    def noted(seed: int, *purpose: str | int) -> torch.Generator:
        orders.append(purpose)
        return real(seed, *purpose)

    monkeypatch.setattr(fmcsc_site, "torch_generator", noted)
    chosen = ALGORITHMS["fmcsc"]().replace("algorithm.pretrain_rounds", 0)
    first_round(chosen, ONE, Seeds(monkeypatch))
    assert len(orders) > 1
    assert len(set(orders)) == len(orders)
