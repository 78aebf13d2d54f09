"""Regressions are those of the pooled records, or say why there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secfed.algorithms.data.tabular.columns import Column
from secfed.algorithms.statistics import cox
from secfed.errors import ConfigError
from tests.algorithms.statistics_case import Records, of_kind, run, study

pytest.importorskip("formulaic", reason="formulas need the extra analyse")

COLUMNS = (
    Column.number("age", 18, 100),
    Column.category("sex", ("f", "m")),
    Column.category("stage", ("i", "ii", "iii", "iv")),
    Column.number("time", 0, 120),
    Column.category("dead", ("no", "yes")),
    Column.number("visits", 0, 60),
)
HAZARD: dict[str, Any] = {
    "kind": "cox",
    "formula": "age + C(stage)",
    "time": "time",
    "event": "dead",
    "interval": 1,
}
LOGISTIC: dict[str, Any] = {"kind": "glm", "family": "binomial", "formula": "dead ~ age + sex + C(stage)"}


def records(n: int = 240) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    age, sex, stage = rng.integers(30, 90, n) * 1.0, rng.integers(0, 2, n) * 1.0, rng.integers(0, 3, n) * 1.0
    event = np.ceil(rng.exponential(np.exp(-(0.03 * (age - 60) + 0.5 * sex + 0.3 * stage)) * 40))
    censored = np.ceil(rng.uniform(1, 100, n))
    time = np.minimum(event, censored)
    visits = rng.poisson(np.exp(0.02 * (age - 40) + 0.3 * sex)) * 1.0
    known = rng.random(n) > 0.05
    return {
        "age": np.where(known, age, np.nan),
        "sex": sex,
        "stage": stage,
        "time": time,
        "dead": (event <= censored) * 1.0,
        "visits": visits,
    }


RECORDS: Records = records()


def frame() -> Any:
    pandas = pytest.importorskip("pandas", reason="statsmodels reads data frames")
    found = pandas.DataFrame(RECORDS)
    for column in COLUMNS:
        if column.categories and column.name != "dead":
            names = [column.categories[int(code)] for code in RECORDS[column.name]]
            found[column.name] = pandas.Categorical(
                names, categories=[c for c in column.categories if c in names]
            )
    return found.dropna()


@pytest.mark.parametrize(
    ("family", "formula"),
    [
        ("binomial", "dead ~ age + sex"),
        ("poisson", "visits ~ age * sex"),
        ("gaussian", "time ~ age + sex + dead"),
    ],
)
def test_a_glm_is_that_of_the_pooled_records(family: str, formula: str) -> None:
    statsmodels = pytest.importorskip("statsmodels.api", reason="to compare with")
    from statsmodels.formula.api import glm

    found = of_kind(COLUMNS, RECORDS, kind="glm", family=family, formula=formula)
    assert found.withheld is None
    values = found.result.values
    known = glm(formula, frame(), family=getattr(statsmodels.families, family.capitalize())()).fit(tol=1e-14)
    order = [name.replace("dead[T.yes]", "dead") for name in values["terms"]]
    assert values["coefficients"] == pytest.approx(known.params[order].to_numpy(), abs=1e-8)
    assert values["standard_errors"] == pytest.approx(known.bse[order].to_numpy(), abs=1e-8)
    digits = 5e-4 if family == "poisson" else 1e-8
    assert values["deviance"] == pytest.approx(known.deviance, rel=digits)
    assert values["null_deviance"] == pytest.approx(known.null_deviance, rel=digits)
    if family == "poisson":
        assert all(
            float(f"{values[one]:.3e}") == pytest.approx(values[one], rel=1e-9)
            for one in ("deviance", "null_deviance")
        )
    assert values["n"] == known.nobs


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_proportional_hazards_are_those_of_the_pooled_records(ties: str) -> None:
    statsmodels = pytest.importorskip("statsmodels.api", reason="to compare with")
    found = of_kind(COLUMNS, RECORDS, **{**HAZARD, "formula": "age + sex", "ties": ties})
    assert found.withheld is None
    values, known = found.result.values, frame()
    pooled = statsmodels.PHReg(
        known["time"],
        np.column_stack([known["age"], known["sex"] == "m"]).astype(float),
        status=known["dead"],
        ties=ties,
    ).fit()
    assert values["coefficients"] == pytest.approx(pooled.params, abs=1e-8)
    assert values["standard_errors"] == pytest.approx(pooled.bse, abs=1e-8)
    assert values["log_likelihood"] == float(f"{pooled.llf:.3e}")
    assert values["null_log_likelihood"] == float(f"{values['null_log_likelihood']:.3e}")


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_some_records_at_a_time_give_the_same_bits(ties: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**HAZARD, "formula": "age + sex", "ties": ties}
    whole = of_kind(COLUMNS, RECORDS, **options).result.values
    monkeypatch.setattr(cox, "_AT_A_TIME", 7)
    parts = of_kind(COLUMNS, RECORDS, **options).result.values
    for name, values in whole.items():
        assert repr(parts[name]) == repr(values), name


def test_a_ridge_is_that_of_penalised_least_squares() -> None:
    found = of_kind(COLUMNS, RECORDS, kind="glm", formula="time ~ age + sex", ridge=50.0).result.values
    known = frame()
    x = np.column_stack([np.ones(len(known)), known["age"], known["sex"] == "m"]).astype(float)
    wanted = np.linalg.solve(x.T @ x + np.diag([0, 50.0, 50.0]), x.T @ known["time"].to_numpy())
    assert found["coefficients"] == pytest.approx(wanted, abs=1e-8)


def test_a_hospital_without_events_changes_nothing_but_its_records() -> None:
    at_one = np.where(RECORDS["dead"] == 0, np.arange(240) % 2, 1 + np.arange(240) % 3)
    divided = of_kind(COLUMNS, RECORDS, **{**LOGISTIC, "formula": "dead ~ age + sex"}, of_site=at_one)
    usual = of_kind(COLUMNS, RECORDS, **{**LOGISTIC, "formula": "dead ~ age + sex"})
    assert divided.result.values["coefficients"] == pytest.approx(
        usual.result.values["coefficients"], abs=1e-10
    )


def test_a_category_that_nobody_has_is_named() -> None:
    for analysis in (LOGISTIC, HAZARD):
        found = of_kind(COLUMNS, RECORDS, **analysis)
        assert found.withheld is not None
        assert found.withheld.startswith("dependent_terms")
        assert "[T.iv]" in found.withheld
        assert "[T.ii]" not in found.withheld


@pytest.mark.parametrize("analysis", [LOGISTIC, HAZARD])
def test_a_term_that_predicts_perfectly_is_named(analysis: dict[str, Any]) -> None:
    third = (RECORDS["dead"] == 0) & (np.arange(240) % 3 == 2)  # nobody in stage iii died
    own = {**RECORDS, "stage": np.where(third, 2.0, np.arange(240) % 2)}
    columns = [Column.category("stage", ("i", "ii", "iii")) if c.name == "stage" else c for c in COLUMNS]
    found = of_kind(columns, own, **analysis)
    assert found.withheld is not None
    assert found.withheld.startswith("separated")
    assert found.withheld.endswith("(C(stage)[T.iii])")


def test_too_many_parameters_for_the_events_are_refused() -> None:
    few = {**RECORDS, "dead": (np.arange(240) < 8) * 1.0}
    found = of_kind(COLUMNS, few, **{**LOGISTIC, "formula": "dead ~ age + sex + visits"})
    assert found.withheld is not None
    assert found.withheld.startswith("many_parameters")


def test_few_events_and_constant_outcomes_are_not_told() -> None:
    for deaths, reason in ((3, "few_records"), (0, "no_variation")):
        own = {**RECORDS, "dead": (np.arange(240) < deaths) * 1.0}
        for analysis in ({**LOGISTIC, "formula": "dead ~ age"}, {**HAZARD, "formula": "age"}):
            found = of_kind(COLUMNS, own, **analysis)
            assert found.withheld is not None
            assert found.withheld.startswith(reason)


def test_an_estimate_is_of_the_hospitals_of_one_step() -> None:
    glm = {**LOGISTIC, "formula": "dead ~ age + sex"}
    algorithm = study(COLUMNS, RECORDS, {"one": glm})
    later = {step: ["s3"] for step in range(5, 20)}
    _, found = run(algorithm, later)
    one = found["one"]
    assert one.hospitals == ("s0", "s1", "s2")
    assert one.changed
    assert one.withheld is None
    without = {name: values[np.arange(240) % 4 != 3] for name, values in RECORDS.items()}
    alone = of_kind(COLUMNS, without, **glm, sites=3, of_site=[i % 3 for i in range(180)])
    assert one.result.values["coefficients"] == pytest.approx(alone.result.values["coefficients"], abs=1e-9)


def test_hospitals_that_change_in_the_last_step_leave_no_estimate() -> None:
    glm = {**LOGISTIC, "formula": "dead ~ age + sex"}
    model, _ = run(study(COLUMNS, RECORDS, {"one": glm}))
    needed = round(float(model["one/step"]))
    algorithm = study(COLUMNS, RECORDS, {"one": {**glm, "max_steps": needed}})
    assert run(algorithm)[1]["one"].withheld is None
    found = run(algorithm, {needed: ["s2"]})[1]["one"]
    assert found.withheld is not None
    assert found.withheld.startswith("hospitals_changed")


def test_nothing_is_added_once_an_estimate_is_found() -> None:
    algorithm = study(COLUMNS, RECORDS, {"one": {**LOGISTIC, "formula": "dead ~ age"}})
    site, last = algorithm.site("s0"), algorithm.exchanges(1)[-1]
    server = algorithm.server()
    run_until = dict(server.broadcast(1, last))
    assert any(float(v.abs().sum()) for v in site.contribute(1, last, run_until).values())  # type: ignore[union-attr]
    run_until["one/done"] = run_until["one/done"] + 1
    run_until["_checks/done"] = run_until["_checks/done"] + 1
    assert not any(float(v.abs().sum()) for v in site.contribute(1, last, run_until).values())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("analysis", "message"),
    [
        ({**LOGISTIC, "formula": "age ~ sex"}, r"one\.formula: the outcome 'age' does not fit"),
        ({**LOGISTIC, "formula": "age + sex"}, r"one\.formula: has no outcome"),
        ({**LOGISTIC, "formula": "dead ~ hight"}, r"one\.formula: .*hight"),
        ({**LOGISTIC, "family": "tweedie"}, r"one\.family"),
        ({**HAZARD, "formula": "dead ~ age"}, r"one\.formula: has an outcome"),
        ({**HAZARD, "interval": 0.001}, r"one\.interval: gives 120001 times"),
        ({**HAZARD, "event": "stage"}, r"one\.event: 'stage' has not two categories"),
        ({"kind": "glmm"}, r"one\.kind: there is no analysis 'glmm'"),
        ({"kind": "roc", "of": "two"}, r"one\.of: the study has no binomial glm 'two'"),
    ],
)
def test_what_does_not_fit_is_refused(analysis: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(COLUMNS, RECORDS, {"one": analysis})


def test_a_category_of_a_few_is_in_no_estimate() -> None:
    """Its coefficient and error would give back how many they are, and their mean outcome."""
    for analysis in (LOGISTIC, HAZARD):
        own = {**RECORDS, "stage": np.where(np.arange(240) < 4, 2.0, np.arange(240) % 2)}
        columns = [Column.category("stage", ("i", "ii", "iii")) if c.name == "stage" else c for c in COLUMNS]
        found = of_kind(columns, own, **analysis)
        assert found.withheld is not None
        assert found.withheld.startswith("small_categories")
        assert found.withheld.endswith("(C(stage)[T.iii])")


def test_a_table_in_the_form_of_a_regression_is_a_table() -> None:
    """Of categories only, coefficients are logarithms of ratios of cells: few deaths could be read off."""
    deaths = (np.arange(240) % 3 == 0) & ((np.arange(240) % 2 == 0) | (np.arange(240) < 20))
    own = {**RECORDS, "sex": np.arange(240) % 2 * 1.0, "dead": deaths * 1.0}
    assert 0 < deaths[own["sex"] == 1].sum() < 5
    table = of_kind(COLUMNS, own, **{**LOGISTIC, "formula": "dead ~ sex"})
    assert table.withheld is not None
    assert table.withheld.startswith("small_categories")
    beside = of_kind(COLUMNS, own, **{**LOGISTIC, "formula": "dead ~ sex + age"})
    assert (beside.withheld or "").startswith("dominated")  # a number beside it hides nothing


def test_an_outcome_may_be_transformed() -> None:
    found = of_kind(
        COLUMNS, {**RECORDS, "visits": RECORDS["visits"] + 1}, kind="glm", formula="sqrt(visits) ~ sex"
    )
    known = np.sqrt(RECORDS["visits"] + 1)
    wanted = [known[RECORDS["sex"] == g].mean() for g in range(2)]
    assert found.result.values["coefficients"] == pytest.approx([wanted[0], wanted[1] - wanted[0]], abs=1e-9)
