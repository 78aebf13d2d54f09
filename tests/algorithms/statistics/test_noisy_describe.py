"""Descriptions under noise in the sum: what a record adds, and what the intervals cover."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import NOISE, WEIGHTS, Rules
from secfed.algorithms.statistics.noisy_describe import NoisyDescribe
from secfed.algorithms.statistics.options import DescribeOptions

COLUMNS = (
    Column.number("age", 0, 100),
    Column.number("chol", 100, 400),
    Column.category("sex", ("female", "male")),
    Column.category("stage", ("i", "ii", "iii")),
)


def described(**options: Any) -> NoisyDescribe:
    rules = Rules(COLUMNS, 10_000, 4, 5, 2, 0.33, 0.95, True)
    given = {"kind": "describe", "columns": ("age", "chol", "stage"), "bins": 50, **options}
    return NoisyDescribe("one", DescribeOptions(**given), rules)


def records(n: int) -> Table:
    rng = np.random.default_rng(3)
    values = {
        "age": rng.normal(60, 12, n).clip(0, 100),
        "chol": rng.gamma(20, 11, n).clip(100, 400),
        "sex": rng.integers(0, 2, n).astype(float),
        "stage": rng.integers(0, 3, n).astype(float),
    }
    values["chol"][::9] = np.nan
    values["sex"][::50] = np.nan
    return Table(COLUMNS, values, n)


def told(model: NoisyDescribe, table: Table, deviation: float, rng: np.random.Generator) -> dict[str, Any]:
    state = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in model.shapes().items()}
    scales, totals = model.unit_scales(), {}
    for name, value in model.contribute(0, table, {}).items():
        totals[name] = torch.tensor(value + rng.normal(0, deviation * scales[name], value.shape))
    state[NOISE] = torch.tensor(deviation, dtype=torch.float64)
    model.absorb(0, totals, state, same=True)
    found: dict[str, Any] = dict(
        model.result({name: value.numpy() for name, value in model.released(state).items()}).values["groups"]
    )
    return found


@pytest.mark.parametrize("by", [None, "sex"])
def test_a_record_adds_one_in_the_scales_at_most(by: str | None) -> None:
    model, most = described(by=by), 0.0
    for age in (0.0, 50.0, 100.0, np.nan):
        for chol in (100.0, 400.0):
            values = {"age": [age], "chol": [chol], "sex": [1.0], "stage": [2.0]}
            table = Table(COLUMNS, {name: np.array(one) for name, one in values.items()}, 1)
            sums, shared = (model.contribute(0, table, w) for w in ({}, {WEIGHTS: np.array([0.5])}))
            squares = [np.sum((sums[n] / scale) ** 2) for n, scale in model.unit_scales().items()]
            most = max(most, float(sum(squares)) ** 0.5)
            assert all(np.allclose(shared[name], sums[name] / 2) for name in sums)
    assert most == pytest.approx(1.0)


def test_without_noise_it_is_the_description() -> None:
    table = records(400)
    found = told(described(by="sex"), table, 0.0, np.random.default_rng(0))
    men = table.values["sex"] == 1
    assert found["male"]["age"]["mean"] == pytest.approx((table.values["age"][men].mean(),) * 3)
    assert found["all"]["age"]["sd"] == pytest.approx((table.values["age"].std(ddof=1),) * 3)
    assert found["all"]["chol"]["n"][0] == np.sum(~np.isnan(table.values["chol"]))
    low, high = found["all"]["age"]["median"][1:]
    assert low <= np.median(table.values["age"]) <= high
    assert high - low <= 3 * 100 / 50


def coverage(times: int) -> tuple[dict[str, float], dict[str, float]]:
    """How often the intervals of all records cover, by what they are of; and their mean width."""
    table, rng, model = records(2000), np.random.default_rng(8), described(by="sex")
    hits, widths = defaultdict(list), defaultdict(list)
    exact = told(model, table, 0.0, rng)
    for _ in range(times):
        found = told(model, table, 3.0, rng)
        for group in ("male", "all"):
            for name in ("age", "chol", "stage"):
                for what, (_, low, high) in found[group][name].items():
                    kind = what if name != "stage" else "count"
                    true = exact[group][name][what]
                    if what in ("q25", "median", "q75"):
                        values = table.values[name][(table.values["sex"] == 1) | (group == "all")]
                        share = {"q25": 0.25, "median": 0.5, "q75": 0.75}[what]
                        true = (np.nanquantile(values, share, method="inverted_cdf"),)
                    hits[kind].append(low <= true[0] <= high)
                    widths[kind].append(high - low)
    means = [{kind: float(np.mean(one)) for kind, one in found.items()} for found in (hits, widths)]
    return means[0], means[1]


def check(shares: dict[str, float], slack: float) -> None:
    for kind in ("n", "mean", "sd", "count"):
        assert 0.93 - slack <= shares[kind] <= 0.97 + slack, (kind, shares)
    for kind in ("q25", "median", "q75"):
        assert shares[kind] >= 0.93, (kind, shares)  # wider by a cell than the noise alone


def test_intervals_cover_what_the_noise_did() -> None:
    check(coverage(40)[0], slack=0.04)


@pytest.mark.slow
def test_intervals_cover_what_they_say() -> None:
    check(coverage(1000)[0], slack=0.0)


def test_what_noise_could_have_made_is_not_told() -> None:
    found = told(described(), records(30), 3.0, np.random.default_rng(1))
    assert set(found["all"]["age"]) == {"n"}


@pytest.mark.parametrize("spread", [0.0, 3.0, 12.0])
def test_a_deviation_far_below_the_noise_is_covered(spread: float) -> None:
    rng, model = np.random.default_rng(2), described(columns=("age",))
    ages = (50 + spread * rng.normal(size=400)).clip(0, 100)
    values = {"age": ages, "chol": ages + 100, "sex": np.zeros(400), "stage": np.zeros(400)}
    table, hits = Table(COLUMNS, values, 400), []
    for _ in range(120):
        _, low, high = told(model, table, 6.0, rng)["all"]["age"]["sd"]
        hits.append(low <= ages.std(ddof=1) + 1e-9 and ages.std(ddof=1) <= high + 1e-9)
    assert np.mean(hits) >= 0.91
