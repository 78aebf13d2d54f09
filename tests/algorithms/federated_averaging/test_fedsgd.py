"""FedSGD: pooled gradient descent, and under ``noise = "sum"`` the same of clipped gradients with noise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from secfed.algorithms.federated_averaging.fedsgd import FedSGD
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.dp.accounting.events import from_value
from secfed.dp.accounting.interface import statement
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.unit_sums import UnitSums
from secfed.errors import ConfigError
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.study.build import build, build_data
from secfed.study.study import Study
from tests.algorithms.federated_averaging.test_pages import RATE, ROUNDS, SITES, Alone, flat, rows, study
from tests.algorithms.loop import simulate
from tests.secfed import privacy_case

WARDS = """
study = { name = "wards", rounds = 6, seed = 5 }
algorithm = { name = "fedsgd", weighting = "equal", learning_rate = 0.5, records = 400 }
model = { name = "logistic-regression" }
data = { name = "breast-cancer", sites = 4, standardize = "public" }
protection = { name = "masked", colluders = 1 }
privacy = { unit = "record", noise = "sum", epsilon = 400.0, delta = 1e-5, clip_norm = 0.3 }
"""


def wards(**privacy: Any) -> Study:
    chosen = Study.parse(WARDS)
    for key, value in privacy.items():
        chosen = chosen.replace(f"privacy.{key}", value)
    return chosen


@pytest.mark.parametrize(
    ("options", "optimiser"),
    [
        ({}, lambda values: torch.optim.SGD(values, lr=RATE)),
        ({"momentum": 0.5, "weight_decay": 0.1}, lambda v: torch.optim.SGD(v, RATE, 0.5, weight_decay=0.1)),
        ({"optimizer": "adam"}, lambda values: torch.optim.Adam(values, lr=RATE)),
    ],
)
def test_it_is_gradient_descent_on_all_records(options: dict[str, Any], optimiser: Any) -> None:
    chosen = study("fedavg").replace("algorithm", {"name": "fedsgd", "learning_rate": RATE, **options})
    algorithm = build(chosen)
    alone, data = Alone(algorithm), rows(algorithm)
    pooled = tuple(torch.cat(parts) for parts in zip(*(data[site] for site in SITES), strict=True))
    network = algorithm.setting.model()
    steps = optimiser(network.parameters())
    for _ in range(ROUNDS):
        steps.zero_grad()
        nn.functional.cross_entropy(network(pooled[0]), pooled[1]).backward()
        steps.step()
    wanted = nn.utils.parameters_to_vector(network.parameters()).double()
    assert torch.allclose(flat(simulate(chosen).model(), alone.names), wanted, atol=1e-4)


def test_with_little_noise_it_is_descent_along_clipped_gradients(tmp_path: Path) -> None:
    """Through the masked protocol, with every hospital's share of the noise."""
    chosen = wards()
    privacy_case.run(chosen, tmp_path)
    from safetensors.torch import load_file

    found = load_file(tmp_path / "model.safetensors")
    algorithm = build(chosen)
    data = [algorithm.site_data(site) for site in algorithm.setting.sites]
    network = algorithm.setting.model()
    for _ in range(6):
        total = {name: torch.zeros_like(value) for name, value in network.named_parameters()}
        for site in data:
            for x, y in zip(site.train_x, site.train_y, strict=True):
                loss = nn.functional.cross_entropy(network(x[None]), y[None])
                parts = torch.autograd.grad(loss, list(network.parameters()))
                norm = float(torch.cat([part.reshape(-1) for part in parts]).norm())
                for name, part in zip(total, parts, strict=True):
                    total[name] += part * min(1.0, 0.3 / norm)
        with torch.no_grad():
            for name, value in network.named_parameters():
                value -= 0.5 * total[name] / 400
    for name, value in network.named_parameters():
        assert torch.allclose(found[name], value, atol=5e-3)
    paid = [
        from_value(json.loads(line)["body"]["event"])
        for line in (tmp_path / "sites/hospital-1/ledger-breast-cancer.jsonl").read_text().splitlines()
        if '"unit-skellam/1"' in line
    ]
    assert len(paid) == 6
    assert 0.95 * 400 < statement(paid, 1e-5).epsilon <= 400


@pytest.mark.parametrize("metrics", ["private", "unprotected"])
def test_metrics_have_a_sum_of_their_own(tmp_path: Path, metrics: str) -> None:
    chosen = wards(metrics=metrics, epsilon=50.0).replace("algorithm.evaluate_every", 3)
    chosen = chosen.replace("algorithm.learning_rate", 10.0)
    report = privacy_case.run(chosen, tmp_path)
    names = [[exchange.name for exchange in build(chosen).exchanges(number)] for number in range(1, 8)]
    often = {1, 4} if metrics == "unprotected" else set()
    assert names == [
        *(["evaluate", "update"] if number in often else ["update"] for number in range(1, 7)),
        ["evaluate"],
    ]
    assert report.final["accuracy"] > 0.7
    assert report.privacy is not None
    assert bool(report.privacy.unprotected) == (metrics == "unprotected")
    assert all(0.9 * 50 < site.epsilon <= 50 for site in report.privacy.sites)


def test_what_gradients_are_divided_by_is_public() -> None:
    chosen = wards()
    with pytest.raises(ConfigError, match=r"algorithm\.records"):
        build(chosen.replace("algorithm.records", None))
    with pytest.raises(ConfigError, match=r"algorithm\.records"):
        build(chosen.replace("privacy", None).replace("protection.name", "masked"))
    with pytest.raises(ConfigError, match=r"algorithm\.weighting"):
        build(chosen.replace("algorithm.weighting", "records"))
    plain = chosen.replace("algorithm", {"name": "fedavg", "weighting": "equal"})
    with pytest.raises(ConfigError, match=r"privacy\.noise"):
        with_privacy(plain, build(plain), build_data(plain).sites)


def test_a_hospital_whose_records_are_all_held_out_adds_zeros() -> None:
    chosen = wards()
    algorithm = build(chosen)
    held_out = algorithm.data.site("hospital-1")
    none = replace(held_out, train_x=held_out.train_x[:0], train_y=held_out.train_y[:0])
    algorithm.data.site = lambda _: none
    with counted_as_defaults(lambda _: None):
        program = algorithm.site("hospital-1")
    made = UnitSums(chosen.privacy, seed=1, random=lambda *_: SecureRandom())
    program.use_unit_sums(made)
    made.enter(1, "update")
    [exchange] = algorithm.exchanges(1)
    given = program.contribute(1, exchange, algorithm.server().broadcast(1, exchange))
    assert {field.name for field in exchange.layout.fields} == set(given)
    assert not any(bool(value.any()) for value in given.values())


@pytest.mark.parametrize("unit", ["group", "site"])
def test_other_units(unit: str, tmp_path: Path) -> None:
    grouped = 'unit = "group", noise = "sum", group_size = 4'
    text = WARDS.replace('unit = "record", noise = "sum"', grouped if unit == "group" else 'unit = "site"')
    if unit == "site":
        text = text.replace(", records = 400", "")
    report = privacy_case.run(Study.parse(text).replace("study.rounds", 2), tmp_path)
    assert report.privacy is not None
    assert all(380 < site.epsilon <= 400 for site in report.privacy.sites)


def test_a_bound_is_not_inherited_with_another_update() -> None:
    class Own(FedSGD):
        def local_update(self, *_: Any) -> Any: ...

    class Renamed(FedSGD): ...

    assert (Own.summed_units, Renamed.summed_units) == ((), ("record", "group"))
