"""The data sets that come with scikit-learn, read from its folder: to import it takes a second."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def digits() -> tuple[Array, NDArray[np.int64]]:
    """As ``sklearn.datasets.load_digits``: images [1797, 8, 8] of values 0 .. 16, and their digits [1797]."""
    rows = _table("digits.csv.gz", header_lines=0)
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)


def breast_cancer() -> tuple[Array, NDArray[np.int64]]:
    """As ``sklearn.datasets.load_breast_cancer``: features [569, 30], and 1 for a benign finding [569]."""
    rows = _table("breast_cancer.csv", header_lines=1)
    return np.ascontiguousarray(rows[:, :-1]), rows[:, -1].astype(np.int64)


def diabetes() -> Array:
    """As ``sklearn.datasets.load_diabetes(scaled=False)``: [442, 11], the target last."""
    features = _table("diabetes_data_raw.csv.gz", header_lines=0, delimiter=None)
    return np.column_stack([features, _table("diabetes_target.csv.gz", header_lines=0)])


def _table(name: str, *, header_lines: int, delimiter: str | None = ",") -> Array:
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("scikit-learn is not installed", name="sklearn")
    path = Path(spec.origin).parent / "datasets" / "data" / name
    return np.loadtxt(path, delimiter=delimiter, skiprows=header_lines)
