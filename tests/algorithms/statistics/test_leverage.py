"""Leverages over sums of products, and what of them is possible."""

from __future__ import annotations

import numpy as np
import pytest

from secfed.algorithms.data.tabular.columns import Column
from secfed.algorithms.statistics.arithmetic import cholesky, symmetric
from secfed.algorithms.statistics.leverage import alone, components, exceeds, held, packed
from secfed.errors import ConfigError
from tests.algorithms.guard_case import RECORDS, RNG, N, first, glm, told, why
from tests.algorithms.statistics_case import run, study


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


def test_what_follows_from_others_is_told_from_what_rounding_leaves() -> None:
    """Products are rounded; a record that differs by little more than that is not taken for rounding."""
    grain = 16 * 10_000 / 2.0**52  # of four hospitals
    age, bp = RECORDS["age"] / 100, RECORDS["bp"] / 250
    for secret, found in ((0.0, 0.0), (1e-9, 1.0), (1e-4, 1.0)):
        copy = age / 3 - bp / 2
        copy[7] += secret
        matrix = np.column_stack([np.ones(N), age, bp, copy])
        for _ in range(50):
            products = packed(matrix)
            products += RNG.uniform(-grain, grain, len(products))
            rows = components(matrix, products, grain)[:, 3]
            assert rows[7] == found
            assert secret or not rows.any()


def test_a_column_that_is_lost_in_rounding_is_of_the_records_that_have_it() -> None:
    grain, lab = 16 * 10_000 / 2.0**52, np.zeros(N)
    lab[7] = 1e-9
    matrix = np.column_stack([np.ones(N), lab])
    for squares in (0.0, grain, -grain):
        rows = components(matrix, np.array([N, 1e-9, squares]), grain)[:, 1]
        assert rows[7] == 1.0
    assert not components(matrix * [1, 0], np.array([N, 0.0, grain]), grain)[:, 1].any()


def test_bounds_far_beyond_the_values_hide_no_patient() -> None:
    columns = (Column.number("lab", -1e11, 1e11), Column.number("age", 18, 100))
    lab = np.zeros(N)
    lab[100] = 137.0
    asked = {"one": {"kind": "describe", "columns": ["lab", "age"]}}
    for values, few in ((lab, True), (100 * RECORDS["age"], False)):
        records = {"lab": values, "age": RECORDS["age"]}
        means = run(study(columns, records, asked))[1]["one"].result.values["columns"]
        assert np.isnan(means["lab"]["mean"]).all() == few or not few
        assert not np.isnan(means["age"]["mean"]).any()


def test_a_term_that_differs_by_less_than_a_hundred_millionth() -> None:
    pair = {"kind": "correlation", "columns": ["age", "bp"]}
    for small in ("0.0000001", "0.00000001"):
        fit = glm(f"bp ~ I(age + {small}*flag)")
        assert why(told({"pair": pair, "fit": fit}, flag=first(1))["fit"]) == "dominated"
    assert not told({"pair": pair, "fit": glm("bp ~ I(age / 3 + 7)")})["fit"].withheld
