"""ROC curves under noise in the sum: what a record adds, and what the interval of the area covers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.noisy_roc import noisy_area
from tests.algorithms.noisy_statistics_case import noisy, norm, played, scaled, table
from tests.algorithms.statistics.test_noisy_glm import COLUMNS, model, records

pytest.importorskip("formulaic", reason="formulas need the extra analyse")


def curve(**options: Any) -> Any:
    return noisy(COLUMNS, earlier={"one": model("binomial")}, kind="roc", of="one", **options)


def given(beta: list[float], status: float = 0.0) -> dict[str, torch.Tensor]:
    return {"one/beta": torch.tensor(beta), "one/status": torch.tensor(status)}


@pytest.mark.parametrize("replaced", [False, True])
def test_a_record_is_in_one_cell(replaced: bool) -> None:
    analysis, sums = curve(bins=20, replaced=replaced), []
    for scale in (0.0, 1.0, 1e300, np.inf):
        sent = {name: one.numpy() for name, one in given([scale, 0.5, -scale, scale, -1.0]).items()}
        record = table(COLUMNS, d=[1], k=[0], x=[70], w=[0], c=[1])
        assert norm(analysis, record, sent) == pytest.approx(2**0.5 if replaced else 1.0)
        sums.append(scaled(analysis, analysis.contribute(0, record, sent)))
    assert len({int(one.argmax()) for one in sums}) > 1


def test_cells_are_those_of_probabilities() -> None:
    data, beta = records(np.random.default_rng(2), "binomial", 400), [-1.0, 0.5, -0.8, 1.5, 0.5]
    analysis = curve(bins=20)
    found = analysis.contribute(0, data, {name: one.numpy() for name, one in given(beta).items()})["records"]
    share = 1 / (1 + np.exp(-(analysis.model.bounded.columns(data) @ np.array(beta))))
    for outcome in range(2):
        own = np.histogram(share[data.values["d"] == outcome], bins=20, range=(0, 1))[0]
        np.testing.assert_array_equal(found[outcome], own)


def test_without_noise_it_is_delongs() -> None:
    rng = np.random.default_rng(2)
    data: Table = records(rng, "binomial", 600)
    _, _, state = played(model("binomial"), data, 0.0, rng)
    _, found, _ = played(curve(bins=200), data, 0.0, rng, given(state["beta"].tolist()))
    assert found is not None
    score = model("binomial").bounded.columns(data) @ state["beta"].numpy()
    cell = np.floor(200 / (1 + np.exp(-score)))
    with_it, without = (cell[data.values["d"] == one] for one in (1, 0))
    wins = (with_it[:, None] > without) + 0.5 * (with_it[:, None] == without)
    assert found.values["auc"] == pytest.approx(wins.mean())
    parts = [np.var(wins.mean(axis=axis), ddof=1) / wins.shape[1 - axis] for axis in (0, 1)]
    assert found.values["se"] == pytest.approx(float(np.sqrt(sum(parts))))


def covered(n: int, m: int, bins: int, deviation: float, times: int) -> float:
    """The share of intervals that cover the area of two normal scores a deviation apart."""
    rng, hits = np.random.default_rng(1), []
    edges = np.linspace(-4, 5, bins + 1)
    edges[0], edges[-1] = -np.inf, np.inf
    q, p = np.diff(normal.cdf(edges)), np.diff(normal.cdf(edges - 1))
    true = float(p @ (np.cumsum(q) - q / 2))
    for _ in range(times):
        counts = [rng.multinomial(k, share) + rng.normal(0, deviation, bins) for k, share in ((m, q), (n, p))]
        area, sampling, noise = noisy_area(counts[0], counts[1], deviation)
        hits.append(abs(area - true) <= 1.96 * (sampling + noise) ** 0.5)
    return float(np.mean(hits))


@pytest.mark.parametrize("deviation", [3.0, 8.0])
def test_intervals_cover_what_they_say(deviation: float) -> None:
    assert 0.93 <= covered(800, 1200, 50, deviation, 1500) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "m", "bins", "deviation"), [(300, 500, 500, 0.5), (2000, 2000, 500, 7.0), (5000, 2000, 100, 20.0)]
)
def test_intervals_cover_in_other_studies(n: int, m: int, bins: int, deviation: float) -> None:
    assert 0.93 <= covered(n, m, bins, deviation, 5000) <= 0.97


def test_no_curve_of_noise_or_of_a_regression_that_is_withheld() -> None:
    rng = np.random.default_rng(3)
    data = records(rng, "binomial", 300)
    assert played(curve(), data, 5.0, rng, given([0.0] * 5))[0] is Reason.TOO_NOISY
    withheld = given([0.0] * 5, float(Reason.TOO_NOISY))
    assert played(curve(), data, 0.1, rng, withheld)[0] is Reason.OTHER_WITHHELD
