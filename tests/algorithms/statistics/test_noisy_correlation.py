"""Correlations under noise in the sum: what a record adds, and what the intervals cover."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.disclosure import Reason
from tests.algorithms.noisy_statistics_case import Generator, noisy, norm, played, result, table

COLUMNS = tuple(Column.number(name, -4, 5) for name in "abc")


def correlation() -> Any:
    return noisy(COLUMNS, kind="correlation", columns=("a", "b", "c"))


def records(rng: Generator, n: int, rho: float) -> Table:
    """Of a and b correlated so, and c with neither."""
    x = rng.standard_normal((n, 3))
    b = rho * x[:, 0] + (1 - rho**2) ** 0.5 * x[:, 1]
    return table(COLUMNS, a=x[:, 0].clip(-4, 4) + 0.5, b=b.clip(-4, 4) + 0.5, c=x[:, 2].clip(-4, 4))


def test_a_record_adds_one_in_the_scale_at_most() -> None:
    corners = product((-4.0, 0.5, 5.0, 99.0), repeat=3)
    found = [norm(correlation(), table(COLUMNS, a=[a], b=[b], c=[c]), {}) for a, b, c in corners]
    assert max(found) == pytest.approx(1.0)


def test_without_noise_it_is_pearsons() -> None:
    data = records(np.random.default_rng(3), 300, 0.6)
    found = result(correlation(), data, 0.0, np.random.default_rng(0))
    test = stats.pearsonr(data.values["a"], data.values["b"])
    assert found["correlation"][0, 1] == pytest.approx(test.statistic)
    assert found["low"][0, 1] == pytest.approx(test.confidence_interval()[0], abs=0.01)
    assert found["high"][0, 1] == pytest.approx(test.confidence_interval()[1], abs=0.01)
    assert found["means"][2] == pytest.approx(data.values["c"].mean())
    covariance = np.cov([data.values[name] for name in "abc"])
    np.testing.assert_allclose(found["covariance"], covariance, rtol=1e-9)


def covered(n: int, deviation: float, rho: float, times: int) -> tuple[float, float, float]:
    """The share of intervals that cover, of tests that reject where nothing is, and of results."""
    rng, hits, rejected = np.random.default_rng(4), [], []
    for _ in range(times):
        _, found, _ = played(correlation(), records(rng, n, rho), deviation, rng)
        if found is not None:
            low, high = found.values["low"][0, 1], found.values["high"][0, 1]
            hits.append(low <= rho <= high)
            rejected.append(found.values["p"][0, 2] < 0.05)
    return float(np.mean(hits)), float(np.mean(rejected)), len(hits) / times


def test_intervals_include_the_noise() -> None:
    share, rejected, told = covered(1000, 1.5, 0.5, 200)
    assert told > 0.97
    assert 0.9 <= share <= 0.985
    assert rejected <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "deviation", "rho"), [(300, 0.2, 0.5), (2000, 2.0, 0.0), (1000, 1.5, 0.9), (5000, 7.0, -0.5)]
)
def test_intervals_cover_what_they_say(n: int, deviation: float, rho: float) -> None:
    share, rejected, told = covered(n, deviation, rho, 2000)
    assert told > 0.95
    assert 0.93 <= share <= 0.97
    assert 0.03 <= rejected <= 0.07


def test_noise_that_could_have_made_the_sums_is_no_result() -> None:
    rng = np.random.default_rng(5)
    assert played(correlation(), records(rng, 300, 0.5), 5.0, rng)[0] is Reason.TOO_NOISY
