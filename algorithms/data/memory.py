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
from numpy.typing import NDArray

from secfed.algorithms.data.prepare import SPLITS, Facts, Preparation, PreparedRecords, PreparedSites
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.targets import Targets, survival_target
from secfed.errors import DataError


class SiteTables(PreparedSites):
    """Arrays of every site, split and standardised per site like the built-in data sets.

    Args:
        tables: site to (records [n, ...], targets [n, ...]); NaN marks a missing value. Targets are labels in
            0 .. classes - 1, unless ``targets`` says otherwise; of a survival task they are [n, 2]: the time,
            and 1 if the event happened then, 0 if the patient was last seen then.
        classes: number of classes; left away if there are ``targets``.
        targets: what is learnt if not classes, for example ``Targets.of_outcomes(0, 300)``.
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
        classes: int = 0,
        targets: Targets | None = None,
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
            labels = _targets(site, y, targets)
            if patients is not None and len(whose.get(site, ())) != len(y):
                raise DataError(f"site {site!r} does not have one patient per record", remedy="align them")
            self._tables[site] = PreparedRecords(x, labels, patients=whose.get(site))
        # The array of a site without records often has no shape; that site's error comes when it is used.
        shaped = max((table.x for table in self._tables.values()), key=lambda x: bool(len(x)))
        if targets is not None and classes not in (0, targets.outputs):
            raise DataError("the data set has classes beside other targets", remedy="leave classes away")
        if targets is None and classes < 2:
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
        outputs = classes if targets is None else targets.outputs
        facts = Facts(tuple(tables), rules, shaped.shape[1:], outputs, seed, other_targets=targets)
        super().__init__(self._tables.__getitem__, facts)


def _targets(site: SiteId, given: NDArray[Any], targets: Targets | None) -> NDArray[Any]:
    """What was given as targets, in the form that a site keeps them in."""
    if targets is not None and targets.task == "survival" and given.ndim == 2 and given.shape[1] == 2:
        times, events = given[:, 0].tolist(), given[:, 1].tolist()
        if not np.isfinite(given).all() or min(times, default=0) < 0 or not {0, 1}.issuperset(events):
            message = f"site {site!r} has times below 0, or events that are neither 0 nor 1"
            raise DataError(message, remedy="give (time, 1 if the event happened then, else 0)")
        coded = [survival_target(t, bool(e), targets.times) for t, e in zip(times, events, strict=True)]
        return np.array(coded, dtype=np.int64)
    if targets is not None and not targets.values:
        return np.asarray(given, dtype=np.float64)
    labels: NDArray[Any] = np.nan_to_num(given).astype(np.int64)
    if not np.array_equal(given, labels):
        raise DataError(f"site {site!r} has labels that are no integers", remedy="number the classes")
    return labels
