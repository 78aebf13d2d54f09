"""Logistic and Poisson regression under noise in the sum: what a record adds, what intervals cover."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.bounded_design import predictions
from secfed.algorithms.statistics.disclosure import Reason
from secfed.errors import ConfigError
from tests.algorithms.noisy_statistics_case import Generator, noisy, norm, played, result, table

pytest.importorskip("formulaic", reason="formulas need the extra analyse")

COLUMNS = (
    Column.category("d", ("no", "yes")),
    Column.number("k", 0, 10),
    Column.number("x", 0, 100),
    Column.number("w", 0, 10),
    Column.category("c", ("a", "b", "c")),
)
TRUE = {"binomial": -1.0, "poisson": -0.5}  # the intercept at the middle
OUTCOME = {"binomial": "d", "poisson": "k"}
FAMILIES = ["binomial", "poisson"]


def model(family: str, right: str = "C(c) + x + w", **options: Any) -> Any:
    return noisy(COLUMNS, kind="glm", formula=f"{OUTCOME[family]} ~ {right}", family=family, **options)


def records(rng: Generator, family: str, n: int) -> Table:
    x, w, c = rng.normal(55, 12, n).clip(0, 100), rng.uniform(0, 10, n), rng.integers(0, 3, n)
    eta = TRUE[family] + 0.03 * (x - 55) + 0.1 * (w - 5) + 0.5 * (c == 1) - 0.8 * (c == 2)
    d = rng.random(n) < 1 / (1 + np.exp(-eta))
    return table(COLUMNS, d=d, k=rng.poisson(np.exp(eta)).clip(0, 10), x=x, w=w, c=c)


def true(family: str) -> Any:
    return np.array([TRUE[family] - 0.03 * 55 - 0.5, 0.5, -0.8, 0.03, 0.1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("right", ["x", "C(c) + x + w", "C(c) * x"])
def test_a_record_adds_one_in_the_scales_at_most(family: str, right: str) -> None:
    analysis, rng, most = model(family, right), np.random.default_rng(2), 0.0
    size, squares = analysis.size, analysis.bounded.squares
    steep = np.zeros(size)
    # Residual and weight as they are largest together; and coefficients that no server should send.
    steep[analysis.bounded.at] = np.log(0.618 / 0.382) if family == "binomial" else np.log(10)
    chosen = [np.zeros(size), steep, *(10.0**k * rng.standard_normal(size) for k in range(-1, 7))]
    for x, c, y in product((0.0, 50.0, 100.0), (0.0, 2.0), (0.0, 1.0)):
        record = table(COLUMNS, d=[y], k=[10 * y], x=[x], w=[10.0], c=[c])
        for beta in (*chosen, np.full(size, 1e308), np.full(size, -np.inf)):
            found = norm(analysis, record, {"beta": beta}, step=1)
            assert found <= 1 + 1e-9
            most = max(most, found)
    assert most > 0.99 * ((squares - 1) / squares) ** 0.5  # noise is hardly more than is needed


def test_a_record_adds_the_same_wherever_it_stands() -> None:
    """Coefficients in whose sum digits are lost: in a matrix product, the last ones depend on the place."""
    rng = np.random.default_rng(4)
    columns, beta = rng.uniform(-1, 1, (1001, 9)), 1e16 * rng.standard_normal(9)
    apart = np.concatenate([predictions(columns[k : k + 1], beta) for k in range(1001)])
    assert (predictions(columns, beta) == apart).all()
    assert (columns @ beta != apart).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_without_noise_it_is_the_regression(family: str) -> None:
    statsmodels = pytest.importorskip("statsmodels.api")
    analysis, data = model(family), records(np.random.default_rng(3), family, 800)
    found = result(analysis, data, 0.0, np.random.default_rng(0))
    kind = {"binomial": statsmodels.families.Binomial, "poisson": statsmodels.families.Poisson}[family]()
    fit = statsmodels.GLM(analysis.design.outcome(data), analysis.design.matrix(data), family=kind).fit()
    np.testing.assert_allclose(found["coefficients"], fit.params, rtol=1e-4)
    np.testing.assert_allclose(found["standard_errors"], fit.bse, rtol=1e-2)
    assert not np.any(found["noise_errors"])


@pytest.mark.parametrize(("family", "share"), [("binomial", 0.02), ("poisson", 0.02)])
def test_rare_outcomes_are_reached_in_so_few_steps(family: str, share: float) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(55, 12, 20_000).clip(0, 100)
    y = rng.random(20_000) < share * np.exp(0.03 * (x - 55))
    data = table(COLUMNS, d=y, k=y, x=x, w=x / 10, c=0 * x)
    found = result(model(family, "x"), data, 0.0, rng)
    assert found["coefficients"][1] == pytest.approx(0.03, abs=3 * found["standard_errors"][1])
    more = result(model(family, "x", max_steps=4), data, 0.0, rng)
    assert more["steps"] == 4
    np.testing.assert_allclose(found["coefficients"], more["coefficients"], rtol=2e-3)


def covered(family: str, n: int, deviation: float, times: int) -> tuple[float, float, float]:
    """The share of intervals that cover, of studies that have a result, and of errors that is noise."""
    analysis, rng, hits, noise = model(family), np.random.default_rng(5), [], []
    for _ in range(times):
        _, found, _ = played(analysis, records(rng, family, n), deviation, rng)
        if found is not None:
            values = found.values
            hits.append((values["low"] <= true(family)) & (values["high"] >= true(family)))
            noise.append(values["noise_errors"] / values["standard_errors"])
    return float(np.mean(hits)), len(hits) / times, float(np.mean(noise))


def test_intervals_cover_sampling_and_noise() -> None:
    share, told, noise = covered("binomial", 4000, 2.0, 60)
    assert told == 1
    assert 0.92 <= share <= 0.98
    assert noise > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "n", "deviation"),
    [
        ("binomial", 2000, 0.5),
        ("binomial", 2000, 1.5),
        ("binomial", 5000, 4.0),
        ("binomial", 20_000, 15.0),
        ("poisson", 5000, 0.2),
        ("poisson", 20_000, 1.0),
    ],
)
def test_intervals_cover_what_they_say(family: str, n: int, deviation: float) -> None:
    share, told, _ = covered(family, n, deviation, 400)
    assert told > 0.95
    assert 0.93 <= share <= 0.97


@pytest.mark.parametrize("family", FAMILIES)
def test_noise_that_could_have_made_the_sums_is_no_result(family: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        assert played(model(family), records(rng, family, 300), 20.0, rng)[0] is Reason.TOO_NOISY


def test_the_last_step_has_half_of_the_privacy() -> None:
    analysis = model("binomial")
    shares = [analysis.step_share(step) for step in range(analysis.steps)]
    assert sum(shares) == pytest.approx(1.0)
    assert shares[-1] == 0.5
    assert analysis.steps == 5
    assert model("binomial", max_steps=3).steps == 3


@pytest.mark.parametrize(
    ("changes", "message"), [({"ridge": 1.0}, "without one"), ({"right": "x - 1"}, "needs an intercept")]
)
def test_what_errors_are_not_known_of_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model("binomial", **changes)
