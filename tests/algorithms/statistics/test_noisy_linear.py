"""Linear regression under noise in the sum: what a record adds, what intervals cover, what is withheld."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.algorithm import Statistics
from secfed.algorithms.statistics.analysis import NOISE, STATUS, WEIGHTS, Rules
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.noisy_linear import NoisyLinear
from secfed.algorithms.statistics.options import GlmOptions
from secfed.algorithms.statistics.results import Result
from secfed.errors import ConfigError
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.statistics.test_privacy import STUDY

pytest.importorskip("formulaic", reason="formulas need the extra analyse")

COLUMNS = (
    Column.number("y", -10, 60),
    Column.number("x", 0, 100),
    Column.number("w", 0, 10),
    Column.category("c", ("a", "b", "c")),
)
TRUE = np.array([5.0, 2.0, -3.0, 0.3, 1.0])  # by category first, as formulas are read


def linear(formula: str = "y ~ C(c) + x + w", **options: Any) -> NoisyLinear:
    rules = Rules(COLUMNS, 10_000, 4, 5, 2, 0.33, 0.95, True)
    return NoisyLinear("one", GlmOptions(kind="glm", formula=formula, **options), rules)


def records(rng: np.random.Generator, n: int) -> Table:
    x, w, c = rng.normal(55, 12, n).clip(0, 100), rng.uniform(0, 10, n), rng.integers(0, 3, n)
    y = (5 + 0.3 * x + w + 2 * (c == 1) - 3 * (c == 2) + rng.normal(0, 4, n)).clip(-10, 60)
    return Table(COLUMNS, {"y": y, "x": x, "w": w, "c": c.astype(float)}, n)


def estimated(
    model: NoisyLinear, products: NDArray[np.float64], deviation: float
) -> tuple[Reason, Result | None]:
    state = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in model.shapes().items()}
    state[NOISE] = torch.tensor(deviation / model.unit_scales()["products"], dtype=torch.float64)
    model.absorb(0, {"products": torch.tensor(products)}, state, same=True)
    reason = Reason(int(state[STATUS]))
    if reason is not Reason.RELEASED:
        return reason, None
    return reason, model.result({name: value.numpy() for name, value in model.released(state).items()})


@pytest.mark.parametrize("formula", ["y ~ x", "y ~ C(c) + x + w", "y ~ C(c) * x + I(w**2)", "y ~ C(c):x + w"])
def test_a_record_adds_one_in_the_scale_at_most(formula: str) -> None:
    model = linear(formula)
    scale, found = model.unit_scales()["products"], []
    for x in (0.0, 50.0, 100.0):
        for c in (0.0, 1.0, 2.0):
            for y, w in ((-10.0, 0.0), (60.0, 10.0), (60.0, 0.0)):
                values = {"y": [y], "x": [x], "w": [w], "c": [c]}
                table = Table(COLUMNS, {name: np.array(one) for name, one in values.items()}, 1)
                products = np.asarray(model.contribute(0, table, {})["products"])
                found.append(float(np.linalg.norm(products)) / scale)
                shared = model.contribute(0, table, {WEIGHTS: np.array([0.25])})["products"]
                assert np.allclose(shared, products / 4)
    assert max(found) <= 1 + 1e-12
    assert max(found) > 0.7  # noise is not far more than is needed


def test_without_noise_it_is_least_squares() -> None:
    model, table = linear(), records(np.random.default_rng(3), 300)
    reason, result = estimated(model, np.asarray(model.contribute(0, table, {})["products"]), 0.0)
    assert reason is Reason.RELEASED
    assert result is not None
    x, y = model.design.matrix(table), model.design.outcome(table)
    beta, squares, *_ = np.linalg.lstsq(x, y, rcond=None)
    covariance = squares[0] / (300 - 5) * np.linalg.inv(x.T @ x)
    assert np.allclose(result.values["coefficients"], beta, rtol=1e-9)
    assert np.allclose(result.values["covariance"], covariance, rtol=1e-8)
    assert np.allclose(result.values["noise_errors"], 0)


def covered(n: int, deviation: float, times: int) -> tuple[float, float]:
    """The share of intervals that cover, and of studies that have a result."""
    model, rng, hits = linear(), np.random.default_rng(5), []
    assert [name.split("[")[-1] for name in model.design.names] == ["Intercept", "T.b]", "T.c]", "x", "w"]
    for _ in range(times):
        products = np.asarray(model.contribute(0, records(rng, n), {})["products"])
        _, result = estimated(model, products + rng.normal(0, deviation, products.shape), deviation)
        if result is not None:
            hits.append((result.values["low"] <= TRUE) & (result.values["high"] >= TRUE))
    return float(np.mean(hits)), len(hits) / times


def test_intervals_cover_sampling_and_noise() -> None:
    share, told = covered(2000, 6.0, 120)
    assert told == 1
    assert 0.93 <= share <= 0.975


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "deviation"), [(500, 1.0), (2000, 3.0), (2000, 8.0), (5000, 6.0), (5000, 20.0)]
)
def test_intervals_cover_what_they_say(n: int, deviation: float) -> None:
    share, told = covered(n, deviation, 600)
    assert told == 1
    assert 0.93 <= share <= 0.97


def test_noise_that_could_have_made_the_sums_is_no_result() -> None:
    model, rng = linear(), np.random.default_rng(5)
    products = np.asarray(model.contribute(0, records(rng, 500), {})["products"])
    assert estimated(model, products, 6.0)[0] is Reason.TOO_NOISY


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ridge": 1.0}, "of an estimate without one"),
        ({"formula": "y ~ x - 1"}, "needs an intercept"),
    ],
)
def test_what_errors_are_not_known_of_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        linear(**changes)


def test_each_analysis_has_the_noise_of_its_own_scale() -> None:
    study = Study.parse(STUDY)
    glm = {"kind": "glm", "formula": "progression ~ bmi + bp"}
    algorithm = build(study.replace("algorithm.analyses.fit", glm))
    bound = algorithm.unit_bound(algorithm.exchanges(1)[0])
    assert bound is not None
    assert bound.norm == pytest.approx(3**0.5, rel=1e-4)
    assert bound.scales == {"fit/products": pytest.approx(10**0.5)}


def test_analyses_of_a_study_have_the_same_privacy_however_many_steps_they_have() -> None:
    """In variances of the noise over what a record adds, summed over all sums."""
    study = Study.parse(STUDY)
    for name, family in (("linear", "gaussian"), ("rate", "poisson")):
        table = {"kind": "glm", "formula": "progression ~ bmi + bp", "family": family}
        study = study.replace(f"algorithm.analyses.{name}", table)
    algorithm = build(study)
    assert isinstance(algorithm, Statistics)
    spent, shares = dict[str, float](), 0.0
    for step in algorithm.plan:
        bound = algorithm.unit_bound(step.exchange)
        assert bound is not None
        shares += bound.share
        moved = 0.0
        for one in step.analyses:
            norms = {part.name: 1.0 for part in one.parts(step.number - 1)} | one.unit_scales()
            counted = {norm / bound.scales.get(f"{one.name}/{part}", 1.0) for part, norm in norms.items()}
            assert max(counted) == pytest.approx(min(counted))
            moved += max(counted) ** 2
            # The noise is of variance norm^2 / share in the scales of all.
            spent[one.name] = spent.get(one.name, 0.0) + max(counted) ** 2 * bound.share / bound.norm**2
        assert moved**0.5 < bound.norm < moved**0.5 * 1.001
    assert shares == pytest.approx(1.0)
    assert len(algorithm.plan) == 5
    assert list(spent.values()) == pytest.approx([0.25] * 4, rel=1e-3)
