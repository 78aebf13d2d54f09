"""Attacks with results that are harmless one by one: subtracted, or solved together, they tell a few records.

Whoever writes a study asks for a histogram and a step beside its edge, for one model under ever another
ridge, for a mean and a deviation. Sums are added up here, as in small_cells: no protection is attacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from secfed.attack.attack import AttackSetting, attack, attacks_of
from secfed.attack.evidence import Count
from secfed.attack.few_records import AUTHOR, hospitals
from secfed.attack.small_cells import LEAST, READER, Analyses, Tables, told
from secfed.errors import ConfigError

_EDGE: Final = 60  # of a histogram whose cells are two years wide
_BINS: Final = 41
_SPARSE: Final = 46  # a cell that would be withheld, and others with it
_EXACT: Final = 1e-3


def _rare_age(setting: AttackSetting) -> Tables:
    """Three people are of the age above an edge; of no cell there are so few that it is withheld."""
    data = hospitals(setting)
    for site in data.sites:
        age = data.table(site).values["age"]
        age[age == _EDGE] += 1.0
        age[(age >= _SPARSE) & (age < _SPARSE + 2)] -= 2.0
        age[:3] = _EDGE if site == data.sites[0] else age[:3]
    return data


@attack(
    "odd-value",
    "asks for means and deviations of a flag that two records have half of, and solves them",
    who=READER,
    defence="squares",
)
def _odd_value(setting: AttackSetting) -> Count:
    data = hospitals(setting)
    for site in data.sites:
        flag = data.table(site).values["flag"]
        flag[:] = np.arange(len(flag)) % 2
        flag[2:4] = 0.5 if site == data.sites[0] else flag[2:4]
    asked: Analyses = {
        "described": {"kind": "describe", "columns": ["flag"]},
        "pair": {"kind": "correlation", "columns": ["flag", "bp"]},
        "test": {"kind": "t-test", "column": "flag", "by": "ward"},
        "fit": {"kind": "glm", "formula": "flag ~ bp"},
    }
    found = told(data, asked)
    read = sum("withheld" not in found[name] for name in ("pair", "test", "fit"))
    flag = found["described"]["columns"]["flag"]
    if flag["sd"][-1] is not None:
        n, mean = flag["n"][-1], flag["mean"][-1]
        squares = flag["sd"][-1] ** 2 * (n - 1) + n * mean**2
        read += abs(4 * (n * mean - squares) - 2) < _EXACT
    return Count(read, len(asked), "results that count them")


@attack(
    "ridge-scan",
    "asks for one logistic model under ever another ridge: the same sums, weighted ever otherwise",
    who=AUTHOR,
    defence="refused",
)
def _ridge_scan(setting: AttackSetting) -> Count:
    model = {"kind": "glm", "formula": "dead ~ age + bp", "family": "binomial"}
    return _permitted(setting, {f"fit{n}": model | {"ridge": 10.0 * n} for n in range(3)})


@attack(
    "steep-step",
    "asks for a regression on a step beside an edge of a histogram, and subtracts the cells",
    who=AUTHOR,
    defence="refused",
)
def _steep_step(setting: AttackSetting) -> Count:
    step = f"1/(1+exp(0.7*({_EDGE}.5-age)))"
    for _ in range(2):  # to 13 digits 0 or 1
        step = f"1/(1+exp(60*(0.5-{step})))"
    asked: Analyses = {
        "ages": {"kind": "histogram", "column": "age", "bins": _BINS},
        "fit": {"kind": "glm", "formula": f"bp ~ I({step})"},
    }
    try:
        found = told(_rare_age(setting), asked)
    except ConfigError:
        return Count(0, 3, "people of one age")
    covariance = found["fit"]["covariance"]
    above = -found["fit"]["n"] * covariance[0][1] / covariance[1][1]
    cells = [n for low, n in _cells(found["ages"], "records") if low >= _EDGE]
    few = round(sum(cells) - above)
    return Count(few if few == 3 else 0, 3, "people of one age")


@attack(
    "score-edges",
    "compares points of a ROC curve of one number with cells of its histogram",
    who=READER,
    defence="rounded points",
)
def _score_edges(setting: AttackSetting) -> Count:
    data = hospitals(setting)
    for site in data.sites:
        values = data.table(site).values
        values["dead"][:] = values["bp"] + values["age"] > 190
    found = told(
        data,
        {
            "ages": {"kind": "histogram", "column": "age", "by": "dead", "bins": 10},
            "fit": {"kind": "glm", "formula": "dead ~ age", "family": "binomial"},
            "curve": {"kind": "roc", "of": "fit"},
        },
    )
    curve = found["curve"]
    read, points = 0, list[int]()
    for key, size, group in (
        ("false_positive_rate", "n_without", "no"),
        ("true_positive_rate", "n_with", "yes"),
    ):
        points = [round(share * curve[size]) for share in curve[key][1:-1]]
        above = np.cumsum([n for _, n in _cells(found["ages"], group)]).tolist()
        # Whoever sees multiples of min_cell only knows what they were rounded from.
        spread = LEAST // 2 if all(point % LEAST == 0 for point in points) else 0
        read += sum(_few(range(point - spread, point + spread + 1), above) for point in points)
    return Count(read, len(points), "small numbers between a point and an edge")


def _few(possible: Sequence[int], above: Sequence[float]) -> bool:
    """Whether a point is so many records beside an edge, few of them, whichever cell it is in."""
    beside = [
        {n - low for n in possible if low <= n <= high} for low, high in pairwise([0, *above]) if high > low
    ]
    there = [found for found in beside if found]
    return len(there) == 1 and len(there[0]) == 1 and 0 < min(there[0]) < LEAST


@attack(
    "two-models",
    "asks for regressions on different functions of one number, all of which single out a patient",
    who=AUTHOR,
    defence="products of all models",
)
def _two_models(setting: AttackSetting) -> Count:
    data = hospitals(setting)
    rng = np.random.default_rng(setting.seed)
    for site in data.sites:
        age = data.table(site).values["age"]
        age[:] = rng.choice([30, 31, 32, 33, 35, 36, 37, 38, 39], len(age))
        age[7] = 34.0 if site == data.sites[0] else age[7]
    asked: Analyses = {
        outcome: {"kind": "glm", "formula": f"{outcome} ~ " + "+".join(map(_bell, centres))}
        for outcome, centres in (("bp", (31, 33)), ("chol", (36, 38)))
    }
    found = told(data, asked)
    return Count(float("withheld" not in found["bp"] and "withheld" not in found["chol"]), 1, "patients")


def _bell(centre: int) -> str:
    return f"I(1/(1+(age-{centre})**2))"


def _cells(histogram: Any, group: str) -> Iterator[tuple[float, float]]:
    """Lower edges and numbers of records from the highest cell down to the first that is withheld."""
    for low, count in zip(histogram["edges"][-2::-1], histogram["counts"][group][::-1], strict=True):
        if count is None:
            return
        yield low, count


def _permitted(setting: AttackSetting, asked: Analyses) -> Count:
    try:
        told(hospitals(setting), asked)
    except ConfigError:
        return Count(0, 1, "studies that were permitted")
    return Count(1, 1, "studies that were permitted")


TWO_RESULTS: Final = attacks_of(vars())
