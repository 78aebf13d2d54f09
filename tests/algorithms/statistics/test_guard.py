"""What few records, or one hospital, would decide is not told, however it is asked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from secfed.algorithms.data.tabular.column_options import ColumnOptions, ColumnsOptions
from secfed.algorithms.data.tabular.column_values import read_table
from secfed.algorithms.statistics.disclosure import EXPLANATIONS, Reason
from secfed.errors import ConfigError
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.guard_case import COLUMNS, RECORDS, N, correlation, first, glm, told, why
from tests.algorithms.statistics_case import run, study

# The same records in all analyses of a study.


def test_all_analyses_are_of_the_records_that_lack_nothing() -> None:
    chol = np.where(np.arange(N) == 77, np.nan, RECORDS["chol"])
    ward = np.where(np.arange(N) == 50, np.nan, RECORDS["ward"])
    found = told(
        {
            "two": correlation("age", "bp"),
            "three": correlation("age", "bp", "chol"),
            "groups": {"kind": "describe", "columns": ["bp"], "by": "ward"},
            "test": {"kind": "t-test", "column": "bp", "by": "ward"},
        },
        chol=chol,
        ward=ward,
    )
    kept = ~np.isnan(chol) & ~np.isnan(ward)
    assert found["two"].result.values["n"] == found["three"].result.values["n"] == kept.sum()
    groups = found["groups"].result.values
    assert groups["n"] == [*found["test"].result.values["n"], kept.sum()]
    assert groups["columns"]["bp"]["mean"][-1] == pytest.approx(RECORDS["bp"][kept].mean())


def test_tables_alone_are_of_all_records() -> None:
    chol = np.where(np.arange(N) < 20, np.nan, RECORDS["chol"])
    found = told({"one": {"kind": "describe", "columns": ["chol"]}}, chol=chol)["one"].result.values
    assert found["n"] == [N]
    assert found["columns"]["chol"]["missing"] == [20]


# Few records.


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    "analysis",
    [
        glm("bp ~ flag"),
        glm("flag ~ age"),
        glm("dead ~ flag", family="binomial", ridge=1.0),
        glm("age ~ I(1 + flag * 3)"),
        correlation("bp", "flag"),
        {"kind": "t-test", "column": "flag", "by": "ward"},
        {"kind": "cox", "time": "time", "event": "dead", "interval": 1, "formula": "flag", "ridge": 1.0},
    ],
)
def test_a_number_that_few_records_have_is_in_no_result(analysis: dict[str, Any], count: int) -> None:
    assert why(told({"one": analysis}, flag=first(count))["one"]) in ("dominated", "few_records", "separated")


@pytest.mark.parametrize(
    ("analysis", "count"),
    [(glm("bp ~ flag"), 20), (correlation("bp", "flag"), 20), (glm("dead ~ flag", family="binomial"), 20)],
)
def test_one_that_enough_records_have_is(analysis: dict[str, Any], count: int) -> None:
    assert told({"one": analysis}, flag=first(count))["one"].withheld is None


@pytest.mark.parametrize("terms", ["flag", "C(ward) + age"])
@pytest.mark.parametrize("outcome", [0.0, 1.0])
@pytest.mark.parametrize("count", [1, 4, 8])
def test_few_outcomes_of_a_group_are_in_no_model(terms: str, outcome: float, count: int) -> None:
    """Coefficient and error of a group's column give back how many of it have the event."""
    dead = np.where(np.arange(N) < 20, 1 - outcome, RECORDS["dead"])
    dead[:count] = outcome
    cox = {"kind": "cox", "time": "time", "event": "dead", "interval": 1, "formula": terms}
    one = {"fit": glm(f"dead ~ {terms}", family="binomial")}, {"fit": cox}
    found = [told(analyses, flag=first(20), ward=first(20), dead=dead)["fit"] for analyses in one]
    assert [why(fit) for fit in found] == ["dominated" if count < 5 else ""] * 2


@pytest.mark.parametrize("kind", ["glm", "cox"])
def test_outcomes_that_differ_in_one_patient_are_not_told_together(kind: str) -> None:
    other = {"kind": "cox", "time": "time", "event": "{}", "interval": 1, "formula": "age + bp"}
    fit = glm("{} ~ age + bp", family="binomial") if kind == "glm" else other
    key = "formula" if kind == "glm" else "event"
    one, two = ({**fit, key: fit[key].format(name)} for name in ("dead", "stage"))
    later = RECORDS["dead"].copy()
    later[np.flatnonzero(later == 0)[5]] = 1.0
    found = told({"one": one, "two": two}, stage=later)
    assert [why(found[name]) for name in ("one", "two")] == ["", "dominated"]


def test_a_binomial_outcome_is_a_column() -> None:
    with pytest.raises(ConfigError, match="does not fit family = 'binomial'") as refused:
        told({"one": glm("I(flag * 1) ~ chol", family="binomial")})
    assert "a column of numbers 0 and 1" in str(refused.value.remedy)
    half = np.where(RECORDS["flag"] == 1, 0.8, 0.3)  # above one half is the event, as in a Cox model
    fit = {"one": glm("flag ~ age", family="binomial")}
    found = [told(fit, flag=x)["one"] for x in (half, RECORDS["flag"])]
    assert found[0].withheld is None
    assert found[0].to_json() == found[1].to_json()


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_why_there_is_no_estimate_tells_no_outcome(outcome: float) -> None:
    """Of two records, one known: separated if the other has the same outcome, an estimate if not."""
    age, dead = RECORDS["age"].copy(), RECORDS["dead"].copy()
    age[:2], dead[:2] = (92, 93), (1.0, outcome)
    fit = glm("dead ~ I(exp(-9*(age-93)**2) + exp(-9*(age-92)**2))", family="binomial", max_steps=30)
    found = told({"one": fit}, age=age, dead=dead)["one"].withheld
    assert found is not None
    assert found.startswith("dominated")
    assert "exp" not in found


def test_neither_a_curve_nor_a_step_tells_the_outcome_that_a_model_does_not() -> None:
    """Of two records, one known: an estimate after five steps, or none after all."""
    age = RECORDS["age"] * 0.0
    age[[10, 100]] = 1.0
    fit = {"fit": glm("dead ~ flag", family="binomial", max_steps=8), "curve": {"kind": "roc", "of": "fit"}}
    seen = []
    for outcome in (0.0, 1.0):
        dead = RECORDS["dead"].copy()
        dead[[10, 100]] = 1.0, outcome
        model, reported = run(study(COLUMNS, {**RECORDS, "flag": age, "dead": dead}, fit))
        assert [why(one) for one in reported.values()] == ["dominated", "dominated"]
        assert "fit" in (reported["curve"].withheld or "")  # which model it is of
        own = {name: value.tolist() for name, value in model.items() if name.startswith(("fit", "curve"))}
        seen.append((own, [one.to_json() for one in reported.values()]))
    assert seen[0] == seen[1]


def test_columns_that_are_the_reason_are_named() -> None:
    fit, pair = glm("bp ~ age + flag + chol"), correlation("age", "flag", "bp")
    for one in told({"fit": fit, "pair": pair}, flag=first(3)).values():
        assert (one.withheld or "").endswith("(flag)")
    ward, stage = (np.arange(N) >= 20) * (np.arange(N) < 60) * 1.0, first(23)  # three records of both
    model = glm("dead ~ age + C(ward) + C(stage)", family="binomial")
    found = told({"fit": model, "curve": {"kind": "roc", "of": "fit"}}, ward=ward, stage=stage)
    assert [why(one) for one in found.values()] == ["small_categories"] * 2
    assert (found["fit"].withheld or "").endswith("(ward, stage)")
    assert (found["curve"].withheld or "").endswith("(of fit; ward, stage)")
    lonely = told({"fit": glm("bp ~ age + C(ward)")}, ward=(np.arange(N) % 4 == 0) * 1.0)["fit"].withheld
    assert (lonely or "").endswith("(ward)")


def test_a_description_tells_no_mean_of_it() -> None:
    for count, few in ((1, True), (4, True), (5, False)):
        one = told({"one": {"kind": "describe", "columns": ["flag", "age"]}}, flag=first(count))["one"]
        columns = one.result.values["columns"]
        assert math.isnan(columns["flag"]["mean"][0]) == math.isnan(columns["flag"]["sd"][0]) == few
        assert columns["age"]["mean"][0] == pytest.approx(RECORDS["age"].mean())


def test_withheld_groups_are_not_told_together() -> None:
    by = {"kind": "describe", "columns": ["flag", "age"], "by": "ward"}
    stage = np.where(np.arange(N) < 3, np.nan, RECORDS["ward"])  # three records without a group
    columns = told({"one": by}, ward=stage, flag=first(3))["one"].result.values["columns"]
    assert np.isnan(columns["flag"]["mean"]).all()
    assert not np.isnan(columns["age"]["mean"][-1])
    # All flags of the three and of the second ward, whose sum follows from that of all, are the three's.
    stage = np.where(np.arange(N) < 3, np.nan, (np.arange(N) >= 80) * 1.0)
    flag = first(3) + (np.arange(N) >= 20) * (np.arange(N) < 80)
    columns = told({"one": by}, ward=stage, flag=flag)["one"].result.values["columns"]
    assert np.isnan(columns["flag"]["mean"]).tolist() == [True, True, True, False]
    assert np.isnan(columns["age"]["mean"]).tolist() == [False, True, True, False]


def test_a_group_that_few_decide_takes_another_with_it() -> None:
    flag = np.where(RECORDS["ward"] == 0, np.arange(N) == 1, np.arange(N) % 2) * 1.0
    by = {"kind": "describe", "columns": ["flag"], "by": "ward"}
    values = told({"one": by}, flag=flag)["one"].result.values
    assert values["n"] == [N / 2, N / 2, N]
    assert np.isnan(values["columns"]["flag"]["mean"]).tolist() == [True, True, False]


@pytest.mark.parametrize(
    "formula",
    [
        "bp ~ I(1/(1+1000000*((age-{age})**2+(chol-{chol})**2)))",
        "dead ~ I(1/(1+1000000*((age-{age})**2+(chol-{chol})**2)))",
        "I(1/(1+1000000*((age-{age})**2+(chol-{chol})**2))) ~ 1",
    ],
)
def test_a_formula_is_no_filter_on_one_person(formula: str) -> None:
    text = formula.format(age=RECORDS["age"][100], chol=RECORDS["chol"][100])
    options = {"family": "binomial", "ridge": 1.0} if text.startswith("dead") else {}
    assert why(told({"one": glm(text, **options)})["one"]) == "dominated"


# Categories.


def in_cells(*sizes: int) -> tuple[Any, Any]:
    """Ward and stage of records so that these many are in (a, i), (a, ii), (b, i); the rest is in (b, ii)."""
    cell = np.minimum(np.searchsorted(np.cumsum(sizes), np.arange(N), side="right"), 3)
    return cell // 2 * 1.0, cell % 2 * 1.0


@pytest.mark.parametrize("terms", ["C(ward)+C(stage)", "C(ward)*C(stage)"])
@pytest.mark.parametrize("sizes", [(3, 90, 90), (90, 3, 90), (90, 90, 3), (90, 90, 57)])
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_no_cell_of_two_categories_is_small(terms: str, sizes: tuple[int, ...], family: str) -> None:
    ward, stage = in_cells(*sizes)
    outcome = "bp" if family == "gaussian" else "dead"
    one = told({"one": glm(f"{outcome} ~ {terms}", family=family)}, ward=ward, stage=stage)["one"]
    assert why(one) == "small_categories"


def test_events_of_an_interaction_are_not_few() -> None:
    ward, stage = in_cells(60, 60, 60)
    dead = RECORDS["dead"] * (np.arange(N) // 60 != 2)
    dead[120:122] = 1.0
    one = told({"one": glm("dead ~ C(ward)*C(stage)", family="binomial")}, ward=ward, stage=stage, dead=dead)
    assert why(one["one"]) == "small_categories"


def test_a_number_within_a_category_is_of_enough_records() -> None:
    ward = first(40)
    flag = np.r_[np.ones(2), np.zeros(38), np.arange(N - 40) % 2]
    assert why(told({"one": glm("bp ~ flag + C(ward)")}, ward=ward, flag=flag)["one"]) == "dominated"
    assert why(told({"one": glm("flag ~ C(ward)")}, ward=ward, flag=flag)["one"]) == "dominated"


# Hospitals.


def lonely() -> Any:
    """A category that the first hospital alone has."""
    return (np.arange(N) % 8 == 0) * 1.0


@pytest.mark.parametrize(
    "analysis",
    [
        glm("bp ~ C(ward)"),
        {"kind": "t-test", "column": "bp", "by": "ward"},
        {"kind": "kaplan-meier", "time": "time", "event": "dead", "interval": 1, "by": "ward"},
        {"kind": "cox", "time": "time", "event": "dead", "interval": 1, "formula": "ward"},
    ],
)
def test_a_category_of_one_hospital_is_in_no_result(analysis: dict[str, Any]) -> None:
    assert why(told({"one": analysis}, ward=lonely())["one"]) == "few_hospitals"


def test_a_group_of_one_hospital_is_not_described() -> None:
    by = {"kind": "describe", "columns": ["bp"], "by": "ward"}
    values = told({"one": by}, ward=lonely())["one"].result.values
    assert values["n"] == [None, None, N]
    assert np.isnan(values["columns"]["bp"]["mean"][:2]).all()
    own = np.where(np.arange(N) % 4 == 0, RECORDS["bp"], np.nan)  # one hospital alone records it
    values = told({"one": {"kind": "describe", "columns": ["bp", "age"]}}, bp=own)["one"].result.values
    assert math.isnan(values["columns"]["bp"]["mean"][0])
    assert values["columns"]["bp"]["n"] == [None]


def test_numbers_of_one_hospital_are_in_no_result() -> None:
    assert why(told({"one": glm("bp ~ flag")}, flag=lonely())["one"]) == "few_hospitals"
    assert why(told({"one": correlation("bp", "flag")}, flag=lonely())["one"]) == "few_hospitals"


def test_results_of_a_study_are_of_the_same_hospitals() -> None:
    algorithm = study(COLUMNS, RECORDS, {"fit": glm("bp ~ age"), "pair": correlation("bp", "age")})
    steps = range(2, 20)
    _, found = run(algorithm, {step: ["s3"] for step in steps})
    assert why(found["pair"]) == "hospitals_changed"
    assert found["fit"].withheld is None
    assert found["fit"].hospitals == ("s0", "s1", "s2")
    _, found = run(algorithm, {step: ["s3"] for step in range(15, 20)})
    assert all(one.withheld is None for one in found.values())


def test_a_column_of_hospitals_is_refused(tmp_path: Any) -> None:
    text = """
study = { name = "one", rounds = 1 }
algorithm = { name = "statistics", analyses = { a = { kind = "counts", columns = ["hospital"] } } }
model = { name = "none" }
[data]
name = "columns"
path = "records.csv"
site_column = "site"
sites = ["h0", "h1", "h2"]
columns.hospital = { source = "site", categories = ["h0", "h1"] }
[protection]
name = "plain"
"""
    (tmp_path / "records.csv").write_text("site\n" + "h0\nh1\nh2\n" * 20)
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(ConfigError, match="names a record's hospital"):
        build(Study.load(tmp_path / "study.toml"))


# Curves and declarations.


def test_a_category_may_be_called_none(tmp_path: Any) -> None:
    path = tmp_path / "records.csv"
    path.write_text("smoking,age\nnone,1\nNone,1\nlight,1\n,1\nNA,1\n")
    declared: Any = {"smoking": {"categories": ["none", "light"]}, "age": {"low": 0, "high": 9}}
    options = ColumnsOptions(
        name="columns",
        path=str(path),
        partition="iid",
        sites=1,
        columns=declared,
    )
    values = read_table(path, options).values["smoking"]
    np.testing.assert_array_equal(values, [0.0, 0.0, 1.0, np.nan, np.nan])
    with pytest.raises(ConfigError, match="'none' is a category, too"):
        ColumnOptions(categories=("none", "light"), missing=("none",)).declared("smoking")


# Leverages.


def test_every_reason_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Reason) - {Reason.RELEASED}


def test_the_cells_of_an_interaction_and_a_category_are_counted() -> None:
    third = np.arange(N) // 16 % 2 * 1.0
    both = (RECORDS["ward"] == 1) & (RECORDS["stage"] == 1) & (third == 1)
    third[np.flatnonzero(both)[1:]] = 0.0
    found = told({"fit": glm("bp ~ C(ward)*C(stage) + C(dead)")}, dead=third)["fit"]
    assert why(found) == "small_categories"
    assert not told({"fit": glm("bp ~ C(ward)*C(stage)"), "x": glm("bp ~ C(dead)")}, dead=third)[
        "fit"
    ].withheld
