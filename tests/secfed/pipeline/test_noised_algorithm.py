"""The site as the unit of privacy: noise in the sum, clipping at the site, and who must have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from secfed.algorithms.framework.base import Algorithm, ServerProgram, SiteProgram
from secfed.config.cohort_rules import min_survivors
from secfed.errors import ConfigError
from secfed.pipeline.noised_algorithm import NoisedAlgorithm, with_privacy
from secfed.simulation import simulate
from secfed.simulation.dropouts import Dropout
from secfed.study.study import Study
from secfed.wire.layout import Exchange, Field, Layout, State, Summands, Totals
from tests.secfed.privacy_case import SITES, run, study


class Constant(Algorithm, SiteProgram):
    """An algorithm that sums constants: what arrives is the noise."""

    def __init__(self, value: float, elements: int, sites: int) -> None:
        self.value, self.elements = value, elements
        self.layout = Layout((Field("update/x", (elements,), 1.0, 32),), sites=sites)

    def exchanges(self, round_number: int) -> tuple[Exchange, ...]:
        return (Exchange("update", "all", self.layout),) if round_number == 1 else ()

    def members(self, round_number: int, exchange: Exchange, sites: Any) -> Any:
        return sites

    def server(self) -> Any:
        raise NotImplementedError

    def site(self, site_id: str) -> Any:
        del site_id
        return self

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        del round_number, exchange, broadcast
        return {"update/x": torch.full((self.elements,), self.value)}


class Server(ServerProgram):
    """Remembers the totals that it is given."""

    def __init__(self) -> None:
        self.taken: list[Totals] = []

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        del round_number, exchange
        return {"x": torch.zeros(1)}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        del round_number, exchange
        self.taken.append(totals)

    def model(self) -> State:
        return {"x": torch.zeros(1)}

    save = model

    def metrics(self) -> dict[int, dict[str, float]]:
        return {}

    def load(self, state: State) -> None:
        raise NotImplementedError


def totals_of(inner: Constant, chosen: Study, monkeypatch: pytest.MonkeyPatch, *drops: str) -> Totals:
    """What the server program gets in a study of one round, through the whole protocol."""
    server = Server()
    inner.server = lambda: server  # type: ignore[method-assign]
    monkeypatch.setattr(simulate, "build", lambda _study: inner)
    run(chosen.replace("study.rounds", 1), drops=tuple(map(Dropout.parse, drops)))
    (totals,) = server.taken
    return totals


def test_totals_of_a_site_private_study_have_the_promised_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under masks, with every site and with one that drops."""
    chosen = study("site", protection="masked", epsilon=2.0)
    inner = Constant(0.0, 20_000, 4)
    taken = [totals_of(inner, chosen, monkeypatch, *drops) for drops in ((), ("hospital-3@mask:1",))]
    noised = with_privacy(chosen.replace("study.rounds", 1), inner, SITES)
    assert isinstance(noised, NoisedAlgorithm)
    promised = noised.noise_multiplier * 1.0
    honest = min_survivors(chosen.protection, 4) - chosen.protection.colluders_for(4)
    for totals, survivors in zip(taken, (4, 3), strict=True):
        assert len(totals.survivors) == survivors
        values = totals["update/x"].numpy()
        deviation = promised * (survivors / honest) ** 0.5
        assert deviation >= promised
        assert stats.kstest(values / deviation, "norm").pvalue > 1e-4
        # Variance: a chi-square variable with as many degrees of freedom as elements.
        low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], len(values))
        assert low < float(np.sum((values / deviation) ** 2)) < high


def test_noise_does_not_lower_the_fewest_sites_that_add_more_than_zeros() -> None:
    class Grouped(Constant):
        def contributors(self, round_number: int, exchange: Exchange) -> Any:
            assert exchange in self.exchanges(round_number)  # its own, not the widened one
            return ((frozenset({"hospital-1", "hospital-2", "hospital-3"}), 3),)

    inner = Grouped(0.0, 10, 4)
    noised = with_privacy(study("site").replace("study.rounds", 1), inner, SITES)
    (outer,) = noised.exchanges(1)
    assert outer != inner.exchanges(1)[0]
    assert noised.contributors(1, outer) == inner.contributors(1, inner.exchanges(1)[0])


def test_site_privacy_clips_what_a_site_contributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that would contribute a thousand times the norm move the sum by the norm, each."""
    chosen = study("site", epsilon=20.0).replace("study.rounds", 1)
    inner = Constant(1000.0, 100, 4)
    noised = with_privacy(chosen, inner, SITES)
    assert isinstance(noised, NoisedAlgorithm)
    honest = min_survivors(chosen.protection, 4) - chosen.protection.colluders_for(4)
    deviation = noised.noise_multiplier * (4 / honest) ** 0.5
    values = totals_of(inner, chosen, monkeypatch)["update/x"].numpy()
    along = float(values.sum()) / 100**0.5  # in the direction in which all four went
    assert abs(along - 4 * 1.0) < stats.norm.isf(1e-9) * deviation
    # Without clipping each element would be at its bound, which is 1 at least.
    assert 2 * stats.norm.isf(1e-9) * deviation < 100**0.5 * 4 - 4


def test_an_algorithm_without_private_training_is_refused_for_records() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.unit"):
        with_privacy(study(), Constant(0.0, 1, 4), SITES)  # type: ignore[arg-type]
