"""Tables, tests and curves are those of the pooled records, and tell no small number of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.data.tabular.columns import Column
from secfed.algorithms.statistics.kaplan_meier import KaplanMeier
from secfed.errors import ConfigError
from tests.algorithms.statistics_case import of_kind, run, study

stats = pytest.importorskip("scipy.stats")

COLUMNS = (
    Column.number("age", 18, 98, "years"),
    Column.number("score", 0, 10),
    Column.category("sex", ("f", "m")),
    Column.category("stage", ("i", "ii", "iii")),
    Column.number("time", 0, 60),
    Column.category("dead", ("no", "yes")),
)


def records(n: int = 200) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    age = rng.uniform(20, 90, n)
    return {
        "age": np.where(rng.random(n) < 0.1, np.nan, age),
        "score": np.clip(age / 15 + rng.normal(size=n), 0, 10),
        "sex": rng.integers(0, 2, n) * 1.0,
        "stage": np.where(rng.random(n) < 0.1, np.nan, rng.integers(0, 3, n)),
        "time": rng.integers(1, 60, n) * 1.0,
        "dead": (rng.random(n) < 0.6) * 1.0,
    }


RECORDS = records()


def test_a_cross_table_and_its_chi_square() -> None:
    values = of_kind(COLUMNS, RECORDS, kind="counts", columns=["stage", "sex"]).result.values
    known = ~np.isnan(RECORDS["stage"])
    table = np.zeros((3, 2))
    np.add.at(table, (RECORDS["stage"][known].astype(int), RECORDS["sex"][known].astype(int)), 1)
    assert values["counts"]["iii"]["m"] == table[2, 1]
    wanted = stats.chi2_contingency(table, correction=False)
    assert values["chi_square"]["statistic"] == pytest.approx(wanted.statistic, abs=1e-10)
    assert values["chi_square"]["p"] == pytest.approx(wanted.pvalue, abs=1e-12)
    assert values["n"] == 200


def test_a_description_by_group() -> None:
    found = of_kind(COLUMNS, RECORDS, kind="describe", columns=["age", "stage"], by="sex")
    age = found.result.values["columns"]["age"]
    for g in range(2):
        own = RECORDS["age"][RECORDS["sex"] == g]
        known = own[~np.isnan(own)]
        assert age["n"][g] == len(known)
        assert age["missing"][g] == len(own) - len(known)
        assert age["mean"][g] == pytest.approx(known.mean(), abs=1e-10)
        assert age["sd"][g] == pytest.approx(known.std(ddof=1), abs=1e-10)
        assert age["median"][g] == pytest.approx(np.median(known), abs=2.0)
    known = RECORDS["age"][~np.isnan(RECORDS["age"])]
    assert age["mean"][-1] == pytest.approx(known.mean(), abs=1e-10)
    assert age["q75"][-1] == pytest.approx(np.quantile(known, 0.75), abs=2.0)
    assert age["quantile_width"] == 0.4
    assert found.result.values["columns"]["stage"]["counts"]["ii"][-1] == int((RECORDS["stage"] == 1).sum())


def test_a_histogram() -> None:
    values = of_kind(COLUMNS, RECORDS, kind="histogram", column="age", bins=8, by="sex").result.values
    own = RECORDS["age"][RECORDS["sex"] == 1]
    counts = np.histogram(own[~np.isnan(own)], bins=8, range=(18, 98))[0].tolist()
    told = values["counts"]["m"]
    assert [n for n in told if n is not None] == [
        n for n, out in zip(counts, told, strict=True) if out is not None
    ]
    assert all(out is None for n, out in zip(counts, told, strict=True) if 0 < n < 5)
    assert told.count(None) <= sum(0 < n < 5 for n in counts) + 1
    assert values["missing"]["m"] == int(np.isnan(own).sum())


def test_a_histogram_beside_table_1_tells_no_small_cell() -> None:
    """Both count missing values: told by one, they cannot hide a cell of the other."""
    age = np.repeat([20.0, 30, 40, 50, 60, 90, np.nan], [30, 50, 40, 40, 29, 2, 9])
    own = {**RECORDS, "age": age[np.random.default_rng(0).permutation(200)]}
    one = {"kind": "histogram", "column": "age", "bins": 8}
    found = run(study(COLUMNS, own, {"ages": one, "one": {"kind": "describe", "columns": ["age"]}}))[1]
    ages, described = (found[name].result.values for name in ("ages", "one"))
    assert described["columns"]["age"]["missing"] == [ages["missing"]["records"]] == [9]
    assert ages["counts"]["records"] == [30, 50, 40, 40, None, 0, 0, None]


def test_welchs_test() -> None:
    values = of_kind(COLUMNS, RECORDS, kind="t-test", column="age", by="sex").result.values
    groups = [RECORDS["age"][(RECORDS["sex"] == g) & ~np.isnan(RECORDS["age"])] for g in range(2)]
    wanted = stats.ttest_ind(*groups, equal_var=False)
    interval = wanted.confidence_interval(0.95)
    assert values["t"] == pytest.approx(wanted.statistic, abs=1e-10)
    assert values["p"] == pytest.approx(wanted.pvalue, abs=1e-12)
    assert (values["low"], values["high"]) == pytest.approx((interval.low, interval.high), abs=1e-10)


def test_correlations_and_components() -> None:
    values = of_kind(COLUMNS, RECORDS, kind="correlation", columns=["age", "score", "time"]).result.values
    known = ~np.isnan(RECORDS["age"])
    rows = np.array([RECORDS[name][known] for name in ("age", "score", "time")])
    assert values["correlation"] == pytest.approx(np.corrcoef(rows), abs=1e-10)
    assert values["p"][0, 1] == pytest.approx(stats.pearsonr(rows[0], rows[1]).pvalue, abs=1e-12)
    assert values["component_shares"] == pytest.approx(
        np.sort(np.linalg.eigvalsh(np.corrcoef(rows)))[::-1] / 3, abs=1e-10
    )


def test_survival_by_group() -> None:
    lifelines = pytest.importorskip("lifelines", reason="to compare with")
    values = of_kind(
        COLUMNS, RECORDS, kind="kaplan-meier", time="time", event="dead", interval=1.0, by="sex"
    ).result.values
    for g, name in enumerate("fm"):
        own = RECORDS["sex"] == g
        fitted = lifelines.KaplanMeierFitter().fit(RECORDS["time"][own], RECORDS["dead"][own])
        curve = values["curves"][name]
        wanted = fitted.survival_function_at_times(curve["time"]).to_numpy()
        lost = fitted.event_table.loc[1:]
        greenwood = (lost["observed"] / (lost["at_risk"] * (lost["at_risk"] - lost["observed"]))).cumsum()
        spread = np.array([0.0, *greenwood.loc[curve["time"][1:]]])
        assert (np.abs(curve["survival"] - wanted) <= 2 * 5 * wanted * spread + 1e-12).all()
        assert (np.array(curve["se"]) >= curve["survival"] * np.sqrt(spread) - 1e-12).all()
        assert (np.array(curve["se"]) <= 2 * wanted * np.sqrt(spread) + 1e-12).all()
        after, by = curve["median"]
        assert after < fitted.median_survival_time_ <= by
        steps = -np.diff([0, *[round(d) for d in _events_before(own, curve["time"])]])
        assert (steps[1:] <= -5).all()
        assert all(n % 5 == 0 for n in curve["at_risk"])
    test = lifelines.statistics.multivariate_logrank_test(RECORDS["time"], RECORDS["sex"], RECORDS["dead"])
    assert values["log_rank"]["statistic"] == pytest.approx(test.test_statistic, rel=5e-4)
    assert values["log_rank"]["statistic"] == float(f"{values['log_rank']['statistic']:.3e}")
    assert values["log_rank"]["p"] == pytest.approx(test.p_value, rel=5e-3)


def survival(events: list[float], leaving: list[float]) -> dict[str, Any]:
    """The curve of so many events and censorings at 1, 2, .."""
    times = [t + 1.0 for each in (events, leaving) for t, n in enumerate(each) for _ in range(int(n))]
    own = {"time": np.array(times), "dead": np.repeat([1.0, 0.0], [int(sum(events)), int(sum(leaving))])}
    declared = [Column.number("time", 0, len(events)), Column.category("dead", ("no", "yes"))]
    found = of_kind(declared, own, kind="kaplan-meier", time="time", event="dead", interval=1.0)
    assert found.withheld is None
    return dict(found.result.values["curves"]["all"])


def test_a_curve_tells_no_single_censoring() -> None:
    """Of five events, and of the censorings between them, the number at risk at each could be many."""
    told, n, fitting = survival([1, 1, 1, 1, 1, 0, 0], [0, 2, 1, 0, 2, 0, 5]), 15, []
    assert told["time"][1] == 5.0
    for leaving in itertools.product(range(4), repeat=4):
        rest = [*leaving, 0, 0, n - 5 - sum(leaving)]
        one = survival([1, 1, 1, 1, 1, 0, 0], rest) if rest[-1] >= 0 else {}
        if one and [one[key][1:2] for key in ("survival", "se", "at_risk")] == [
            told[key][1:2] for key in ("survival", "se", "at_risk")
        ]:
            fitting.append(leaving)
    for at in range(4):
        assert {leaving[at] for leaving in fitting} == {0, 1, 2, 3}


def test_rounded_curves_cover_as_often_as_exact_ones() -> None:
    analysis = study(
        COLUMNS,
        RECORDS,
        {"one": {"kind": "kaplan-meier", "time": "time", "event": "dead", "interval": 1.0}},
    ).analyses[0]
    assert isinstance(analysis, KaplanMeier)
    rng, hits = np.random.default_rng(2), []
    for _ in range(150):
        died, left = np.ceil(rng.exponential(25, 60)), np.ceil(rng.uniform(0, 60, 60))
        where = np.minimum(died, left).astype(int)
        events, leaving = (np.bincount(where[own], minlength=61) for own in (died <= left, died > left))
        state: dict[str, torch.Tensor] = {}
        totals = {
            name: torch.tensor(one[None] * 1.0) for name, one in (("events", events), ("censored", leaving))
        }
        analysis.absorb(0, totals, state, same=True)
        curve = analysis.result({name: one.numpy() for name, one in analysis.released(state).items()})
        rows = zip(*(curve.values["curves"]["all"][key][1:] for key in ("time", "low", "high")), strict=True)
        hits += [low <= math.exp(-time / 25) <= high for time, low, high in rows]
    assert len(hits) > 700
    assert 0.93 <= np.mean(hits) <= 0.98


def _events_before(own: np.ndarray, times: list[float]) -> list[int]:
    return [int(((RECORDS["time"] <= t) & own & (RECORDS["dead"] > 0)).sum()) for t in times]


def test_area_under_the_curve_with_delongs_interval() -> None:
    pytest.importorskip("formulaic", reason="formulas need the extra analyse")
    glm = {"kind": "glm", "family": "binomial", "formula": "dead ~ score + sex"}
    _, found = run(study(COLUMNS, RECORDS, {"auc": {"kind": "roc", "of": "glm"}, "glm": glm}))
    coefficients = dict(
        zip(found["glm"].result.values["terms"], found["glm"].result.values["coefficients"], strict=True)
    )
    eta = coefficients["Intercept"] + coefficients["score"] * RECORDS["score"]
    scores = 1 / (1 + np.exp(-(eta + coefficients["sex[T.m]"] * RECORDS["sex"])))
    binned, dead = np.floor(scores * 500), RECORDS["dead"] > 0
    wins = np.sign(binned[dead][:, None] - binned[~dead][None]) / 2 + 0.5
    variance = wins.mean(axis=1).var(ddof=1) / dead.sum() + wins.mean(axis=0).var(ddof=1) / (~dead).sum()
    values = found["auc"].result.values
    assert values["auc"] == pytest.approx(wins.mean(), abs=1e-10)
    assert values["se"] == pytest.approx(math.sqrt(variance), abs=1e-10)
    exact = (np.sign(scores[dead][:, None] - scores[~dead][None]) / 2 + 0.5).mean()
    assert values["auc"] == pytest.approx(exact, abs=2e-3)
    assert np.diff(values["true_positive_rate"]).min() >= 5 / dead.sum() - 1e-12


def test_a_curve_of_a_withheld_regression_is_withheld() -> None:
    pytest.importorskip("formulaic", reason="formulas need the extra analyse")
    own = {**RECORDS, "dead": (np.arange(200) < 3) * 1.0}
    glm = {"kind": "glm", "family": "binomial", "formula": "dead ~ score"}
    model, found = run(study(COLUMNS, own, {"glm": glm, "auc": {"kind": "roc", "of": "glm"}}))
    assert found["auc"].withheld is not None
    assert found["auc"].withheld.startswith("small_categories")  # as the checks say of glm
    assert found["auc"].withheld.endswith("(of glm; dead)")
    assert set(model) == {
        "answered",
        "declared",
        *(f"{name}/{key}" for name in ("glm", "auc") for key in ("status", "step")),
        "auc/blamed",
    }


# --- small numbers ---


def few(count: int) -> dict[str, np.ndarray]:
    """So many men of stage iii, and many of everybody else."""
    stage, sex = np.arange(200) % 3 * 1.0, np.arange(200) // 3 % 2 * 1.0
    men = (stage == 2) & (sex == 1)
    stage = np.where(men & (np.cumsum(men) > count), 0.0, stage)
    return {**RECORDS, "stage": stage, "sex": sex}


def test_a_small_cell_and_what_it_follows_from_are_withheld() -> None:
    found = of_kind(COLUMNS, few(3), kind="counts", columns=["stage", "sex"])
    counts = found.result.values["counts"]
    hidden = {(row, column) for row in counts for column in ("f", "m") if counts[row][column] is None}
    assert ("iii", "m") in hidden
    for rows in ({row for row, _ in hidden},):
        for row in rows:
            assert sum(one == row for one, _ in hidden) >= 2
    for column in ("f", "m"):
        assert sum(one == column for _, one in hidden) >= 2
    assert found.result.values["chi_square"] is None  # of a table of two, it would give the cell away
    at_limit = of_kind(COLUMNS, few(5), kind="counts", columns=["stage", "sex"]).result.values["counts"]
    assert at_limit["iii"]["m"] == 5
    assert (
        of_kind(COLUMNS, few(0), kind="counts", columns=["stage", "sex"]).result.values["counts"]["iii"]["m"]
        == 0
    )


def test_a_cell_that_one_hospital_alone_has_is_withheld() -> None:
    own = few(30)
    men = (own["stage"] == 2) & (own["sex"] == 1)
    of = np.where(men, 0, np.arange(200) % 4)
    found = of_kind(COLUMNS, own, kind="counts", columns=["stage", "sex"], of_site=of)
    assert found.result.values["counts"]["iii"]["m"] is None


def test_a_small_group_is_in_no_description() -> None:
    own = {**RECORDS, "stage": np.where(np.arange(200) < 3, 2.0, np.arange(200) % 2)}
    found = of_kind(COLUMNS, own, kind="describe", columns=["age", "sex"], by="stage").result.values
    assert found["n"][2] is None
    assert sum(one is None for one in found["n"]) >= 2
    age = found["columns"]["age"]
    for g, n in enumerate(found["n"]):
        if n is None:
            assert math.isnan(age["mean"][g])
            assert age["n"][g] is None
    assert age["mean"][-1] == pytest.approx(np.nanmean(own["age"]), abs=1e-10)


def test_how_many_are_missing_follows_from_no_mean() -> None:
    """A sum of whole numbers is whole: of a mean in all digits, often for the true number of records only."""
    rng = np.random.default_rng(4)
    ward = np.arange(240) % 2 * 1.0
    pulse = rng.integers(60, 100, 240) * 1.0
    age = rng.integers(20, 90, 240) * 1.0
    known = np.where(np.isin(np.arange(240), (1, 7, 11)), np.nan, pulse)
    columns = (
        Column.number("pulse", 0, 300),
        Column.number("age", 0, 300),
        Column.category("ward", ("a", "b")),
    )
    asked = {"one": {"kind": "describe", "columns": ["pulse", "age"], "by": "ward"}}
    _, found = run(study(columns, {"pulse": known, "age": age, "ward": ward}, asked))
    told = found["one"].result.values["columns"]
    np.testing.assert_allclose(told["age"]["mean"][-1], age.mean(), rtol=1e-12)
    told = told["pulse"]
    assert told["n"] == [None] * 3
    for where, size, mean, sd in zip(
        (ward == 0, ward == 1, ward < 2), (120, 120, 240), told["mean"], told["sd"], strict=True
    ):
        if np.isnan(mean):
            continue
        own = known[where & ~np.isnan(known)]
        step = 10 * sd / len(own)  # at most that
        assert mean == pytest.approx(own.mean(), abs=step)
        assert sd == pytest.approx(own.std(ddof=1), abs=step)
        # As far as the digits of mean and variance say, sums are whole for every number of records.
        half = [10.0 ** -len(repr(float(one)).partition(".")[2]) / 2 for one in (mean, sd)]
        for n in range(size - 20, size + 1):
            assert abs(round(n * mean) - n * mean) <= n * half[0]
            squares = (n - 1) * sd**2 + n * mean**2
            assert abs(round(squares) - squares) <= 2 * n * sd * half[1]
    assert np.isfinite(told["mean"]).sum() == 2


def test_few_missing_values_are_not_counted() -> None:
    own = {**RECORDS, "age": np.where(np.arange(200) < 2, np.nan, 50.0 + np.arange(200) % 7)}
    age = of_kind(COLUMNS, own, kind="describe", columns=["age"], by="sex").result.values["columns"]["age"]
    assert None in age["missing"][:-1]
    assert age["missing"][-1] is None
    assert not math.isnan(age["mean"][-1])


@pytest.mark.parametrize(
    "analysis",
    [
        {"kind": "t-test", "column": "age", "by": "sex"},
        {"kind": "kaplan-meier", "time": "time", "event": "dead", "interval": 1.0, "by": "sex"},
        {"kind": "correlation", "columns": ["age", "time"]},
        {"kind": "describe", "columns": ["age"]},
    ],
)
def test_few_records_give_nothing(analysis: dict[str, Any]) -> None:
    own = {name: values[:200] for name, values in RECORDS.items()} | {"sex": (np.arange(200) < 3) * 1.0}
    if "by" not in analysis:
        own = {name: values[:4] for name, values in own.items()}
    found = of_kind(COLUMNS, own, **analysis)
    assert found.withheld is not None
    assert found.withheld.startswith("few_records")


def test_no_quantile_is_told_of_a_few() -> None:
    own = {name: values[:16] for name, values in RECORDS.items()} | {"age": np.arange(16) + 30.0}
    age = of_kind(COLUMNS, own, kind="describe", columns=["age"]).result.values["columns"]["age"]
    assert math.isnan(age["q25"][0])
    assert not math.isnan(age["median"][0])


def test_a_quartile_is_the_value_of_no_record() -> None:
    """However narrow cells are: with ``min_cell`` records around it, one of them may have any value there."""
    ages = np.array([20.0, 31, 32, 33, 34, 35, 36, 37, 38, 45, 50, 55, 61, 62, 63, 64, 65, 66, 67, 70, 90])
    told = [
        of_kind(
            COLUMNS[:1], {"age": ages + shift}, kind="describe", columns=["age"], bins=10_000, min_cell=5
        ).result.values["columns"]["age"]
        for shift in (0.0, np.where(ages == 50, 0.3, 0.0))
    ]
    for name in ("q25", "median", "q75"):
        assert told[0][name][0] == told[1][name][0]  # the record in the middle has another value
        assert abs(ages - told[0][name][0]).min() > 0.008
        assert told[0][name][0] / 0.002 == pytest.approx(round(told[0][name][0] / 0.002), abs=1e-6)


def test_a_table_of_very_many_cells_is_refused_before_a_record_is_read() -> None:
    columns = [Column.number("age", 18, 98), Column.category("ward", tuple(f"w{n}" for n in range(50)))]
    empty = {"age": np.zeros(0), "ward": np.zeros(0)}
    for analysis in (
        {"kind": "histogram", "column": "age", "by": "ward", "bins": 1000},
        {"kind": "describe", "columns": ["other"], "by": "ward"},
    ):
        other = Column.category("other", tuple(f"o{n}" for n in range(1000)))
        with pytest.raises(ConfigError, match=r"analyses\.one: has a table of 510\d\d cells"):
            study([*columns, other], {**empty, "other": np.zeros(0)}, {"one": analysis})


@pytest.mark.parametrize("name", ["(missing)", "all"])
def test_a_category_is_called_like_no_row_of_the_results(name: str) -> None:
    columns = [Column.category("sex", ("f", name))]
    with pytest.raises(ConfigError, match=r"sex\.categories: .* names a row of the results"):
        study(columns, {"sex": np.zeros(4)}, {"one": {"kind": "counts", "columns": ["sex"]}})
