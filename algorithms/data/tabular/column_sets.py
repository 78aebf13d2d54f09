"""Data sets of tables with declared columns: files and views of one's own, and three that are described here.

Source of ``heart-table``: see :mod:`secfed.algorithms.data.tabular.heart_disease`. Of ``diabetes-table``:
Efron, Hastie, Johnstone, Tibshirani, Least Angle Regression, Annals of Statistics 32, 2004. Of
``breast-cancer-table``: see :func:`secfed.algorithms.data.pool.breast_cancer`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from secfed.algorithms.data import base, bundled
from secfed.algorithms.data.folders import data_folder, existing_file
from secfed.algorithms.data.partition import Partition, Pool, dirichlet, iid
from secfed.algorithms.data.pool import BREAST_CANCER_RANGES
from secfed.algorithms.data.tabular.column_options import ColumnsOptions
from secfed.algorithms.data.tabular.column_values import labels_of, read_table
from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.data.tabular.heart_disease import CENTRES
from secfed.algorithms.framework.datasets import SiteId
from secfed.config.schema import checked
from secfed.errors import DataError

Columns = tuple[Column, ...]

_YES: Final = {"categories": ["no", "yes"], "codes": {"no": [0], "yes": [1]}}
# Bounds are generous limits of what is physically usual, public and the same everywhere.
_HEART: Final[dict[str, dict[str, Any]]] = {
    "age": {"low": 18, "high": 100, "unit": "years"},
    "sex": {"categories": ["female", "male"], "codes": {"female": [0], "male": [1]}},
    "cp": {
        "categories": ["typical", "atypical", "non-anginal", "asymptomatic"],
        "codes": {"typical": [1], "atypical": [2], "non-anginal": [3], "asymptomatic": [4]},
    },
    "trestbps": {"low": 50, "high": 250, "unit": "mmHg", "missing": [0]},
    "chol": {"low": 50, "high": 700, "unit": "mg/dl", "missing": [0]},
    "fbs": _YES,
    "restecg": {
        "categories": ["normal", "st-t", "hypertrophy"],
        "codes": {"normal": [0], "st-t": [1], "hypertrophy": [2]},
    },
    "thalach": {"low": 40, "high": 240, "unit": "1/min"},
    "exang": _YES,
    "oldpeak": {"low": -10, "high": 10, "unit": "mm"},
    "slope": {
        "categories": ["up", "flat", "down"],
        "codes": {"up": [1], "flat": [2], "down": [3]},
    },
    "ca": {"low": 0, "high": 3, "unit": "vessels"},
    "thal": {
        "categories": ["normal", "fixed", "reversible"],
        "codes": {"normal": [3], "fixed": [6], "reversible": [7]},
    },
    "disease": {"source": "num", "categories": ["no", "yes"], "codes": {"no": [0], "yes": [1, 2, 3, 4]}},
}

_DIABETES: Final[Columns] = (
    Column.number("age", 18, 100, "years"),
    Column.category("sex", ("1", "2")),  # which is which was not published
    Column.number("bmi", 10, 60, "kg/m2"),
    Column.number("bp", 40, 200, "mmHg"),
    Column.number("s1", 50, 400, "mg/dl"),
    Column.number("s2", 0, 400, "mg/dl"),
    Column.number("s3", 10, 150, "mg/dl"),
    Column.number("s4", 1, 12),
    Column.number("s5", 2, 8),
    Column.number("s6", 30, 400, "mg/dl"),
    Column.number("progression", 0, 400),
)

_CELLS: Final = (
    *("radius", "texture", "perimeter", "area", "smoothness"),
    *("compactness", "concavity", "concave_points", "symmetry", "fractal_dimension"),
)
_BREAST_CANCER: Final[Columns] = (
    *(
        # A quarter above the largest published value, as that is rounded.
        Column.number(name, 0, round(1.25 * high, 3))
        for name, (_, high) in zip(_CELLS, BREAST_CANCER_RANGES[:10], strict=True)
    ),
    Column.category("diagnosis", ("benign", "malignant")),
)


class HeartTableOptions(base.DataOptions):
    """Options of ``heart-table``."""

    test_fraction: base.OfficialDivision = 0.0

    def site_ids(self) -> tuple[SiteId, ...]:
        """The four hospitals."""
        return CENTRES


class BundledTableOptions(base.DataOptions):
    """Options of a bundled table divided among ``sites`` simulated hospitals."""

    test_fraction: base.OfficialDivision = 0.0
    sites: base.SiteCount = 4
    partition: Literal["iid", "dirichlet"] = Field(default="iid", description='"iid" or "dirichlet"')
    alpha: base.Alpha = 0.5
    min_records: base.MinRecords = 10

    @model_validator(mode="after")
    def _check(self) -> Self:
        base.refuse_unused_alpha(self, self.partition)
        return self


class ColumnSites(base.RecordByRecord):
    """Tables of several sites; ``read`` gives one site's."""

    def __init__(self, sites: tuple[SiteId, ...], columns: Columns, read: Callable[[SiteId], Table]) -> None:
        self.sites, self.columns, self._read = sites, columns, read

    def table(self, site_id: SiteId) -> Table:
        """One site's records."""
        base.site_index(self.sites, site_id)
        return self._read(site_id)


def columns(options: ColumnsOptions, seed: int, folder: Path) -> ColumnSites:
    """The tables that a study describes; a file or view is read when a site is asked for."""
    path = folder / options.path
    if options.skew_column is not None or options.partition == "iid":
        return _divided(
            options, options.declared, lambda: read_table(path, options), options.skew_column, seed
        )
    if options.partition == "by-column":
        return ColumnSites(options.site_ids(), options.declared, lambda site: read_table(path, options, site))
    asked: list[SiteId] = []

    def read(site: SiteId) -> Table:
        # A hospital has one file, its own; in a simulation the same file would be every hospital's.
        asked.append(site)
        if "{site}" not in options.path and len(set(asked)) > 1:
            message = "data.path: one file cannot be the file of several sites"
            raise DataError(message, remedy='write "{site}" where the name of the site stands')
        return read_table(folder / options.path.replace("{site}", site), options, site)

    return ColumnSites(options.site_ids(), options.declared, read)


def heart_table(options: HeartTableOptions, seed: int) -> ColumnSites:
    """The four hospitals of ``heart-disease``, values as recorded; 0 for chol or trestbps is missing."""
    path = existing_file("heart-table", data_folder() / "fed_heart_disease.csv")
    described = {"name": "columns", "path": str(path), "site_column": "center", "sites": options.site_ids()}
    return columns(checked(ColumnsOptions, {**described, "columns": _HEART}, "data"), seed, Path())


def diabetes_table(options: BundledTableOptions, seed: int) -> ColumnSites:
    """442 patients with diabetes, ten measurements as recorded, and how the disease progressed in a year."""

    def load() -> Table:
        rows = bundled.diabetes()
        rows[:, 1] -= 1  # positions in the declared list
        return _bundled(_DIABETES, rows)

    return _divided(options, _DIABETES, load, "sex", seed)


def breast_cancer_table(options: BundledTableOptions, seed: int) -> ColumnSites:
    """569 patients, the means of ten features of cell nuclei as recorded, and the diagnosis."""

    def load() -> Table:
        x, benign = bundled.breast_cancer()
        return _bundled(_BREAST_CANCER, np.column_stack([x[:, :10], 1 - benign]))

    return _divided(options, _BREAST_CANCER, load, "diagnosis", seed)


def _bundled(declared: Columns, rows: bundled.Array) -> Table:
    values = {column.name: np.ascontiguousarray(rows[:, at]) for at, column in enumerate(declared)}
    return Table(declared, values, len(rows))


def _divided(
    options: ColumnsOptions | BundledTableOptions,
    declared: Columns,
    load: Callable[[], Table],
    skew: str | None,
    seed: int,
) -> ColumnSites:
    """One table, divided among simulated hospitals."""
    sites = options.site_ids()

    def divide(table: Table, rng: np.random.Generator) -> Partition:
        if options.partition == "dirichlet" and skew is not None:
            return dirichlet(labels_of(table, skew), len(sites), options.alpha, options.min_records, rng)
        return iid(table.records, len(sites), options.min_records, rng)

    pool = Pool(load, divide, seed)
    return ColumnSites(sites, declared, lambda site: pool.records.take(pool.partition[sites.index(site)]))
