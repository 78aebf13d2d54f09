"""Two studies over the same records: which results can be subtracted, from settings and members alone."""

from __future__ import annotations

from typing import Any

import pytest

from secfed.algorithms.statistics.differences import divided_twice, subtractable
from secfed.errors import ConfigError
from secfed.study.build import build
from secfed.study.study import Study

SITES = ("a", "b", "c", "d")
STUDY = """
[study]
name = "one"
rounds = 1
[algorithm]
name = "statistics"
analyses.ages = { kind = "histogram", column = "age", bins = 10 }
analyses.first = { kind = "describe", columns = ["age", "weight"] }
analyses.curve = { kind = "kaplan-meier", time = "days", event = "dead", interval = 30 }
[model]
name = "none"
[data]
name = "columns"
path = "wards.csv"
site_column = "ward"
sites = ["a", "b", "c", "d"]
[data.columns]
age = { low = 18, high = 90, unit = "years" }
weight = { low = 30, high = 200, missing = [999] }
days = { low = 0, high = 3000 }
dead = { categories = ["no", "yes"] }
stage = { categories = ["early", "late"], codes = { early = ["i", "ii"], late = ["iii"] } }
[protection]
name = "masked"
max_dropouts = 0
"""
PRIVACY = '[privacy]\nunit = "record"\nnoise = "sum"\nepsilon = 1.0\ndelta = 1e-5\n'


def found(text: str, sites: tuple[str, ...] = SITES) -> list[str]:
    one, other = (Study.parse(study).identity() for study in (STUDY, text))
    return subtractable(one, other, SITES, sites)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name = "one"', 'name = "two"'),
        ('path = "wards.csv"', 'path = "others.csv"'),  # the site's policy says which file it is
        ('"years"', '"a"'),
        ("analyses.first", 'analyses.sexes = { kind = "counts", columns = ["dead"] }\nanalyses.first'),
        ("[data.columns]", "[data.columns]\nheight = { low = 100, high = 220 }"),
        ('name = "statistics"', 'name = "statistics"\nlevel = 0.9'),
        ("[protection]", PRIVACY + "[protection]"),  # its noise is in every difference
    ],
)
def test_what_one_study_could_ask_two_may(old: str, new: str) -> None:
    assert STUDY.count(old) >= 1
    assert found(STUDY.replace(old, new, 1)) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("bins = 10", "bins = 11", "cells of age (histogram)"),
        ('"weight"] }', '"weight"], bins = 100 }', "cells of age (describe)"),
        ("interval = 30", "interval = 31", "cells of days (times)"),
        ('columns = ["age", "weight"]', 'columns = ["weight", "days"]', "what is checked together"),
        ("high = 90", "high = 89", "what is declared of age"),
        ("missing = [999]", "missing = [998]", "what is declared of weight"),
        ('["i", "ii"], late = ["iii"]', '["i"], late = ["ii", "iii"]', "what is declared of stage"),
        ("[data.columns]", '[data.columns]\nolder = { low = 60, high = 90, source = "age" }', "of age"),
        ('site_column = "ward"', 'site_column = "other"', "data.site_column"),
        ('name = "statistics"', 'name = "statistics"\nmax_records = 70', "algorithm.max_records"),
        ('name = "statistics"', 'name = "statistics"\nmin_cell = 10', "algorithm.min_cell"),
        ('name = "statistics"', 'name = "statistics"\nmin_hospitals = 3', "algorithm.min_hospitals"),
        ("max_dropouts = 0", "", "if one drops out"),
        (
            "analyses.first",
            'analyses.pair = { kind = "correlation", columns = ["age", "weight"] }\nanalyses.first',
            "records that lack age, weight",
        ),
    ],
)
def test_what_can_be_subtracted_is_named(old: str, new: str, says: str) -> None:
    assert STUDY.count(old) >= 1
    assert says in found(STUDY.replace(old, new, 1))[0]


def test_another_name_of_a_column_and_of_a_model_is_no_way_around() -> None:
    renamed = STUDY.replace("\nage = { low", '\nyears = { source = "age", low').replace('"age"', '"years"', 1)
    renamed = renamed.replace('columns = ["age", ', 'columns = ["years", ')
    assert found(renamed) == []
    assert found(renamed.replace("bins = 10", "bins = 11")) == ["cells of age (histogram)"]
    curves = [{"kind": "roc", "of": of, "bins": bins} for of, bins in (("a", 500), ("b", 501))]
    assert list(divided_twice({"one": curves[0], "two": curves[1]})) == [("two", "scores")]


def test_other_hospitals_are_named_and_a_full_cohort_needs_no_key() -> None:
    assert found(STUDY, SITES[:3]) == ["hospitals"]
    full = Study.parse(STUDY.replace("max_dropouts = 0", "min_cohort = 4")).identity()
    assert subtractable(full, full, SITES, SITES) == []
    training = {**full, "algorithm": {"name": "fedavg"}}
    assert subtractable(full, training, SITES, SITES[:3]) == []  # a near twin, as every study


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"data.columns.older": {"low": 60, "high": 90, "source": "age"}},
            "same column of the file as 'age'",
        ),
        (
            {
                "algorithm.analyses.c2": {
                    "kind": "kaplan-meier",
                    "time": "days",
                    "event": "dead",
                    "interval": 7,
                }
            },
            "divides 'days' into other cells",
        ),
    ],
)
def test_one_study_cannot_ask_it_either(changes: dict[str, Any], says: str) -> None:
    study = Study.parse(STUDY)
    for key, value in changes.items():
        study = study.replace(key, value)
    with pytest.raises(ConfigError) as refused:
        build(study)
    assert says in str(refused.value)


@pytest.mark.parametrize("other", ["cox", "kaplan-meier"])
def test_models_and_curves_divide_time_alike(other: str) -> None:
    """A record that leaves between two edges moves both, and is in neither by itself."""
    study = Study.parse(STUDY.replace("analyses.curve", "analyses.later"))
    one = {"kind": "cox", "time": "days", "event": "dead", "formula": "age", "interval": 30}
    two = {**one, "kind": other, "interval": 12}
    if other != "cox":
        del two["formula"]
    alone = study.replace("algorithm.analyses", {"fit": one}).identity()
    later = study.replace("algorithm.analyses", {"fit": two}).identity()
    assert "cells of days (times)" in subtractable(alone, later, SITES, SITES)
    assert list(divided_twice({"one": one, "two": {**two, "interval": 30}})) == []
    with pytest.raises(ConfigError, match="divides 'days' into other cells"):
        build(study.replace("algorithm.analyses", {"one": one, "two": two}))


def test_formulas_that_compute_are_the_same_in_both() -> None:
    def fit(formula: str) -> dict[str, Any]:
        study = Study.parse(STUDY)
        return study.replace("algorithm.analyses.fit", {"kind": "glm", "formula": formula}).identity()

    plain, older, oldest = map(fit, ("weight ~ age", "weight ~ I(age / 10)", "weight ~ I(age / 20)"))
    assert subtractable(plain, plain, SITES, SITES) == subtractable(older, older, SITES, SITES) == []
    for pair in ((plain, older), (older, oldest)):
        assert any("what formulas compute" in one for one in subtractable(*pair, SITES, SITES))
    categories = fit("weight ~ C(stage) + age")
    found = subtractable(plain, categories, SITES, SITES)
    assert found == ["records that lack stage", "what is checked together, in this order (fit)"]


def test_a_curve_of_another_model_is_named() -> None:
    def curve(ridge: float) -> dict[str, Any]:
        study = Study.parse(STUDY)
        model = {"kind": "glm", "formula": "dead ~ age", "family": "binomial", "ridge": ridge}
        study = study.replace("algorithm.analyses.fit", model)
        return study.replace("algorithm.analyses.area", {"kind": "roc", "of": "fit"}).identity()

    assert subtractable(curve(0.0), curve(0.0), SITES, SITES) == []
    found = subtractable(curve(0.0), curve(1.0), SITES, SITES)
    assert found == ["what is checked together, in this order (fit)", "cells of scores (roc)"]


def test_what_one_study_checks_together_two_do_not() -> None:
    def fits(**formulas: str) -> dict[str, Any]:
        study = Study.parse(STUDY)
        for name, formula in formulas.items():
            study = study.replace(f"algorithm.analyses.{name}", {"kind": "glm", "formula": formula})
        return study.identity()

    one, other = fits(fit="weight ~ age"), fits(fit="age ~ weight")
    both = fits(fit="weight ~ age", again="age ~ weight")
    assert subtractable(one, other, SITES, SITES) == ["what is checked together, in this order (fit)"]
    assert subtractable(one, both, SITES, SITES) == subtractable(both, one, SITES, SITES) == []
    # An analysis is checked with those before it: in the other order, other results are told.
    turned = fits(again="age ~ weight", fit="weight ~ age")
    assert subtractable(both, turned, SITES, SITES) == [
        "what is checked together, in this order (again, fit)"
    ]
    assert subtractable(one, turned, SITES, SITES) == ["what is checked together, in this order (again, fit)"]
    assert subtractable(other, fits(more="days ~ age", fit="age ~ weight"), SITES, SITES)
