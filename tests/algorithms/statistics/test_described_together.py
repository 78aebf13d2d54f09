"""What descriptions tell is no second source of what regressions, and each other, do not tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.algorithms.guard_case import RECORDS, N, correlation, first, glm, told, why

DESCRIBED: dict[str, Any] = {"kind": "describe", "columns": ["age"]}
BY_WARD: dict[str, Any] = {"kind": "describe", "columns": ["age"], "by": "ward"}


def means(reported: Any, column: str = "age") -> list[bool]:
    """Of every group, whether its mean is told."""
    return [not one for one in np.isnan(reported.result.values["columns"][column]["mean"]).tolist()]


@pytest.mark.parametrize(
    ("fit", "marker"),
    [
        (glm("bp ~ I(age + 0.3*flag)"), first(1)),
        (glm("I(age + 0.3*flag) ~ bp"), first(4)),
        (glm("bp ~ I(age - flag) + chol"), (np.arange(N) % 4 == 1) * (np.arange(N) < 148) * 1.0),
        (correlation("time", "bp"), None),
    ],
)
def test_a_described_number_is_checked_with_a_formula(fit: dict[str, Any], marker: Any) -> None:
    """Differences of one patient, of four, of one hospital; or a copy of the column but for a patient."""
    changed = {"flag": marker} if marker is not None else {"time": RECORDS["age"] / 10 + first(1)}
    found = told({"first": DESCRIBED, "fit": fit}, **changed)
    assert means(found["first"]) == [True]
    assert why(found["fit"]) == "dominated"
    found = told({"fit": fit, "last": DESCRIBED}, **changed)
    assert why(found["fit"]) == ""
    assert means(found["last"]) == [False]
    assert not told({"fit": fit, "last": DESCRIBED})["fit"].withheld


def test_two_described_numbers_that_differ_in_few_patients() -> None:
    bp = RECORDS["age"] + first(2)
    found = told({"one": {"kind": "describe", "columns": ["age", "bp", "chol"]}}, bp=bp)["one"]
    assert [means(found, name) for name in ("age", "bp", "chol")] == [[True], [False], [True]]
    found = told({"one": DESCRIBED, "two": {"kind": "describe", "columns": ["bp"], "by": "ward"}}, bp=bp)
    assert means(found["two"], "bp") == [False] * 3
    bp = np.where((RECORDS["ward"] == 0) & (np.arange(N) > 0), RECORDS["age"], RECORDS["bp"])
    found = told({"one": {**BY_WARD, "columns": ["age", "bp"]}}, bp=bp)["one"]  # in one group one patient
    assert means(found) == [True] * 3
    assert means(found, "bp") == [False, False, True]


def test_two_described_numbers_that_differ_at_one_hospital() -> None:
    bp = RECORDS["age"] + (np.arange(N) % 4 == 1) * 1.0
    found = told({"one": {"kind": "describe", "columns": ["age", "bp"]}}, bp=bp)["one"]
    assert [means(found, name) for name in ("age", "bp")] == [[True], [False]]


def test_a_group_is_checked_with_a_number() -> None:
    """A flag is the group but for one patient, whose age would be the difference."""
    flag = RECORDS["ward"].copy()
    flag[np.flatnonzero(flag)[3]] = 0.0
    pair = correlation("age", "flag")
    found = told({"first": BY_WARD, "pair": pair}, flag=flag)
    assert means(found["first"]) == [True] * 3
    assert why(found["pair"]) == "dominated"
    found = told({"pair": pair, "last": BY_WARD}, flag=flag)
    assert not found["pair"].withheld
    assert means(found["last"])[:2] == [False, False]
    assert why(told({"first": BY_WARD, "pair": pair}, flag=RECORDS["ward"])["pair"]) == ""


def test_what_is_withheld_takes_nothing_with_it() -> None:
    """Of a flag that few have, and of a group of few, no mean is told that a formula could complete."""
    flag, ward = first(3), np.where(np.arange(N) < 3, np.nan, RECORDS["ward"])
    fit = glm("bp ~ age + chol")
    described = {"kind": "describe", "columns": ["flag", "age", "chol"]}
    found = told({"first": described, "fit": fit}, flag=flag)
    assert [means(found["first"], name) for name in ("flag", "age", "chol")] == [[False], [True], [True]]
    assert why(found["fit"]) == ""
    found = told({"first": {**described, "by": "ward"}, "fit": fit}, flag=flag, ward=ward)
    assert why(found["fit"]) == ""
    assert means(found["first"], "chol") == [True, False, False, True]
    # Of two columns that differ in a patient the second is withheld; the first may be in a formula.
    both = {"kind": "describe", "columns": ["age", "time"]}
    found = told({"first": both, "fit": fit}, time=RECORDS["age"] / 10 + first(1))
    assert why(found["fit"]) == ""
