"""Held-out records under privacy of records: a neighbouring data set trains on the same records but one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secfed.algorithms.data.memory import SiteTables
from secfed.algorithms.data.pool import PooledData
from secfed.algorithms.data.prepare import Facts, Preparation, PreparedRecords, prepare, split_by_content
from secfed.algorithms.framework.datasets import SiteData
from secfed.errors import DataError
from secfed.study.build import build_data
from secfed.study.study import Study

RECORDS = 40
Rows = Counter[bytes]


def rows(x: Any, y: Any) -> Rows:
    return Counter(
        np.append(np.asarray(one, dtype=np.float64).ravel(), float(label)).tobytes()
        for one, label in zip(x, y, strict=True)
    )


def parts(site: SiteData) -> tuple[Rows, Rows]:
    return rows(site.train_x, site.train_y), rows(site.test_x, site.test_y)


def difference(one: Rows, other: Rows) -> int:
    return ((one - other) + (other - one)).total()


def without_any(load: Callable[[list[int]], SiteData]) -> None:
    """Remove every record once: one part loses it, and nothing else changes."""
    everyone = list(range(RECORDS))
    train, test = parts(load(everyone))
    assert 3 < test.total() < RECORDS / 2
    for gone in everyone:
        fewer = parts(load([row for row in everyone if row != gone]))
        changed = difference(train, fewer[0]), difference(test, fewer[1])
        assert sorted(changed) == [0, 1], (gone, changed)


STUDY = """
study = { name = "a", rounds = 1, seed = 7 }
algorithm = { name = "fedavg", weighting = "equal" }
model.name = "mlp"
protection = { name = "plain", min_cohort = 2 }
[privacy]
PRIVACY
[data]
name = "csv"
path = "patients.csv"
site_column = "site"
sites = ["north", "south"]
label_column = "label"
labels = [0, 1]
feature_columns = ["age", "kind", "chol"]
categorical = { kind = ["a", "b"] }
missing_values = ["?"]
missing_indicator = ["chol"]
scale = { age = [50, 20], chol = [200, 50] }
impute = "centre"
standardize = false
test_fraction = 0.3
"""
ADD_OR_REMOVE = 'unit = "record"\nepsilon = 8.0\ndelta = 1e-4'
REPLACE = ADD_OR_REMOVE + '\nadjacency = "replace-record"'
GROUPS = 'unit = "group"\ngroup_size = 2\nepsilon = 8.0\ndelta = 1e-4'


def lines(records: int) -> list[str]:
    rng = np.random.default_rng(3)
    return [
        f"north,{rng.integers(20, 90)},{'ab'[rng.integers(2)]},"
        f"{'?' if rng.random() < 0.3 else rng.integers(100, 400)},{rng.integers(2)}"
        for _ in range(records)
    ]


def from_csv(folder: Path, table: list[str], privacy: str = ADD_OR_REMOVE) -> SiteData:
    (folder / "patients.csv").write_text("\n".join(["site,age,kind,chol,label", *table]) + "\n")
    (folder / "study.toml").write_text(STUDY.replace("PRIVACY", privacy))
    site: SiteData = build_data(Study.load(folder / "study.toml")).site("north")  # type: ignore[attr-defined]
    return site


def test_a_line_removed_from_a_table_moves_no_other_record(tmp_path: Path) -> None:
    table = lines(RECORDS)
    without_any(lambda kept: from_csv(tmp_path, [table[row] for row in kept]))


def test_a_table_in_another_order_is_divided_the_same(tmp_path: Path) -> None:
    table = lines(RECORDS)
    assert parts(from_csv(tmp_path, table)) == parts(from_csv(tmp_path, table[::-1]))


@pytest.mark.parametrize("privacy", [REPLACE, GROUPS])
def test_a_line_that_is_replaced_stays_on_its_side(tmp_path: Path, privacy: str) -> None:
    """Slots: who replaces a record must not move it from training to held-out or back."""
    table = lines(RECORDS)
    before = from_csv(tmp_path, table, privacy)
    for row in range(0, RECORDS, 7):
        changed = [*table[:row], "north,33,a,111,1", *table[row + 1 :]]
        after = from_csv(tmp_path, changed, privacy)
        assert len(after.train_y) == len(before.train_y)
        moved = (before.train_x != after.train_x).any(dim=1) | (before.train_y != after.train_y)
        assert int(moved.sum()) <= 1


def features(*shape: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(RECORDS, *shape)), rng.integers(0, 2, RECORDS)


@pytest.mark.parametrize(
    ("impute", "shape", "more"),
    [("none", (3,), True), ("centre", (3,), False), ("none", (1, 4, 4), False), ("centre", (1, 4, 4), False)],
)
def test_every_preparation(impute: Any, shape: tuple[int, ...], more: bool) -> None:
    x, y = features(*shape)
    if impute == "centre":
        x.reshape(RECORDS, -1)[::4, 0] = math.nan
    extra = np.round(features(2)[0]) if more else None
    rules = Preparation(0.3, standardize=False, impute=impute).for_record_privacy(3, slots=False)
    width = (5,) if extra is not None else shape

    def load(kept: list[int]) -> SiteData:
        records = PreparedRecords(x, y, extra).take(np.array(kept))
        return prepare("north", records, Facts(("north",), rules, width, 2, 4))

    without_any(load)


def test_arrays_of_a_users_own_factory() -> None:
    x, y = features(4)

    def load(kept: list[int]) -> SiteData:
        tables = SiteTables({"north": (x[kept], y[kept])}, classes=2, test_fraction=0.3, standardize=False)
        return tables.for_record_privacy().site("north")

    without_any(load)


def test_a_pool_that_is_one_hospital() -> None:
    x, y = features(4)

    def load(kept: list[int]) -> SiteData:
        facts = Facts(("north",), Preparation(0.3, standardize=False), (4,), classes=2, seed=9)
        pool = PooledData(
            lambda: PreparedRecords(x[kept], y[kept]), facts, lambda records, _: [np.arange(len(records.y))]
        )
        return pool.for_record_privacy().site("north")

    without_any(load)


def held_out(x: Any, fraction: float = 0.3, key: int = 1) -> set[int]:
    values = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
    train, test = split_by_content(
        PreparedRecords(values, np.zeros(len(values), dtype=np.int64)), fraction, key
    )
    assert sorted([*train, *test]) == list(range(len(values)))
    return set(test.tolist())


def test_the_share_is_kept_on_average_and_the_key_decides() -> None:
    x = np.arange(4000.0)
    found = held_out(x)
    assert len(found) == pytest.approx(1200, abs=150)  # five deviations
    assert len(found & held_out(x, key=2)) == pytest.approx(360, abs=100)
    assert held_out(x, 0.0) == set()


def test_equal_records_share_a_side_however_they_are_written() -> None:
    other_nan = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)[0]
    for pair in ([0.0, -0.0], [math.nan, other_nan], [1.5, 1.5]):
        assert all(len(held_out(pair, 0.5, key)) != 1 for key in range(40))


def test_a_small_site_may_have_all_of_its_records_on_one_side() -> None:
    seen: set[object] = set()
    for seed in range(40):
        tables = SiteTables(
            {"north": ([[1.0], [2.0]], [0, 1])}, classes=2, test_fraction=0.5, standardize=False, seed=seed
        )
        try:
            seen.add(len(tables.for_record_privacy().site("north").test_y))
        except DataError as error:
            seen.add(error.message)
    assert seen == {0, 1, "site 'north' has no training records"}
