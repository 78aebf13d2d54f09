"""Attacks with what an analysis tells: small numbers that follow from several tables.

Whoever reads results asks for a table, for the same one turned over, for its margins and a description, and
solves all that is told for what is withheld. Sums are added up here: no protection is attacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.statistics.algorithm import Statistics
from secfed.algorithms.statistics.options import StatisticsOptions
from secfed.algorithms.statistics.report import report_of
from secfed.attack.attack import AttackSetting, Impossible, attack, attacks_of
from secfed.attack.evidence import Count
from secfed.attack.wards import names
from secfed.config.schema import checked
from secfed.errors import ConfigError
from secfed.study.study import Study
from secfed.wire.layout import Totals

READER: Final = "a reader of the results"
_RECORDS: Final = 60  # of each hospital
LEAST: Final = 5
_SOLVED: Final = 1e-9
_STUDY: Final = """
study = { name = "attacked", rounds = 1 }
algorithm = { name = "statistics", analyses = { a = { kind = "counts", columns = ["sex"] } } }
model = { name = "none" }
data = { name = "diabetes-table" }
"""
_COLUMNS: Final = (
    Column.category("stage", ("i", "ii", "iii", "iv")),
    Column.category("ward", ("a", "b", "c")),
    Column.number("age", 0, 100),
)
Analyses = Mapping[str, Mapping[str, Any]]


class Tables:
    """Records in memory."""

    def __init__(self, tables: Mapping[str, Table], columns: Sequence[Column] = _COLUMNS) -> None:
        self.sites, self.columns, self._tables = tuple(tables), tuple(columns), tables

    def table(self, site_id: str) -> Table:
        """One hospital's records."""
        return self._tables[site_id]


def _hospitals(setting: AttackSetting, *, alone: bool = False) -> Tables:
    """Stages and wards, some of them rare; ``alone``: the first hospital alone has the last stage."""
    rng = np.random.default_rng(setting.seed)
    tables = {}
    for number, name in enumerate(names(setting.hospitals)):
        stage = rng.choice(4, _RECORDS, p=(0.5, 0.3, 0.17, 0.03) if not alone else (0.5, 0.3, 0.2, 0.0))
        if alone and number == 0:
            stage[:20] = 3
        values = {
            "stage": stage.astype(np.float64),
            "ward": rng.choice(3, _RECORDS, p=(0.6, 0.37, 0.03)).astype(np.float64),
            "age": rng.uniform(0, 100, _RECORDS),
        }
        tables[name] = Table(_COLUMNS, values, _RECORDS)
    return Tables(tables)


def told(data: Tables, analyses: Analyses) -> dict[str, Any]:
    """What a study tells: every analysis as analysis.json has it; Impossible without what reads formulas."""
    if any("formula" in analysis for analysis in analyses.values()):
        try:
            import formulaic.parser  # noqa: F401
        except ImportError:
            raise Impossible("needs the extra analyse") from None
    options = checked(
        StatisticsOptions, {"name": "statistics", "analyses": analyses, "min_cell": LEAST}, "algorithm"
    )
    setting = Setting(Study.parse(_STUDY), data, model=lambda: None)  # type: ignore[arg-type, return-value]
    algorithm = Statistics(setting, options)
    server, sites = algorithm.server(), [algorithm.site(site) for site in data.sites]
    for exchange in algorithm.exchanges(1):
        parts = [site.contribute(1, exchange, server.broadcast(1, exchange)) for site in sites]
        sums: dict[str, Any] = {name: sum(part[name] for part in parts) for name in parts[0]}
        server.absorb(1, exchange, Totals(sums, data.sites))
    found = report_of(algorithm.analyses, server.model(), data.sites)
    return {one.name: one.to_json() for one in found}


def _solved(known: Sequence[tuple[NDArray[np.float64], float]], size: int) -> list[int]:
    """The cells that linear equations determine."""
    rows = np.array([row for row, _ in known])
    _, values, basis = np.linalg.svd(rows)
    free = basis[int((values > _SOLVED).sum()) :]
    return [cell for cell in range(size) if float(np.abs(free[:, cell]).sum()) < _SOLVED]


@attack(
    "two-tables",
    "asks for a cross table, for it turned over, for its margins and a description, and solves them",
    who=READER,
    defence="withheld cells",
)
def _two_tables(setting: AttackSetting) -> Count:
    data = _hospitals(setting)
    results = told(
        data,
        {
            "one": {"kind": "counts", "columns": ["stage", "ward"]},
            "turned": {"kind": "counts", "columns": ["ward", "stage"]},
            "stages": {"kind": "counts", "columns": ["stage"]},
            "wards": {"kind": "counts", "columns": ["ward"]},
            "described": {"kind": "describe", "columns": ["ward"], "by": "stage"},
        },
    )
    stages, wards = (column.categories for column in _COLUMNS[:2])
    shape = (len(stages), len(wards))
    true = np.zeros(shape)
    for site in data.sites:
        table = data.table(site)
        np.add.at(true, tuple(table.values[name].astype(int) for name in ("stage", "ward")), 1)
    known: list[tuple[NDArray[np.float64], float]] = [(np.ones(true.size), float(true.sum()))]

    def learn(mask: NDArray[np.bool_], number: float | None) -> None:
        if number is not None:
            known.append((mask.ravel().astype(np.float64), number))

    each = np.arange(true.size).reshape(shape)
    for i, stage in enumerate(stages):
        learn(each // shape[1] == i, results["stages"]["counts"].get(stage))
        described = results["described"]["columns"]["ward"]["counts"]
        for j, ward in enumerate(wards):
            cell = each == i * shape[1] + j
            learn(cell, results["one"]["counts"].get(stage, {}).get(ward))
            learn(cell, results["turned"]["counts"].get(ward, {}).get(stage))
            learn(cell, described[ward][i])
    for j, ward in enumerate(wards):
        learn(each % shape[1] == j, results["wards"]["counts"].get(ward))
    small = {cell for cell, n in enumerate(true.ravel()) if 0 < n < LEAST}
    found = small & set(_solved(known, true.size))
    return Count(len(found), max(len(small), 1), "small cells")


@attack(
    "lonely-category",
    "asks how many records are of a category that one hospital alone has",
    who=READER,
    defence="min_hospitals",
)
def _lonely_category(setting: AttackSetting) -> Count:
    results = told(_hospitals(setting, alone=True), {"one": {"kind": "counts", "columns": ["stage"]}})
    return Count(float(results["one"]["counts"]["iv"] is not None), 1, "numbers of one hospital")


@attack(
    "shifted-cells",
    "asks for histograms of one column with ever other cells, and subtracts them",
    who=READER,
    defence="refused",
)
def _shifted_cells(setting: AttackSetting) -> Count:
    bins = {f"h{count}": {"kind": "histogram", "column": "age", "bins": count} for count in (10, 11, 12)}
    try:
        told(_hospitals(setting), bins)
    except ConfigError:
        return Count(0, 1, "studies that were permitted")
    return Count(1, 1, "studies that were permitted")


SMALL_CELLS: Final = attacks_of(vars())
