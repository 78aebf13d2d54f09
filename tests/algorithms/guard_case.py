"""Records of four hospitals, and what a study of statistics over them tells."""

from __future__ import annotations

from typing import Any

import numpy as np

from secfed.algorithms.data.tabular.columns import Column
from secfed.algorithms.statistics.results import Reported
from tests.algorithms.statistics_case import run, study

N = 240
RNG = np.random.default_rng(7)
COLUMNS = (
    Column.number("age", 18, 100),
    Column.number("chol", 50, 700),
    Column.number("bp", 50, 250),
    Column.number("flag", 0, 1),
    Column.number("time", 0, 20),
    Column.category("ward", ("a", "b")),
    Column.category("stage", ("i", "ii")),
    Column.category("dead", ("no", "yes")),
)
RECORDS: dict[str, Any] = {
    "age": RNG.integers(30, 80, N) * 1.0,
    "chol": RNG.integers(120, 400, N) * 1.0,
    "bp": RNG.integers(90, 180, N) * 1.0,
    "flag": (np.arange(N) % 3 == 0) * 1.0,
    "time": RNG.integers(1, 20, N) * 1.0,
    "ward": np.arange(N) // 4 % 2 * 1.0,
    "stage": np.arange(N) // 8 % 2 * 1.0,
    "dead": RNG.integers(0, 2, N) * 1.0,
}


def told(analyses: dict[str, dict[str, Any]], **records: Any) -> dict[str, Reported]:
    return run(study(COLUMNS, {**RECORDS, **records}, analyses))[1]


def glm(formula: str, **options: Any) -> dict[str, Any]:
    return {"kind": "glm", "formula": formula, **options}


def correlation(*columns: str) -> dict[str, Any]:
    return {"kind": "correlation", "columns": list(columns)}


def why(reported: Reported) -> str:
    return (reported.withheld or "").partition(":")[0]


def first(count: int) -> Any:
    return (np.arange(N) < count) * 1.0
