"""Survival under noise in the sum: what a record adds, what intervals cover, how often the test rejects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.disclosure import Reason
from tests.algorithms.noisy_statistics_case import Generator, noisy, norm, played, result, scaled, table

COLUMNS = (Column.number("time", 0, 36), Column.number("event", 0, 1), Column.category("arm", ("a", "b")))


def curves(**options: Any) -> Any:
    given = {"kind": "kaplan-meier", "time": "time", "event": "event", "interval": 3.0, "by": "arm"}
    return noisy(COLUMNS, **{**given, **options})


def records(rng: Generator, n: int, ratio: float = 1.0) -> Table:
    arm = rng.integers(0, 2, n)
    ends, leaves = rng.exponential(1 / (0.03 * ratio**arm)), np.minimum(rng.uniform(5, 50, n), 36)
    return table(COLUMNS, time=np.minimum(ends, leaves), event=ends <= leaves, arm=arm)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_record_is_in_one_cell(replaced: bool) -> None:
    analysis, sums = curves(replaced=replaced), []
    for time, event, arm in ((0, 1, 0), (36, 0, 1), (36, 1, 1), (7, 1, 0)):
        record = table(COLUMNS, time=[time], event=[event], arm=[arm])
        assert norm(analysis, record, {}) == pytest.approx(2**0.5 if replaced else 1.0)
        sums.append(scaled(analysis, analysis.contribute(0, record, {})))
    nothing = analysis.contribute(0, table(COLUMNS, time=[np.nan], event=[1], arm=[0]), {})
    sums.append(scaled(analysis, nothing))
    apart = max(float(np.linalg.norm(one - other)) for one in sums for other in sums)
    if replaced:  # another record in its place moves two cells: a norm of 2, as noise is planned for
        assert apart == pytest.approx(2.0)


def test_without_noise_it_is_the_curve() -> None:
    data = records(np.random.default_rng(3), 500)
    found = result(curves(), data, 0.0, np.random.default_rng(0))
    lifelines = pytest.importorskip("lifelines")
    statistics = pytest.importorskip("lifelines.statistics")
    grid = np.ceil(data.values["time"] / 3) * 3
    for arm, name in enumerate(("a", "b")):
        of = data.values["arm"] == arm
        fit = lifelines.KaplanMeierFitter().fit(grid[of], data.values["event"][of])
        own = found["curves"][name]
        np.testing.assert_allclose(own["survival"], fit.predict(own["time"]), rtol=1e-12)
    of = data.values["arm"] == 1
    events = data.values["event"]
    test = statistics.logrank_test(grid[of], grid[~of], events[of], events[~of])
    assert found["log_rank"]["statistic"] == pytest.approx(test.test_statistic)


def covered(n: int, deviation: float, times: int) -> tuple[float, float, float]:
    """The share of intervals that cover, of times that are told, and of tests that reject by chance."""
    analysis, rng = curves(), np.random.default_rng(3)
    many = records(np.random.default_rng(1), 500_000)
    truth = result(curves(by=None), many, 0.0, rng)["curves"]["all"]["survival"]
    hits, told, rejected = [], [], []
    for _ in range(times):
        found = result(analysis, records(rng, n), deviation, rng)
        for curve in found["curves"].values():
            end = len(curve["time"])
            told.append(end / analysis.times.count)
            low, high = np.array(curve["low"][1:]), np.array(curve["high"][1:])
            hits += list((low <= truth[1:end]) & (truth[1:end] <= high))
        rejected.append(found["log_rank"]["p"] < 0.05)
    return float(np.mean(hits)), float(np.mean(told)), float(np.mean(rejected))


def test_intervals_and_test_include_the_noise() -> None:
    share, told, rejected = covered(1000, 4.0, 60)
    assert told > 0.9
    assert 0.92 <= share <= 0.98
    assert rejected <= 0.15


@pytest.mark.slow
@pytest.mark.parametrize(("n", "deviation"), [(600, 1.0), (1000, 3.0), (2000, 8.0), (4000, 15.0)])
def test_intervals_cover_what_they_say(n: int, deviation: float) -> None:
    share, told, rejected = covered(n, deviation, 1000)
    assert told > 0.9
    assert 0.93 <= share <= 0.97
    assert 0.03 <= rejected <= 0.07


def test_a_difference_is_found_through_the_noise() -> None:
    rng = np.random.default_rng(6)
    assert result(curves(), records(rng, 1500, ratio=2.0), 4.0, rng)["log_rank"]["p"] < 1e-4


def test_curves_end_where_noise_begins() -> None:
    rng = np.random.default_rng(7)
    analysis = curves()
    reason, found, _ = played(analysis, records(rng, 4000), 25.0, rng)
    assert found is not None, reason
    assert max(len(one["time"]) for one in found.values["curves"].values()) < analysis.times.count
    assert "curves end" in found.notes[1]
    assert played(analysis, records(rng, 200), 10.0, rng)[0] is Reason.TOO_NOISY
