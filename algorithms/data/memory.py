"""Data for a user's own factory: arrays per site in, a federated data set out.

Example:
    A module ``my_hospital.py`` and ``name = "my_hospital:wards"`` in ``[data]``::

        def wards(path: str) -> SiteTables:
            file = numpy.load(path)
            tables = {ward: (file[ward + "_x"], file[ward + "_y"]) for ward in ("north", "south")}
            return SiteTables(tables, classes=2)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from secfed.algorithms.data.prepare import SPLITS, Facts, Preparation, PreparedRecords, PreparedSites
from secfed.algorithms.framework.datasets import SiteId
from secfed.errors import DataError


class SiteTables(PreparedSites):
    """Arrays of every site, split and standardised per site like the built-in data sets.

    Args:
        tables: site to (records [n, ...], labels [n] in 0 .. classes - 1); NaN marks a missing value.
        classes: number of classes.
        test_fraction: share of held-out records of each site.
        standardize: scale by the site's own training records.
        impute_median: missing values become the median of the site's training records.
        seed: of the split.
        split: how held-out records are drawn: ``class`` takes the share of each class; ``content`` and
            ``position`` draw every record by itself, as ``[privacy]`` that hides records needs it.
        patients: site to the patient of every record (names or numbers); a patient is never in both parts.
    """

    def __init__(
        self,
        tables: Mapping[SiteId, tuple[Any, Any]],
        *,
        classes: int,
        test_fraction: float = 0.2,
        standardize: bool = True,
        impute_median: bool = False,
        seed: int = 0,
        split: Literal["class", "content", "position"] = "class",
        patients: Mapping[SiteId, Iterable[Hashable]] | None = None,
    ) -> None:
        if not tables:
            raise DataError("the data set has no sites", remedy="give SiteTables at least two sites")
        whose = {site: tuple(map(str, names)) for site, names in (patients or {}).items()}
        self._tables: dict[SiteId, PreparedRecords] = {}
        for site, table in tables.items():
            x, y = map(np.asarray, table)
            if len(x) != len(y):
                raise DataError(f"site {site!r} does not have one label per record", remedy="align them")
            labels = np.nan_to_num(y).astype(np.int64)
            if not np.array_equal(y, labels):
                raise DataError(f"site {site!r} has labels that are no integers", remedy="number the classes")
            if patients is not None and len(whose.get(site, ())) != len(y):
                raise DataError(f"site {site!r} does not have one patient per record", remedy="align them")
            self._tables[site] = PreparedRecords(x, labels, patients=whose.get(site))
        # The array of a site without records often has no shape; that site's error comes when it is used.
        shaped = max((table.x for table in self._tables.values()), key=lambda x: bool(len(x)))
        if classes < 2:
            raise DataError(f"the data set has {classes} classes", remedy="give SiteTables at least two")
        rules = Preparation(
            test_fraction,
            standardize,
            impute="median" if impute_median else "none",
            split=SPLITS[split],
            public_scale="in your factory, give SiteTables standardize=False, and records on a public scale",
            known_values="repair the records"
            + (
                ", and leave impute_median away"
                if impute_median
                else ", or give SiteTables impute_median=True"
            ),
        )
        facts = Facts(tuple(tables), rules, shaped.shape[1:], classes, seed)
        super().__init__(self._tables.__getitem__, facts)
