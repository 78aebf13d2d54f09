"""DRO weights on their own: sums in the ring of fixed point, and a study that does nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from secfed.algorithms.dro.answer import DroAnswer
from secfed.algorithms.dro.options import DroOptions
from secfed.algorithms.dro.rule import DroRule
from secfed.algorithms.dro.site import SiteWeight
from secfed.algorithms.framework.base import Algorithm, ServerProgram, SiteProgram
from secfed.algorithms.framework.setting import Setting
from secfed.wire.layout import Exchange, Layout, State, Summands, Totals
from tests.algorithms.loop import add_in_ring


def names(count: int) -> tuple[str, ...]:
    return tuple(f"site-{number:02}" for number in range(count))


def a_rule(count: int, **changes: Any) -> DroRule:
    """Batches of 64, one colluder: the least that is assumed."""
    fields: dict[str, Any] = {"cap": 1.5 * math.log(64), "colluders": 1, "noised": count < 4}
    fields = {name: changes.pop(name, value) for name, value in fields.items()}
    return DroRule(DroOptions(**changes), names(count), **fields)


# The same weights in the clear, for somebody who sees every loss: projections in closed form.


def chi2_divergence(weights: torch.Tensor) -> float:
    """(1/n) sum (n l_i - 1)^2 of [n] weights that sum to 1; in [0, n - 1]."""
    return float((len(weights) * weights - 1.0).square().mean())


def chi2_project(weights: torch.Tensor, radius: float) -> torch.Tensor:
    """The nearest weights inside the chi-square ball: a shrinkage towards 1/n."""
    spread, uniform = chi2_divergence(weights), 1.0 / len(weights)
    return weights if spread <= radius else uniform + math.sqrt(radius / spread) * (weights - uniform)


def kl_divergence(weights: torch.Tensor) -> float:
    """KL(weights || uniform) of [n] weights that sum to 1; in [0, log n]."""
    return float(torch.special.xlogy(weights, len(weights) * weights).sum())


def kl_project(weights: torch.Tensor, rho: float) -> torch.Tensor:
    """The nearest weights in the sense of KL: tempered ones, by bisection of the power."""
    logs, low, high = torch.log(weights), 0.0, 1.0
    if kl_divergence(torch.softmax(logs, dim=0)) <= rho:
        return torch.softmax(logs, dim=0)
    if rho == 0.0:
        return torch.full_like(weights, 1.0 / len(weights))
    for _ in range(80):
        middle = (low + high) / 2.0
        inside = kl_divergence(torch.softmax(middle * logs, dim=0)) <= rho
        low, high = (middle, high) if inside else (low, middle)
    return torch.softmax(low * logs, dim=0)


def plain(rule: DroRule, weights: Any, losses: Any) -> torch.Tensor:
    """Every site's new weight: [n] float64."""
    old, values = (torch.as_tensor(one, dtype=torch.float64) for one in (weights, losses))
    moved = torch.softmax(torch.log(old) + rule.options.gamma * values.clamp(max=rule.cap), dim=0)
    if rule.options.divergence == "kl":
        return kl_project(moved, rule.options.rho)
    return chi2_project(moved, rule.radius)


def exchange(rule: DroRule) -> Exchange:
    return Exchange("weights", "all", Layout(rule.fields(), len(rule.sites)))


def totals(rule: DroRule, weights: Sequence[float], losses: Sequence[float], *, absent: Sequence[str] = ()):
    """What the server gets, through fixed point."""
    given = {
        site: rule.summand(float(weight), float(loss))
        for site, weight, loss in zip(rule.sites, weights, losses, strict=True)
        if site not in absent
    }
    return add_in_ring(exchange(rule), given)


def private(rule: DroRule, weights: Sequence[float], losses: Sequence[float]) -> torch.Tensor:
    """Every site's new weight, each computed by the site from its own numbers and the answer."""
    answer = rule.answer(1, totals(rule, weights, losses))
    assert answer is not None
    new = [
        rule.weight(site, float(weight), float(loss), answer)
        for site, weight, loss in zip(rule.sites, weights, losses, strict=True)
    ]
    return torch.tensor(new, dtype=torch.float64)


def losses_of(site: int, round_number: int) -> torch.Tensor:
    """Made-up losses of 16 batches."""
    return 2.0 + 0.3 * site + 0.1 * ((torch.arange(16.0) * (round_number + site)) % 5)


class WeightsOnly(Algorithm):
    """An algorithm whose rounds are nothing but the exchange of DRO numbers."""

    last: WeightsOnly

    def __init__(self, setting: Setting) -> None:
        sites = setting.sites
        self.rule = DroRule(DroOptions(), tuple(sorted(sites)), colluders=1, cap=1.5 * math.log(64))
        self.weights: dict[str, SiteWeight] = {}
        self.seen: list[Totals] = []
        WeightsOnly.last = self

    def exchanges(self, round_number: int) -> tuple[Exchange, ...]:
        return (exchange(self.rule),)

    def members(self, round_number: int, what: Exchange, sites: Sequence[str]) -> Sequence[str]:
        return sites

    def server(self) -> WeightsServer:
        return WeightsServer(self)

    def site(self, site_id: str) -> WeightsSite:
        return WeightsSite(self, site_id)


class WeightsServer(ServerProgram):
    def __init__(self, algorithm: WeightsOnly) -> None:
        self.algorithm = algorithm
        self.answer: DroAnswer | None = None

    def broadcast(self, round_number: int, what: Exchange) -> State:
        state = {"model": torch.zeros(1)}
        return state if self.answer is None else {**state, **self.answer.to_state()}

    def absorb(self, round_number: int, what: Exchange, got: Totals) -> None:
        self.algorithm.seen.append(got)
        self.answer = self.algorithm.rule.answer(round_number, got)

    def model(self) -> State:
        return {"model": torch.zeros(1)}

    def metrics(self) -> dict[int, dict[str, float]]:
        return {}

    def save(self) -> State:
        return self.broadcast(0, exchange(self.algorithm.rule))

    def load(self, state: State) -> None:
        self.answer = DroAnswer.from_state(state)


class WeightsSite(SiteProgram):
    def __init__(self, algorithm: WeightsOnly, site: str) -> None:
        self.algorithm, self.site = algorithm, site
        algorithm.weights[site] = SiteWeight.start(algorithm.rule)

    def contribute(self, round_number: int, what: Exchange, broadcast: State) -> Summands:
        rule, kept = self.algorithm.rule, self.algorithm.weights
        kept[self.site] = kept[self.site].apply(rule, self.site, DroAnswer.from_state(broadcast))
        loss = rule.loss(losses_of(rule.sites.index(self.site), round_number))
        kept[self.site], summand = kept[self.site].offer(rule, round_number, loss)
        return summand
