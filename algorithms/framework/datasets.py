"""What a data set is to an algorithm: public facts, and one site's records at a time.

Public facts (sites, input shape, classes) come from the study and the description of the data set, not
from records: the aggregator and every site know them without looking at anybody's data. In simulation
``site`` is called for every site; inside a hospital only for its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import torch

from secfed.algorithms.framework.targets import Targets
from secfed.algorithms.framework.unfit import unfit, zero_if_not_finite
from secfed.errors import DataError

SiteId = str
_LEAST_RECORDS: Final = 2  # a sum over hospitals should not hold one patient of each
_LEAST_PAIRS: Final = 2  # a pair is only ever compared with other pairs


@dataclass(frozen=True, repr=False)
class SiteData:
    """One site's labelled records, split into training and held-out records.

    Security: single-site values; nothing of it may leave except inside a protected sum.
    """

    train_x: torch.Tensor  # [n, *input_shape] float32
    train_y: torch.Tensor  # [n] int64, 0 <= label < classes; or as the data set's Targets say
    test_x: torch.Tensor  # [m, *input_shape] float32; m may be 0
    test_y: torch.Tensor  # [m], the same
    train_patients: tuple[int, ...] | None = None  # whose each record is, as numbers; None if unknown
    blank: bool = False  # whether the one training record stands for none; under [privacy] it adds zeros


@runtime_checkable
class FederatedData(Protocol):
    """Any data set that lies at several sites."""

    @property
    def sites(self) -> tuple[SiteId, ...]:
        """All sites of the study, in a fixed order."""


@runtime_checkable
class LabelledData(FederatedData, Protocol):
    """Records with class labels; with an attribute ``targets``, with what that says."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record: (features,) or (channels, height, width)."""

    @property
    def classes(self) -> int:
        """Number of classes, at least 2; or what its ``targets.outputs`` is."""

    def site(self, site_id: SiteId) -> SiteData:
        """One site's records; a DataError names the site whose are missing, empty or malformed."""


def numbered(patients: Iterable[str | None]) -> tuple[int, ...] | None:
    """Names of patients as numbers from 0, in order of appearance; None if somebody has no name."""
    known: dict[str, int] = {}
    numbers = []
    for patient in patients:
        if patient is None:
            return None
        numbers.append(known.setdefault(patient, len(known)))
    return tuple(numbers)


def no_records(site_id: SiteId) -> DataError:
    """The error of a site without a single record."""
    message = f"site {site_id!r} has no records"
    return DataError(message, remedy="check data.path and the site's name, or leave it out")


def no_training_records(site_id: SiteId) -> DataError:
    """The error of a site whose records are all held out."""
    return DataError(f"site {site_id!r} has no training records", remedy="lower data.test_fraction")


def check_pairs(site_id: SiteId, count: int) -> None:
    """Refuse a site whose training pairs have nothing to be compared with; a hospital only hears of it."""
    if count < _LEAST_PAIRS:
        message = f"site {site_id!r} has fewer than {_LEAST_PAIRS} training pairs"
        unfit(DataError(message, remedy="a pair is only ever compared with other pairs; leave the site out"))


def infinite_features(site_id: SiteId) -> DataError:
    """The error of a site with a feature that is not a float32 number; imputing does not help it."""
    message = f"site {site_id!r} has features that are infinite or too large for float32"
    return DataError(message, remedy="repair the records, or give them in a larger unit")


def _first_nan(x: torch.Tensor) -> int:
    return int(torch.isnan(x).flatten(1).any(dim=1).nonzero()[0]) + 1 if bool(torch.isnan(x).any()) else 0


def check_site(
    site_id: SiteId, data: SiteData, *, input_shape: tuple[int, ...], targets: Targets
) -> SiteData:
    """Check one site's records against the public facts; every data set passes through here.

    At a hospital the result is without NaN, Inf and unknown labels, and has at least one training record: see
    :mod:`secfed.algorithms.framework.unfit`. A DataError names the site and never a value.
    """
    who = f"site {site_id!r}"
    if not len(data.train_y):
        if not len(data.test_y):
            raise no_records(site_id)
        unfit(no_training_records(site_id))
        blank = torch.zeros(1, *input_shape), targets.blank()
        patients = None if data.train_patients is None else (0,)
        data = replace(data, train_x=blank[0], train_y=blank[1], train_patients=patients, blank=True)
    if len(data.train_y) + len(data.test_y) < _LEAST_RECORDS and not data.blank:
        unfit(DataError(f"{who} has one record", remedy="leave it out: one record is no data set"))
    if data.train_patients is not None and len(data.train_patients) != len(data.train_y):
        message = f"{who} has not one patient per training record"
        raise DataError(message, remedy="give the patient of every training record, or of none")
    checked: list[torch.Tensor] = []
    for part, x, y in (("training", data.train_x, data.train_y), ("held-out", data.test_x, data.test_y)):
        if tuple(x.shape[1:]) != input_shape or len(x) != len(y) or tuple(y.shape[1:]) != targets.shape:
            raise DataError(
                f"{who}: {part} records have shape {tuple(x.shape[1:])} with labels {tuple(y.shape[1:])}, "
                f"but the study's have shape {input_shape} with "
                + (f"labels {targets.shape}" if targets.shape else "one label each"),
                remedy="every site must prepare its records in the same way",
            )
        if x.dtype != torch.float32 or y.dtype != targets.kind:
            message = f"{who}: {part} records are {x.dtype} with labels {y.dtype}"
            wanted = str(targets.kind).removeprefix("torch.")
            raise DataError(message, remedy=f"give float32 records and {wanted} labels")
        if not bool(torch.isfinite(x).all()):
            nan = DataError(
                f"{who}: {part} records contain NaN features, the first in row {_first_nan(x)} of them",
                remedy="repair the records",
            )
            unfit(nan if bool(torch.isnan(x).any()) else infinite_features(site_id))
            x = zero_if_not_finite(x)
        checked += [x, targets.fitting(f"{who}: {part} records", y)]
    train_x, train_y, test_x, test_y = checked
    return SiteData(train_x, train_y, test_x, test_y, data.train_patients, data.blank)
