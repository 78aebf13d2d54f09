"""How many records an analysis takes: the share of simulated studies in which its checks withhold it.

    python benchmarks/withheld_statistics.py [--studies 20] [--quick] [--only NAME]

Records are made up, of four equal hospitals: ages and pressures are normal, cholesterol and the body mass
index lognormal as they are in cohorts, creatinine more skewed than that; three categories. With the data of
UCI heart disease at hand, its 920 records are asked the same kind of questions. A study is withheld here if
any analysis of it is, or a mean or deviation of a description. Some minutes of one processor.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import sections

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.attack.small_cells import Tables, told
from secfed.errors import DataError
from secfed.study.build import build_data
from secfed.study.study import Study

Analyses = Mapping[str, Mapping[str, Any]]
_FEW: Final = 10  # of 100 studies
SIZES: Final = (50, 100, 200, 400, 600, 1000, 1600)
HOSPITALS: Final = 4
_SQUARE: Final = "`bp ~ age + I(age**2) + chol`"
_CLIPPED: Final = f"{_SQUARE}, narrower bounds that clip"
_NARROW: Final = {"age": (35, 80), "bp": (100, 170), "chol": (150, 320)}
COLUMNS: Final = (
    Column.number("age", 18, 100),
    Column.number("bp", 60, 260),
    Column.number("chol", 50, 800),
    Column.number("bmi", 12, 70),
    Column.number("creatinine", 0.1, 20),
    Column.number("pulse", 30, 220),
    Column.number("days", 0, 3000),
    Column.category("sex", ("f", "m")),
    Column.category("smoker", ("no", "yes")),
    Column.category("stage", ("i", "ii", "iii", "iv")),
    Column.category("dead", ("no", "yes")),
)


def records(count: int, rng: np.random.Generator) -> dict[str, Any]:
    """A cohort."""
    age = np.clip(rng.normal(58, 12, count).round(), 18, 100)
    bp = np.clip((110 + 0.4 * age + rng.normal(0, 17, count)).round(), 60, 260)
    risk = 0.05 * (age - 58) + 0.01 * (bp - 133)
    return {
        "age": age,
        "bp": bp,
        "chol": np.clip((220 * np.exp(rng.normal(0, 0.22, count))).round(), 50, 800),
        "bmi": np.clip((26 * np.exp(rng.normal(0, 0.18, count))).round(1), 12, 70),
        "creatinine": np.clip((1.0 * np.exp(rng.normal(0, 0.4, count))).round(2), 0.1, 20),
        "pulse": np.clip(rng.normal(75, 13, count).round(), 30, 220),
        "days": np.clip(rng.exponential(900, count).round(), 1, 3000),
        "sex": rng.integers(0, 2, count) * 1.0,
        "smoker": (rng.random(count) < 0.25) * 1.0,
        "stage": rng.choice(4, count, p=(0.4, 0.3, 0.2, 0.1)) * 1.0,
        "dead": (rng.random(count) < 1 / (1 + np.exp(0.7 - risk))) * 1.0,
    }


def glm(formula: str, family: str = "gaussian", **options: Any) -> dict[str, Any]:
    return {"kind": "glm", "formula": formula, "family": family, **options}


def logistic(formula: str) -> dict[str, Any]:
    return glm(formula, "binomial")


_MODEL: Final = logistic("dead ~ age + bp + sex")
STUDIES: Final[Mapping[str, Analyses]] = {
    "means of two numbers": {"a": {"kind": "describe", "columns": ["age", "bp"]}},
    "means of two numbers by sex": {"a": {"kind": "describe", "columns": ["age", "bp"], "by": "sex"}},
    "means of two numbers by stage (4)": {"a": {"kind": "describe", "columns": ["age", "bp"], "by": "stage"}},
    "means of a skewed number by sex": {"a": {"kind": "describe", "columns": ["creatinine"], "by": "sex"}},
    "means by sex, and by stage": {
        "a": {"kind": "describe", "columns": ["age", "bp"], "by": "sex"},
        "b": {"kind": "describe", "columns": ["age", "bp"], "by": "stage"},
    },
    "t-test of a number": {"a": {"kind": "t-test", "column": "bp", "by": "sex"}},
    "correlations of four numbers": {"a": {"kind": "correlation", "columns": ["age", "bp", "chol", "bmi"]}},
    "`bp ~ age + chol`": {"a": glm("bp ~ age + chol")},
    "`dead ~ age + bp + sex`": {"a": _MODEL},
    "the same with its ROC curve": {"a": _MODEL, "b": {"kind": "roc", "of": "a"}},
    "`bp ~ age + chol + bmi + creatinine + pulse + sex`": {
        "a": glm("bp ~ age + chol + bmi + creatinine + pulse + sex")
    },
    "`bp ~ age + chol + bmi + log(creatinine) + sex`": {
        "a": glm("bp ~ age + chol + bmi + log(creatinine) + sex")
    },
    "`dead ~ age + bp + chol + bmi + sex + stage`": {
        "a": logistic("dead ~ age + bp + chol + bmi + sex + stage")
    },
    "three nested logistic models of these": {
        "a": logistic("dead ~ age + sex"),
        "b": logistic("dead ~ age + sex + bp + chol"),
        "c": logistic("dead ~ age + sex + bp + chol + bmi + stage"),
    },
    "Cox, `age + bp + sex`": {
        "a": {"kind": "cox", "time": "days", "event": "dead", "interval": 30, "formula": "age + bp + sex"}
    },
    "a curve by sex, and Cox, `stage`": {
        "a": {"kind": "kaplan-meier", "time": "days", "event": "dead", "interval": 30, "by": "sex"},
        "b": {"kind": "cox", "time": "days", "event": "dead", "interval": 30, "formula": "stage"},
    },
    "curves by sex, and by stage": {
        "a": {"kind": "kaplan-meier", "time": "days", "event": "dead", "interval": 30, "by": "sex"},
        "b": {"kind": "kaplan-meier", "time": "days", "event": "dead", "interval": 30, "by": "stage"},
    },
    "`dead ~ age + sex + stage + sex:stage`": {"a": logistic("dead ~ age + sex * stage")},
    "`dead ~ age * sex + bp`": {"a": logistic("dead ~ age * sex + bp")},
    _SQUARE: {"a": glm("bp ~ age + I(age**2) + chol")},
    _CLIPPED: {"a": glm("bp ~ age + I(age**2) + chol")},
    "correlations of four, then `bp ~ age + I(age**2)`": {
        "a": {"kind": "correlation", "columns": ["age", "bp", "chol", "bmi"]},
        "b": glm("bp ~ age + I(age**2)"),
    },
    "a curve by sex, and Cox, `age + stage`": {
        "a": {"kind": "kaplan-meier", "time": "days", "event": "dead", "interval": 30, "by": "sex"},
        "b": {"kind": "cox", "time": "days", "event": "dead", "interval": 30, "formula": "age + stage"},
    },
    "`dead ~ age + I(age**2) + sex`": {"a": logistic("dead ~ age + I(age**2) + sex")},
    "`bp ~ age * chol + sex`": {"a": glm("bp ~ age * chol + sex")},
    "two outcomes on `age + I(age**2)`": {
        "a": glm("bp ~ age + I(age**2)"),
        "b": glm("chol ~ age + I(age**2)"),
    },
}
_HEART_STUDY: Final = """
study = { name = "heart", rounds = 1 }
algorithm = { name = "statistics", analyses = { a = { kind = "counts", columns = ["sex"] } } }
model = { name = "none" }
data = { name = "heart-table" }
"""
HEART: Final[Mapping[str, Analyses]] = {
    "Table 1 of five numbers by disease": {
        "a": {
            "kind": "describe",
            "columns": ["age", "trestbps", "chol", "thalach", "oldpeak"],
            "by": "disease",
        }
    },
    "`disease ~ age + sex + C(cp)` and its curve": {
        "a": logistic("disease ~ age + sex + C(cp)"),
        "b": {"kind": "roc", "of": "a"},
    },
    "`disease ~ age + sex + trestbps + thalach + C(cp)`": {
        "a": logistic("disease ~ age + sex + trestbps + thalach + C(cp)")
    },
    "`thalach ~ age + sex + trestbps`": {"a": glm("thalach ~ age + sex + trestbps")},
    "`thalach ~ age + I(age**2) + sex`": {"a": glm("thalach ~ age + I(age**2) + sex")},
    "`disease ~ age * sex + thalach`": {"a": logistic("disease ~ age * sex + thalach")},
    "`disease ~ age + I(age**2) + sex`": {"a": logistic("disease ~ age + I(age**2) + sex")},
    "correlations of four of them": {
        "a": {"kind": "correlation", "columns": ["age", "trestbps", "thalach", "oldpeak"]}
    },
}


def divided(values: Mapping[str, Any], count: int, name: str) -> Tables:
    """Over four hospitals, in turn."""
    own = dict(values)
    for column, bounds in _NARROW.items() if name == _CLIPPED else ():
        own[column] = np.clip(own[column], *bounds)
    whole, of = Table(COLUMNS, own, count), np.arange(count) % HOSPITALS
    return Tables({f"h{n}": whole.take(of == n) for n in range(HOSPITALS)}, COLUMNS)


def withheld(data: Tables, study: Analyses) -> bool:
    """Whether anything of a study is: an analysis, or a mean or deviation of a description."""
    for one in told(data, study).values():
        if "withheld" in one:
            return True
        numbers = one["columns"].values() if one["kind"] == "describe" else ()
        if any(None in column[key] for column in numbers for key in ("mean", "sd")):
            return True
    return False


def simulated(repeats: int, sizes: Sequence[int], only: str) -> list[list[str]]:
    """Of each kind the studies in 100 that are withheld, by records; and how many records it takes."""
    lines = []
    for name, study in STUDIES.items():
        if only not in name:
            continue
        shares = []
        for size in sizes:
            rngs = (np.random.default_rng([size, number]) for number in range(repeats))
            lost = sum(withheld(divided(records(size, rng), size, name), study) for rng in rngs)
            shares.append(100 * lost / repeats)
        enough = [size for at, size in enumerate(sizes) if max(shares[at:]) <= _FEW]
        lines.append([name, *(f"{share:.0f}" for share in shares), str(enough[0]) if enough else "more"])
        print(*lines[-1], sep="\t", flush=True)
    return lines


def heart() -> list[list[str]]:
    """What is told of the 920 records of four hospitals."""
    try:
        table: Any = build_data(Study.parse(_HEART_STUDY))
        data = Tables({site: table.table(site) for site in table.sites}, table.columns)
    except DataError as error:
        print(f"heart disease is left out: {error.message}")
        return []
    lines = []
    for name, study in HEART.items():
        found = told(data, study)
        reasons = {one.get("withheld", "").partition(":")[0] for one in found.values()} - {""}
        lines.append([name, ", ".join(sorted(reasons)) or ("in part" if withheld(data, study) else "told")])
        print(*lines[-1], sep="\t", flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=20, help="simulated of each kind and size")
    parser.add_argument("--only", default="", help="kinds with this in their name")
    parser.add_argument("--quick", action="store_true", help="two studies of each, to 400 records")
    options = parser.parse_args()
    repeats, sizes = (2, SIZES[:4]) if options.quick else (options.studies, SIZES)
    lines, real = simulated(repeats, sizes, options.only), heart()
    tables = [sections.table(["study", *map(str, sizes), "records it takes"], lines)]
    if real:
        tables.append(sections.table(["heart disease, 920 records of four hospitals", ""], real))
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
