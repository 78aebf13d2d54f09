"""Chi-square under noise in the sum: how often it rejects what is independent, and that it finds the rest."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from secfed.algorithms.data.tabular.columns import Column
from secfed.algorithms.statistics.counts import noisy_chi_square
from tests.algorithms.noisy_statistics_case import noisy, played, table

ROWS, COLUMNS = np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.3, 0.15, 0.05])


def rejected(n: int, deviation: float, times: int, dependent: float = 0.0) -> float:
    rng, found = np.random.default_rng(2), []
    shares = np.outer(ROWS, COLUMNS)
    shares[0, 0] += dependent
    for _ in range(times):
        counts = rng.multinomial(n, shares.ravel() / shares.sum()).reshape(3, 4)
        test = noisy_chi_square(counts + rng.normal(0, deviation, counts.shape), deviation)
        assert test is not None
        assert test["df"] == 6
        found.append(test["p"] < 0.05)
    return float(np.mean(found))


@pytest.mark.parametrize(("n", "deviation"), [(500, 3.0), (1000, 10.0), (3000, 40.0)])
def test_what_is_independent_is_rejected_as_often_as_it_says(n: int, deviation: float) -> None:
    assert 0.03 <= rejected(n, deviation, 1500) <= 0.07


def test_what_depends_is_found() -> None:
    assert rejected(2000, 10.0, 50, dependent=0.2) > 0.9


def test_without_noise_it_is_pearsons() -> None:
    counts = np.random.default_rng(3).multinomial(500, np.outer(ROWS, COLUMNS).ravel()).reshape(3, 4)
    test = noisy_chi_square(counts.astype(float), 0.0)
    assert test is not None
    pearson = stats.chi2_contingency(counts, correction=False)
    assert test["statistic"] == pytest.approx(pearson.statistic)
    assert test["p"] == pytest.approx(pearson.pvalue)


def test_a_cross_table_has_it_where_noise_is_not_too_large() -> None:
    declared = (Column.category("a", ("x", "y")), Column.category("b", ("p", "q")))
    rng = np.random.default_rng(4)
    of = rng.integers(0, 2, 1000)
    records = table(declared, a=of, b=np.where(rng.random(1000) < 0.7, of, 1 - of))
    analysis = noisy(declared, kind="counts", columns=("a", "b"))
    found = [played(analysis, records, deviation, rng)[1] for deviation in (5.0, 500.0)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].values["chi_square"]["p"] < 1e-6
    assert found[1].values["chi_square"] is None
    alone = played(noisy(declared, kind="counts", columns=("a",)), records, 5.0, rng)[1]
    assert alone is not None
    assert "chi_square" not in alone.values
