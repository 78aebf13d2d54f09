"""Welch's test under noise in the sum: what a record adds, and what the interval covers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.disclosure import Reason
from tests.algorithms.noisy_statistics_case import Generator, noisy, norm, played, result, table

COLUMNS = (Column.number("y", 0, 100), Column.category("g", ("a", "b")))


def test_of() -> Any:
    return noisy(COLUMNS, kind="t-test", column="y", by="g")


test_of.__test__ = False  # type: ignore[attr-defined]


def records(rng: Generator, n: int) -> Table:
    of = rng.random(n) < 0.3
    return table(COLUMNS, y=rng.normal(50, np.where(of, 15, 10)).clip(0, 100), g=of)


def test_a_record_adds_one_in_the_scale_at_most() -> None:
    found = [norm(test_of(), table(COLUMNS, y=[y], g=[g]), {}) for y in (0, 30, 100, 500) for g in (0, 1)]
    assert max(found) == pytest.approx(1.0)
    assert norm(test_of(), table(COLUMNS, y=[np.nan], g=[1]), {}) == 0


def test_without_noise_it_is_welchs() -> None:
    data = records(np.random.default_rng(3), 200)
    found = result(test_of(), data, 0.0, np.random.default_rng(0))
    y, of = data.values["y"], data.values["g"] == 1
    test = stats.ttest_ind(y[~of], y[of], equal_var=False)
    assert found["t"] == pytest.approx(test.statistic)
    assert found["p"] == pytest.approx(test.pvalue)
    assert found["df"] == pytest.approx(test.df)


def rejected(n: int, deviation: float, times: int) -> float:
    """The share of tests at 5 % that see a difference where there is none, which intervals miss."""
    rng, found = np.random.default_rng(4), []
    for _ in range(times):
        test = result(test_of(), records(rng, n), deviation, rng)
        assert (test["p"] < 0.05) == (not test["low"] <= 0 <= test["high"])
        found.append(test["p"] < 0.05)
    return float(np.mean(found))


def test_the_test_includes_the_noise() -> None:
    assert 0.015 <= rejected(600, 4.0, 300) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("n", "deviation"), [(200, 0.2), (300, 2.0), (1000, 5.0), (3000, 30.0)])
def test_intervals_cover_what_they_say(n: int, deviation: float) -> None:
    assert 0.03 <= rejected(n, deviation, 3000) <= 0.07


def test_noise_that_could_have_made_the_sums_is_no_result() -> None:
    rng = np.random.default_rng(5)
    assert played(test_of(), records(rng, 200), 20.0, rng)[0] is Reason.TOO_NOISY
