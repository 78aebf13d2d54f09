from __future__ import annotations

import sys

import numpy as np
import pytest

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics import expressions
from secfed.algorithms.statistics.formula import design
from secfed.errors import ConfigError

WHY = "the extra analyse is not installed"
COLUMNS = (
    Column.number("y", -5, 5),
    Column.number("age", 18, 100),
    Column.number("bmi", 10, 50),
    Column.category("sex", ("female", "male")),
    Column.category("stage", ("I", "II", "III")),
    Column.category("arm", ("a", "b")),
)


@pytest.fixture
def table() -> Table:
    """60 records; nobody has stage III, as at a site that lacks a category; two values are missing."""
    rng = np.random.default_rng(1)
    values = {
        column.name: rng.integers(0, 2, 60).astype(float)
        if column.categories
        else rng.uniform(column.low, column.high, 60)
        for column in COLUMNS
    }
    values["age"][3] = values["stage"][5] = np.nan
    return Table(COLUMNS, values, 60)


def pandas_frame(table: Table):
    pandas = pytest.importorskip("pandas", reason=WHY)
    columns = {}
    for column in table.columns:
        values = table.values[column.name]
        if column.categories:
            positions = np.nan_to_num(values, nan=-1).astype(int)
            values = pandas.Categorical.from_codes(positions, list(column.categories))
        columns[column.name] = values
    return pandas.DataFrame(columns)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "formula",
    [
        "y ~ age",
        "y ~ sex + age*stage",
        "y ~ age + C(stage) - 1",
        "y ~ 0 + sex:stage",
        "y ~ sex*stage*arm",
        "y ~ sex:stage:arm",
        "y ~ sex + sex:stage",
        "y ~ age:sex + age:stage",
        "y ~ sex:age + stage + arm:stage",
        "y ~ np.log(age) + I(bmi**2) + np.sqrt(bmi):sex",
        "y ~ I((age - 50) / 10)*sex",
        "y ~ (age + sex)*(stage + arm) - arm:age",
        "y ~ age*bmi:sex*stage - sex",
        "y ~ bmi + age + bmi:age:sex + sex:stage - 1",
        "y ~ sex + stage + sex - 1",
        "y ~ sex*age + sex",
        "y ~ 1",
        "age ~ I(y**2) + I((y + 1)**4):sex",
    ],
)
def test_a_design_is_that_of_formulaic_and_of_patsy(table, formula):
    formulaic = pytest.importorskip("formulaic", reason=WHY)
    patsy = pytest.importorskip("patsy", reason=WHY)
    found, frame = design(formula, COLUMNS), pandas_frame(table)
    matrix = found.matrix(table)
    peer = formulaic.model_matrix(formula, frame)
    assert found.names == tuple(peer.rhs.columns)
    np.testing.assert_allclose(matrix, peer.rhs.to_numpy(), rtol=1e-14)
    assert np.array_equal(found.outcome(table), peer.lhs.to_numpy()[:, 0])
    elder = patsy.dmatrices(formula, frame, return_type="dataframe")[1]
    np.testing.assert_allclose(matrix, elder[list(found.names)].to_numpy(), rtol=1e-14)
    assert elder.shape == matrix.shape
    assert (np.abs(matrix) <= found.bounds).all()


def test_the_order_of_the_declared_categories_decides_and_not_what_a_site_has(table):
    pytest.importorskip("formulaic", reason=WHY)
    found = design("sex ~ stage", COLUMNS)
    assert found.names == ("Intercept", "stage[T.II]", "stage[T.III]")
    assert (found.terms, found.term_of, found.needs) == (("1", "stage"), (0, 1, 1), ("sex", "stage"))
    assert not found.matrix(table)[:, 2].any()
    assert (found.response, found.outcome_interval, found.bounds) == ("sex", (0.0, 1.0), (1.0, 1.0, 1.0))
    assert found.matrix(table.take(np.array([], dtype=np.int64))).shape == (0, 3)


def test_only_complete_records_count_also_in_other_columns(table):
    pytest.importorskip("formulaic", reason=WHY)
    found = design("y ~ bmi", COLUMNS)
    assert len(found.matrix(table)) == 60
    assert len(found.matrix(table, also=("age",))) == len(found.outcome(table, also=("age",))) == 59
    assert found.complete(table, also=("age", "stage")).sum() == 58


@pytest.mark.parametrize(
    ("term", "bound"),
    [
        ("I(y**2)", 25.0),
        ("I(y**3)", 125.0),
        ("I((y + 5)*(bmi - 60))", 500.0),
        ("I(bmi/age**2)", 50 / 18**2),
        ("log10(age)", 2.0),
        ("I(-exp(y))", np.exp(5)),
        ("y:age:sex", 500.0),
    ],
)
def test_every_column_has_a_bound_that_follows_from_the_declared_ones(table, term, bound):
    pytest.importorskip("formulaic", reason=WHY)
    found = design(f"~ {term} - 1", COLUMNS)
    assert found.bounds[-1] == pytest.approx(bound)
    wild = {name: values * 1e6 for name, values in table.values.items()}
    matrix = found.matrix(Table(COLUMNS, wild, 60))  # a data set of one's own may break its promise
    assert (np.abs(matrix) <= found.bounds).all()
    for left in ("sex", "y"):
        explained = design(f"{left} ~ 1", COLUMNS)
        low, high = explained.outcome_interval
        assert low <= explained.outcome(Table(COLUMNS, wild, 60)).min()
        assert explained.outcome(Table(COLUMNS, wild, 60)).max() <= high


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ log(y)", r"'log\(y\)' has no value for all"),
        ("y ~ I(1/y)", r"'I\(1 / y\)' may divide by 0"),
        ("y ~ exp(age)", r"'exp\(age\)' can be larger"),
        ("y ~ I(age*0)", r"'I\(age \* 0\)' has values that are all too small"),
        ("y ~ I(1)", "is a constant"),
        ("y ~ C(age)", "is of a column of numbers"),
        ("y ~ I(sex*2)", "computes with the categories of 'sex'"),
        ("y ~ agee", "there is no column 'agee'. Remedy: did you mean 'age'"),
        ("y ~ age + poly(bmi, 2)", r"'poly\(bmi, 2\)' contains what no formula here may"),
        ("y ~ I(age.real)", "contains what no formula"),
        ("y ~ I(9**9**9*age)", "contains what no formula"),
        ("y ~ __import__('os')", "contains other signs"),
        ("y ~ age/sex", "'/' stands between terms"),
        ("y ~ (age + sex)**2", r"'\*\*' stands between terms"),
        ("y ~ .", r"'\.' stands between terms"),
        ("y ~ 2*age", "'2' is no term"),
        ("y ~ age - 1 - age", "has no terms"),
        ("y ~ age +", "is not a formula"),
        (" ~ ", "is empty"),
        ("y + age ~ sex", r"'y \+ age' is no left side"),
        ("stage ~ age", "has more than two categories"),
        ("y ~ " + "*".join(f"I(age*{at})" for at in range(1, 30)), "too many terms"),
        ("y ~ " + ":".join(["age"] * 400), "is too long"),
        ("y ~ " + "(" * 400 + "age" + ")" * 400, None),
    ],
)
def test_what_is_not_understood_is_refused_by_name(formula, message):
    pytest.importorskip("formulaic", reason=WHY)
    if message is None:
        assert design(formula, COLUMNS).names == ("Intercept", "age")
        return
    with pytest.raises(ConfigError, match=f"formula: .*{message}"):
        design(formula, COLUMNS)


def test_without_formulaic_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "formulaic.parser", None)
    with pytest.raises(ConfigError, match=r"needs the package formulaic.*\[analyse\]"):
        design("y ~ age", COLUMNS)


def test_a_formula_without_a_left_side_has_no_outcome(table):
    pytest.importorskip("formulaic", reason=WHY)
    with pytest.raises(ConfigError, match="has no left side"):
        design("~ age", COLUMNS).outcome(table)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (":".join(f"c{at}" for at in range(9)), "more than 500 columns"),
        (":".join(f"c{at}" for at in range(30)), "more than 500 columns"),
        (":".join(f"large{at}" for at in range(5)), "more than 500 columns"),  # 10^15 of them
        ("y ~ I(age * " + "9" * 500 + ")", "is not an expression"),
    ],
    ids=["9 factors", "30 factors", "many categories", "a number without a value"],
)
def test_what_would_exhaust_the_memory_is_refused_at_once(formula, message):
    columns = (
        *COLUMNS,
        *(Column.category(f"c{at}", ("a", "b")) for at in range(30)),
        *(Column.category(f"large{at}", tuple(map(str, range(1000)))) for at in range(5)),
    )
    with pytest.raises(ConfigError, match=message):
        design(formula, columns)


def test_as_many_categories_as_fit_are_coded():
    columns = tuple(Column.category(f"c{at}", ("a", "b")) for at in range(8))
    assert len(design(":".join(column.name for column in columns), columns).columns) == 256


@pytest.mark.parametrize("text", ["sqrt(exp(x)-{e})", "1/(exp(x)-{e}+1e-15)", "log(exp(x)-{e}+1e-15)"])
def test_the_last_digit_of_a_function_leaves_every_record_a_number(monkeypatch, text):
    """Functions of many numbers at once may differ from those of a bound: by processor, in the last digit."""
    known = dict(expressions._FUNCTIONS)
    off = {"exp": lambda v: np.exp(v) if len(v) <= 2 else np.exp(v) - 4e-15}
    monkeypatch.setattr(expressions, "_FUNCTIONS", known | off)
    columns = (Column.number("x", 1.0, 3.0),)
    expression = expressions.Expression.parse(text.format(e=repr(float(np.exp(1.0)))), columns)
    values = expression.values(Table(columns, {"x": np.array([1.0, 1.0, 2.0, 3.0, np.nan])}, 5))
    assert np.isfinite(values[:4]).all()
    assert np.isnan(values[4])
    assert (values[:4] >= expression.interval[0]).all()
    assert (values[:4] <= expression.interval[1]).all()
