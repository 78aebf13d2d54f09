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
from typing import Any

import numpy as np

from secfed.algorithms.data.pool import site_index
from secfed.algorithms.data.prepare import Preparation, PreparedRecords, prepare
from secfed.algorithms.framework.datasets import SiteData, SiteId
from secfed.errors import DataError


class SiteTables:
    """Arrays of every site, split and standardised per site like the built-in data sets.

    Args:
        tables: site to (records [n, ...], labels [n]); NaN marks a missing value.
        classes: number of classes; labels are 0 .. classes - 1.
        test_fraction: share of held-out records of each site.
        standardize: scale by the site's own training records.
        impute_median: missing values become the median of the site's training records.
        seed: of the split.
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
        patients: Mapping[SiteId, Iterable[Hashable]] | None = None,
    ) -> None:
        if not tables:
            raise DataError("the data set has no sites", remedy="give SiteTables at least two sites")
        self._tables = {site: (np.asarray(x), np.asarray(y)) for site, (x, y) in tables.items()}
        for site, (x, y) in self._tables.items():
            if len(x) != len(y):
                raise DataError(f"site {site!r} has not one label per record", remedy="align the two arrays")
            if not np.array_equal(y, np.nan_to_num(y).astype(np.int64)):
                raise DataError(
                    f"site {site!r} has labels that are not integers", remedy="use 0 .. classes - 1"
                )
        self._patients = {site: tuple(map(str, whose)) for site, whose in (patients or {}).items()}
        for site, (_, y) in self._tables.items():
            if patients is not None and len(self._patients.get(site, ())) != len(y):
                raise DataError(f"site {site!r} has not one patient per record", remedy="align the arrays")
        self.sites: tuple[SiteId, ...] = tuple(tables)
        # The array of a site without records often has no shape; that site is told of when it is used.
        known = max((x for x, _ in self._tables.values()), key=lambda x: bool(len(x)))
        self.input_shape: tuple[int, ...] = known.shape[1:]
        self.classes = classes
        self._rules = Preparation(test_fraction, standardize, impute="median" if impute_median else "none")
        self._seed = seed

    def for_record_privacy(self, *, slots: bool = False) -> SiteTables:
        """The same records, each prepared by itself.

        Args:
            slots: see :meth:`secfed.algorithms.data.prepare.Preparation.for_record_privacy`.

        Raises:
            ConfigError: a record would be prepared from other records.
        """
        self._rules = self._rules.for_record_privacy(columns=1, slots=slots)
        return self

    def site(self, site_id: SiteId) -> SiteData:
        """One site's records, prepared.

        Raises:
            DataError: no such site, or records that cannot be used.
        """
        site_index(self.sites, site_id)
        x, y = self._tables[site_id]
        return prepare(
            site_id,
            PreparedRecords(x, y.astype(np.int64), patients=self._patients.get(site_id)),
            self._rules,
            input_shape=self.input_shape,
            classes=self.classes,
            seed=self._seed,
        )
