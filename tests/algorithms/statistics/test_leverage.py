"""Leverages over sums of products, and what of them is possible."""

from __future__ import annotations

import numpy as np
import pytest

from secfed.algorithms.data.tabular.columns import Column
from secfed.algorithms.statistics.arithmetic import cholesky, symmetric
from secfed.algorithms.statistics.leverage import alone, components, exceeds, held, packed
from secfed.errors import ConfigError
from tests.algorithms.guard_case import RECORDS, RNG, N, glm
from tests.algorithms.statistics_case import study


def test_leverages_are_those_of_the_hat_matrix() -> None:
    x = np.column_stack([np.ones(50), RNG.normal(size=(50, 3))])
    x = np.column_stack([x, x[:, 1] - 2 * x[:, 2]])  # follows from the others
    rows = components(x, packed(x))
    hat = np.einsum("ij,jk,ik->i", x[:, :4], np.linalg.inv(x[:, :4].T @ x[:, :4]), x[:, :4])
    np.testing.assert_allclose((rows**2).sum(axis=1), hat, atol=1e-9)
    above = np.linalg.eigvalsh(rows[hat > 1.01 / 20].T @ rows[hat > 1.01 / 20])[-1]
    for limit, more in ((above - 1e-6, True), (above + 1e-6, False)):
        assert exceeds(held(rows, [5], 20).tolist(), 5, limit) == more


def test_leverages_are_numbers_whatever_products_are_broadcast() -> None:
    flag = np.zeros(N)
    flag[6] = 1.0
    matrix = np.column_stack([np.ones(N), flag, RECORDS["age"] / 100])
    for tiny in (1e-310, 5e-324, 0.0, -1.0):
        found = components(matrix, np.array([100.0, 0.0, tiny, 0.0, 0.0, 100.0]))
        assert np.isfinite(found).all()
        assert np.abs(found).max() <= 1.0
        assert np.isfinite(alone(found, [2, 3])).all()


def test_the_factorisation_rounds_as_the_one_that_is_alike_everywhere() -> None:
    """The same bits as with one Python number at a time, so that every hospital withholds the same."""
    for p in (1, 2, 7, 30):
        x = RNG.normal(size=(60, p))
        products = packed(x)
        whole = symmetric(products.tolist(), p)
        # The limit below which Cholesky's method breaks down, to the last bit.
        low, high = 0.0, float(2 * np.trace(whole))
        while np.nextafter(low, high) < high:
            middle = (low + high) / 2
            rest = [[(middle if i == j else 0.0) - whole[i][j] for j in range(p)] for i in range(p)]
            try:
                cholesky(rest)
                high = middle
            except ArithmeticError:
                low = middle
        assert exceeds(products.tolist(), p, low)
        assert not exceeds(products.tolist(), p, high)
    assert exceeds([float("nan")], 1, 0.5)


def test_many_numbers_are_refused_before_anything_is_sent() -> None:
    names = [f"x{n}" for n in range(32)]
    columns = [Column.number(name, 0, 1) for name in names]
    records = {name: RNG.uniform(size=40) for name in names}
    formula = " + ".join([*names[1:], f"I({names[1]}**2)"])
    asked = {"plain": glm(f"x0 ~ {' + '.join(names[1:])}"), "fit": glm(f"x0 ~ {formula}")}
    with pytest.raises(ConfigError, match=r"analyses.fit: .* of up to 595 numbers .*Remedy: take fewer"):
        study(columns, records, asked)
    assert study(columns, records, {"plain": asked["plain"]}).guard is not None
    pairs = {f"fit{n}": glm(f"x0 ~ x1:I(x{n}**2)") for n in range(2, 32)}
    with pytest.raises(ConfigError, match="products of up to"):
        study(columns, records, pairs | asked)
