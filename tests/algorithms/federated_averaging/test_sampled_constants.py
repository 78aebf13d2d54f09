"""Sums over changing cohorts are equations: nothing that a site adds in every round alike may be in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.weighted_mean import WeightedMeanServer
from secfed.algorithms.federated_averaging.weighted_plan import EVALUATE, UPDATE, WeightedPlan
from secfed.algorithms.framework.datasets import SiteData
from secfed.errors import ConfigError
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Exchange, Summands, Totals
from tests.algorithms.loop import Rounds, changed

SITES, ASKED, ROUNDS = 6, 3, 9
STUDY = f"""
study = {{ name = "sampled", rounds = {ROUNDS}, seed = 5 }}
algorithm = {{ name = "fedavg", weighting = "equal", learning_rate = 0.05 }}
model = {{ name = "logistic-regression" }}
data = {{ name = "breast-cancer", sites = {SITES}, partition = "dirichlet", alpha = 1.0 }}
protection = {{ name = "plain", sites_per_round = {ASKED} }}
"""
Solved = dict[str, dict[str, float]]


def study(**changes: Any) -> Study:
    return changed(STUDY, changes)


def solved(sums: Sequence[Totals], sites: Sequence[str]) -> Solved:
    """By field and site: the numbers that the sums determine, if sites add the same in every one of them.

    A field whose sums contradict that, or do not suffice to confirm it, gives nothing.
    """
    equations: dict[str, list[tuple[list[float], float]]] = defaultdict(list)
    for totals in sums:
        row = [float(site in totals.survivors) for site in sites]
        for name, total in totals.items():
            for place, value in enumerate(total.flatten().tolist()):
                equations[f"{name}[{place}]"].append((row, value))
    found: Solved = {}
    for name, lines in equations.items():
        rows, values = np.array([row for row, _ in lines]), np.array([value for _, value in lines])
        inverse = np.linalg.pinv(rows)
        known = np.isclose((inverse @ rows).diagonal(), 1.0)
        unknown = inverse @ values
        if known.any() and np.allclose(rows @ unknown, values, atol=1e-6 * (1 + abs(values).max())):
            found[name] = {site: unknown[n] for n, site in enumerate(sites) if known[n]}
    return found


def what_an_aggregator_solves(chosen: Study, monkeypatch: pytest.MonkeyPatch) -> Solved:
    sums: list[Totals] = []
    original = WeightedMeanServer.absorb

    def absorb(self: WeightedMeanServer, number: int, exchange: Exchange, totals: Totals) -> None:
        sums.append(totals)
        original(self, number, exchange, totals)

    with monkeypatch.context() as patch:
        patch.setattr(WeightedMeanServer, "absorb", absorb)
        Rounds(chosen).run()
    assert len(sums) > ROUNDS
    return solved(sums, build(chosen).setting.sites)


def records(chosen: Study) -> Mapping[str, SiteData]:
    algorithm = build(chosen)
    assert isinstance(algorithm, WeightedPlan)
    return {site: algorithm.site_data(site) for site in algorithm.setting.sites}


@pytest.mark.parametrize("name", ["fedavg", "fedsgd", "ditto"])
def test_nothing_that_stays_the_same_can_be_solved_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = what_an_aggregator_solves(study(algorithm__name=name), monkeypatch)
    assert found.keys() == {"weight[0]"}  # which is in the study's file
    assert found["weight[0]"] == pytest.approx(dict.fromkeys(records(study()), 1.0))  # so equations sufficed


class TestWhatTheRulesPrevent:
    def test_numbers_of_held_out_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen, original = study(), WeightedPlan.members

        def members(
            self: WeightedPlan, number: int, exchange: Exchange, sites: Sequence[str]
        ) -> Sequence[str]:
            return original(self, number, build(chosen).exchanges(1)[-1], sites)

        monkeypatch.setattr(WeightedPlan, "members", members)
        found = what_an_aggregator_solves(chosen, monkeypatch)["eval/records[0]"]
        assert found == pytest.approx({site: len(data.test_y) for site, data in records(chosen).items()})

    def test_numbers_of_training_records_and_of_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(WeightedPlan, "_check_sampling", lambda _: None)
        weighted = study(algorithm__weighting="records")
        own = {site: len(data.train_y) for site, data in records(weighted).items()}
        found = what_an_aggregator_solves(weighted, monkeypatch)["weight[0]"]
        assert {site: 1000 * weight for site, weight in found.items()} == pytest.approx(own)
        stepped = study(algorithm__name="fednova", algorithm__batch_size=1)
        assert what_an_aggregator_solves(stepped, monkeypatch)["steps[0]"] == pytest.approx(own)

    def test_numbers_of_steps_from_a_weight_that_no_record_moves(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pixel that is blank everywhere: its weight decays by one factor in every step."""
        monkeypatch.setattr(WeightedPlan, "_check_sampling", lambda _: None)
        decay, rate = 1e-2, 0.05
        chosen = study(
            data={"name": "digits", "sites": SITES, "partition": "dirichlet", "alpha": 1.0},
            model={"name": "mlp", "hidden": [4]},
            algorithm__weight_decay=decay,
            algorithm__batch_size=8,
        )
        blank = (
            torch.stack([data.train_x.flatten(1).amax(0) for data in records(chosen).values()]).amax(0) == 0
        )
        sums: list[Totals] = []
        original, models = WeightedMeanServer.absorb, []

        def absorb(self: WeightedMeanServer, number: int, exchange: Exchange, totals: Totals) -> None:
            if exchange.name == UPDATE:
                models.append(self.model())
                sums.append(totals)
            original(self, number, exchange, totals)

        monkeypatch.setattr(WeightedMeanServer, "absorb", absorb)
        Rounds(chosen).run()
        name = next(one for one, value in models[0].items() if value.ndim == 2)
        column = int(blank.nonzero()[0])
        sites = build(chosen).setting.sites
        rows, values = [], []
        for totals, model in zip(sums, models, strict=True):
            change = totals[f"update/{name}"][0, column] / model[name][0, column]
            rows.append([float(site in totals.survivors) for site in sites])
            values.append(float(change))
        factors = 1.0 + np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
        steps = np.log(factors) / np.log(1.0 - rate * decay)
        true = [-(-len(data.train_y) // 8) for data in records(chosen).values()]
        assert steps == pytest.approx(true, abs=0.3)


class Counting(FedAvg):
    """An own algorithm that says how many positive records it trained on."""

    def counts(self, data: SiteData) -> Summands:
        return {"positive": float(data.train_y.sum())}

    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        return {**super().local_update(model, data, context), **self.counts(data)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm__weighting": "records"}, 'algorithm.weighting = "records"'),
        ({"algorithm__name": "fednova"}, "fednova sums what follows from numbers of records"),
        ({"algorithm__name": f"{__name__}:Counting"}, "numbers of records"),
        ({"algorithm__name": "scaffold"}, "numbers of local steps"),
        ({"algorithm__weight_decay": 1e-3}, "numbers of local steps"),
        ({"algorithm__name": "fedprox", "algorithm__weight_decay": 1e-3}, "numbers of local steps"),
    ],
)
def test_constant_numbers_in_sums_of_changing_cohorts_are_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=r"^protection\.sites_per_round: ") as caught:
        build(study(**changes))
    assert words in caught.value.message
    assert "remove" in str(caught.value.remedy)
    build(study(**changes, protection__sites_per_round=None))


@pytest.mark.parametrize(
    ("privacy", "evaluated"),
    [
        (None, ROUNDS + 1),
        ({"unit": "record", "metrics": "unprotected"}, ROUNDS + 1),
        ({"unit": "record", "metrics": "private"}, 1),
        ({"unit": "site", "metrics": "unprotected"}, ROUNDS + 1),
        ({"unit": "site", "metrics": "withheld"}, 0),
    ],
)
def test_one_fixed_cohort_evaluates(privacy: dict[str, Any] | None, evaluated: int) -> None:
    chosen = study()
    if privacy is not None:
        chosen = chosen.replace("data.standardize", "public")
        chosen = chosen.replace("privacy", {"epsilon": 8.0, "delta": 1e-3, "clip_norm": 1.0, **privacy})
    algorithm = build(chosen)
    sites = algorithm.setting.sites
    cohorts = defaultdict(list)
    assert "train_loss" not in {field.name for field in algorithm.exchanges(1)[-1].layout.fields}
    for number in range(1, ROUNDS + 2):
        for exchange in algorithm.exchanges(number):
            holds = any(field.name.startswith("eval/") for field in exchange.layout.fields)
            assert holds == (exchange.name == EVALUATE)
            cohorts[exchange.name].append(tuple(algorithm.members(number, exchange, sites)))
    assert len(cohorts[EVALUATE]) == evaluated
    assert len(set(cohorts[EVALUATE])) == min(1, evaluated)
    assert len(set(cohorts[UPDATE])) > SITES
    assert {len(cohort) for one in cohorts.values() for cohort in one} == {ASKED}


def test_evaluation_of_its_own_measures_every_model_on_the_fixed_cohort() -> None:
    chosen = study(study__rounds=2)
    metrics = Rounds(chosen).run().server.metrics()
    assert all("accuracy" in metrics[version] for version in range(3))
    algorithm, data = build(chosen), records(chosen)
    fixed = algorithm.members(1, algorithm.exchanges(1)[0], algorithm.setting.sites)
    model = algorithm.setting.model()
    with torch.no_grad():
        right = sum(float((model(data[s].test_x).argmax(1) == data[s].test_y).sum()) for s in fixed)
    assert metrics[0]["accuracy"] == pytest.approx(right / sum(len(data[s].test_y) for s in fixed))
