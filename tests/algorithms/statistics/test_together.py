"""Results that are harmless one by one are not told together where they would tell a few records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secfed.algorithms.data.tabular.columns import Column
from secfed.algorithms.statistics.checks import numbers_of
from secfed.algorithms.statistics.formula import design
from secfed.errors import ConfigError
from tests.algorithms.guard_case import COLUMNS, RECORDS, RNG, N, correlation, first, glm, told, why
from tests.algorithms.statistics_case import study


def test_two_formulas_together_are_none_either() -> None:
    ages = RECORDS["age"].copy()
    ages[ages == 61] = 60
    ages[:2] = 61
    soft = "1/(1+exp(0.7*({}-age)))"
    steps = {
        name: glm("bp ~ I(1/(1+exp(30*(0.5-1/(1+exp(30*(0.5-" + soft.format(edge) + ")))))))")
        for name, edge in (("over-60", 60.5), ("over-61", 61.5))
    }
    found = told(steps, age=ages)
    assert all(why(one) for one in found.values())  # of each, the powers together are some patients' already
    flags = {"over-60": glm("bp ~ flag"), "over-61": glm("bp ~ chol")}
    found = told(flags, flag=(ages > 60) * 1.0, chol=100.0 + 100.0 * (ages > 61))
    assert [why(one) for one in found.values()] == ["", "dominated"]


def test_nearly_the_same_number_is_no_second_one() -> None:
    near = glm("bp ~ I(age + 0.0001*flag)")
    assert why(told({"one": glm("bp ~ age"), "two": near}, flag=first(1))["two"]) == "dominated"
    assert why(told({"one": glm("bp ~ age"), "two": glm("bp ~ I(3*age)")})["two"]) == ""


def test_one_model_has_a_curve() -> None:
    analyses: dict[str, dict[str, Any]] = {}
    for n, terms in enumerate(("age", "age + bp")):
        analyses[f"g{n}"] = glm(f"dead ~ {terms}", family="binomial")
        analyses[f"r{n}"] = {"kind": "roc", "of": f"g{n}"}
    found = told(analyses)
    first_one, second = (found[name].result.values for name in ("r0", "r1"))
    assert len(first_one["true_positive_rate"]) > 2
    assert second["true_positive_rate"] == []
    assert second["auc"] == round(second["auc"], 3)
    assert not found["r1"].result.figures


def test_two_groupings_that_differ_in_one_patient_are_not_told() -> None:
    one, other = (np.arange(N) < 120) * 1.0, (np.arange(N) < 120) * 1.0
    other[200] = 1.0
    first = {"kind": "describe", "columns": ["bp"], "by": "ward"}
    curve = {"kind": "kaplan-meier", "time": "time", "event": "dead", "interval": 1}
    for second in (
        {"kind": "describe", "columns": ["bp"], "by": "stage"},
        {"kind": "t-test", "column": "bp", "by": "stage"},
        glm("bp ~ C(stage)"),
        glm("age ~ I(bp * 2):C(stage)"),
    ):
        found = told({"first": first, "second": second}, ward=one, stage=other)
        assert not found["first"].withheld
        if second["kind"] == "describe":
            columns = found["second"].result.values["columns"]
            assert np.isnan(columns["bp"]["mean"]).all()
        else:
            assert why(found["second"]) == "dominated"
        assert not told({"second": second}, ward=one, stage=other)["second"].withheld
    found = told(
        {"first": {**curve, "by": "ward"}, "second": {**curve, "by": "stage"}}, ward=one, stage=other
    )
    assert not found["first"].withheld
    assert why(found["second"]) == "small_categories"


def test_all_products_of_a_formula_are_checked_together() -> None:
    ages = RNG.choice([20, 21, 22, 23, 25, 26, 27, 28, 29], N) * 1.0
    ages[123] = 24.0
    bells = [f"I(1/(1+(age-{centre})**2))" for centre in (21, 23, 26, 28)]
    formula = "chol ~ bp + " + " + ".join([*bells, *(f"bp:{one}" for one in bells)])
    assert why(told({"fit": glm(formula)}, age=ages)["fit"])
    assert not told({"fit": glm("chol ~ age + I(age**2) + bp")})["fit"].withheld


def test_no_combination_is_nearly_of_one_hospital() -> None:
    wards = np.arange(N) % 4 + 1.0
    for sharpness in (10, 60, 400):
        formula = f"bp ~ I(1/(1+{sharpness}*(age-21)**2))"
        assert why(told({"fit": glm(formula)}, age=wards + 18)["fit"]) == "few_hospitals"
    formula = "chol ~ bp + " + " + ".join(f"I(1/(1+(age-{at})**2))" for at in (19, 21))
    assert why(told({"fit": glm(formula)}, age=wards + 18)["fit"]) == "few_hospitals"


# Squares.


@pytest.mark.parametrize(
    "analysis",
    [
        correlation("flag", "bp"),
        {"kind": "t-test", "column": "flag", "by": "ward"},
        glm("bp ~ flag"),
        glm("flag ~ bp"),
        {"kind": "cox", "time": "time", "event": "dead", "interval": 1, "formula": "flag"},
    ],
)
def test_a_deviation_is_of_enough_records(analysis: dict[str, Any]) -> None:
    """Of 0 and 1 the square is the number itself, so mean and deviation count the records between them."""
    for count, few in ((2, True), (20, False)):
        flag = np.where(np.arange(N) < count, 0.5, np.arange(N) % 2)
        assert (why(told({"one": analysis}, flag=flag)["one"]) == "dominated") == few


def test_a_description_without_its_deviation() -> None:
    flag = np.where(np.arange(N) < 4, 0.5, np.arange(N) % 2)
    described = told({"one": {"kind": "describe", "columns": ["flag"]}}, flag=flag)["one"].result
    columns = described.values["columns"]["flag"]
    assert columns["mean"] == pytest.approx([flag.mean()])
    assert np.isnan(columns["sd"]).all()
    assert any("(-)" in str(cell) for row in described.tables[0].rows for cell in row)
    by = {"kind": "describe", "columns": ["flag"], "by": "ward"}
    flag = np.where(RECORDS["ward"] == 0, flag, np.arange(N) % 3 / 2)
    columns = told({"one": by}, flag=flag)["one"].result.values["columns"]["flag"]
    assert not np.isnan(columns["mean"]).any()
    assert np.isnan(columns["sd"]).tolist() == [True, True, False]  # another one would complete it


# Several models.


def bells(*centres: int) -> str:
    return " + ".join(f"I(1/(1+(age-{centre})**2))" for centre in centres)


def test_products_of_several_formulas_are_checked_together() -> None:
    ages = RNG.choice([20, 21, 22, 23, 25, 26, 27, 28, 29], N) * 1.0
    ages[123] = 24.0
    one, other = glm(f"bp ~ {bells(21, 23)}"), glm(f"chol ~ {bells(26, 28)}")
    assert [why(one) for one in told({"a": one, "b": other}, age=ages).values()] == ["", "dominated"]
    assert not told({"b": other}, age=ages)["b"].withheld
    pair = correlation("age", "bp")
    assert [why(one) for one in told({"a": one, "b": pair, "c": other}, age=ages).values()][2]


def test_one_function_of_each_column_costs_no_records() -> None:
    few = {name: RECORDS[name][:100] for name in RECORDS}
    formula = "bp ~ log(age) + log(chol) + time"
    assert not told({"fit": glm(formula), "same": glm("time ~ log(age)")}, **few)["fit"].withheld
    found = told({"fit": glm(formula), "next": glm("time ~ age + log(chol)")}, **few)
    assert [why(one) for one in found.values()] == ["", "dominated"]


@pytest.mark.parametrize("left", ["dead", "bp"])
def test_a_model_has_one_ridge(left: str) -> None:
    family = {"family": "binomial" if left == "dead" else "poisson"}
    for one, other in ((0.0, 1.0), (1.0, 0.0), (1.0, 2.0)):
        asked = {"a": glm(f"{left} ~ age + chol", ridge=one, **family)}
        second = glm(f"{left} ~ I(chol * 2) + age", ridge=other, **family)
        with pytest.raises(ConfigError, match=r"analyses.b: explains .* as 'a'.*Remedy: ask for one"):
            told({**asked, "b": second})
        told({**asked, "b": glm(f"{left} ~ age", ridge=other, **family)})
    told({"a": glm("bp ~ age"), "b": glm("bp ~ age", ridge=1.0)})  # of linear ones the sums are the same
    cox = {"kind": "cox", "time": "time", "event": "dead", "interval": 1, "formula": "age"}
    with pytest.raises(ConfigError, match="explains"):
        told({"a": cox, "b": {**cox, "ridge": 1.0}})


@pytest.mark.parametrize(
    ("term", "steep"),
    [
        ("I(1/(1+exp(0.5*(60-age))))", True),
        ("I((age-60)/sqrt((age-60)**2+0.01))", True),
        ("sqrt((age-60)**2)", True),
        ("I(((age/10-5)**4)**2)", True),
        ("I((age/10)**4):I((age/10-1)**4)", True),
        ("log((age-60)**2+1)", True),
        ("age + I(age**2)", False),
        ("I(age**4)", False),
        ("log(age + 1)", False),
        ("I(chol/age**2)", False),
        ("sqrt(age*chol)", False),
        ("I(exp(2)*age/(3+2))", False),
        ("I(1/(1+(chol/100-2)**2)) + age", False),  # a step of another column
    ],
)
def test_no_step_beside_the_cells_of_its_column(term: str, steep: bool) -> None:
    fit = glm(f"bp ~ {term}")
    others = [
        {"kind": "histogram", "column": "age"},
        {"kind": "kaplan-meier", "time": "age", "event": "dead", "interval": 1},
    ]
    for other in others:
        for asked in ({"cells": other, "fit": fit}, {"fit": fit, "cells": other}):
            if not steep:
                study(COLUMNS, RECORDS, asked)
                continue
            with pytest.raises(ConfigError, match=r"analyses.fit.formula: .* step of 'age', and 'cells'"):
                study(COLUMNS, RECORDS, asked)
    study(COLUMNS, RECORDS, {"fit": fit, "others": {"kind": "histogram", "column": "time"}})


def test_points_of_a_curve_are_multiples() -> None:
    dead = (RECORDS["age"] + RECORDS["bp"] > 185) * 1.0
    asked = {"fit": glm("dead ~ age", family="binomial"), "curve": {"kind": "roc", "of": "fit"}}
    values = told(asked, dead=dead)["curve"].result.values
    for share, size in (("false_positive_rate", "n_without"), ("true_positive_rate", "n_with")):
        points = np.array(values[share][1:-1]) * values[size]
        assert len(points) > 3
        assert np.abs(points / 5 - np.round(points / 5)).max() < 1e-9
        assert values[size] % 5
        assert (values[share][0], values[share][-1]) == (0.0, 1.0)


# Times.


def test_groups_of_curves_and_of_regressions_that_differ_in_one_patient() -> None:
    ward = (np.arange(N) < 120) * 1.0
    stage = ward.copy()
    stage[200] = 1.0
    times = {"time": "time", "event": "dead", "interval": 1}
    curve = {"kind": "kaplan-meier", "by": "ward", **times}
    for second in ({"kind": "cox", "formula": "C(stage) + age", **times}, glm("bp ~ C(stage)")):
        found = told({"curve": curve, "fit": second}, ward=ward, stage=stage)
        assert [why(one) for one in found.values()] == ["", "dominated"]


def test_events_of_the_groups_of_a_curve_and_a_regression_are_counted() -> None:
    """Of 30 patients by whom the groups differ, two died."""
    ward = (np.arange(N) < 120) * 1.0
    stage = (np.arange(N) < 150) * 1.0
    dead = np.where((ward == 0) & (stage == 1), np.arange(N) < 122, RECORDS["dead"])
    times = {"time": "time", "event": "dead", "interval": 1}
    asked = {
        "curve": {"kind": "kaplan-meier", "by": "ward", **times},
        "fit": {"kind": "cox", "formula": "C(stage)", **times},
    }
    assert [why(one) for one in told(asked, ward=ward, stage=stage, dead=dead).values()] == [
        "",
        "small_categories",
    ]
    crossed = np.where(np.arange(N) < 8, 0.0, stage)  # of eight in the ward: no grouping is part of the other
    assert [why(one) for one in told(asked, ward=ward, stage=crossed, dead=dead).values()] == ["", ""]
    asked["fit"]["formula"] = "C(stage) + age"  # which blurs how many died in a stage
    assert [why(one) for one in told(asked, ward=ward, stage=stage, dead=dead).values()] == ["", ""]


def test_no_category_is_called_like_a_product() -> None:
    columns = (
        Column.number("y", 0, 1),
        Column.category("c", ("0", "1", "1]:d[1")),
        Column.category("d", ("0", "1")),
    )
    numbers = numbers_of(design("y ~ C(c) * C(d)", columns))
    assert len({one.name for one in numbers}) == len(numbers) == 5


def test_an_area_of_few_cells_is_of_joined_ones() -> None:
    """Whole numbers of few cells follow from area and error, as a table of outcomes by age."""
    age = np.repeat([30.0, 50.0, 80.0], [100, 120, 20])
    dead = np.zeros(N)
    dead[:10] = dead[100:120] = dead[220:237] = 1.0  # of the eldest three are alive
    fit = {"fit": glm("dead ~ age", family="binomial"), "area": {"kind": "roc", "of": "fit"}}
    found = told(fit, age=age, dead=dead)["area"].result.values
    assert found["auc"] == pytest.approx((10 * 90 / 2 + 37 * (90 + 103 / 2)) / 47 / 193, abs=1e-12)
