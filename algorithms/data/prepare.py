"""From one site's records to training and held-out tensors, using nothing but that site's records.

Every statistic is of the site's own training records, and ties each record to every other one, as a split by
class does; for differential privacy of records see :meth:`Preparation.for_record_privacy`.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.data.base import site_index
from secfed.algorithms.framework import datasets
from secfed.algorithms.framework.datasets import SiteData, SiteId
from secfed.algorithms.framework.randomness import derive_seed, numpy_generator
from secfed.algorithms.framework.targets import Targets
from secfed.algorithms.framework.unfit import unfit
from secfed.errors import ConfigError, DataError

_SPLIT: Final = b"secfed/v1 split"  # BLAKE2b's personalisation, at most 16 bytes
Sides = tuple[NDArray[np.int64], NDArray[np.int64]]  # positions of training and of held-out records
Split = Literal["stratified", "slots", "content"]
SPLITS: Final[dict[str, Split]] = {"class": "stratified", "position": "slots", "content": "content"}
_KEYS: Final = {split: key for key, split in SPLITS.items()}  # as data.split has them
LARGEST: Final = float(np.finfo(np.float32).max)  # a feature above it would be infinite as float32
_FLAT = 1e-8  # a spread below this is a constant column; dividing by it would only amplify rounding


@dataclass(frozen=True, repr=False)
class PreparedRecords:
    """Records before the split."""

    x: NDArray[Any]  # [n, ...] float64; NaN where a value is missing
    y: NDArray[Any]  # [n] labels; of other tasks [n, ...] as the data set's Targets say
    # [n, k] float64 columns (one-hot, missing-value indicators) that follow those of x, neither imputed nor
    # standardised
    extra: NDArray[Any] | None = None
    patients: tuple[str, ...] | None = None  # [n] names; None where nobody says
    where: tuple[str, ...] | None = None  # [n] file and line, for errors; None counts rows

    def take(self, rows: NDArray[Any]) -> PreparedRecords:
        """The records at these positions."""
        extra = None if self.extra is None else self.extra[rows]
        patients = None if self.patients is None else tuple(self.patients[int(row)] for row in rows)
        where = None if self.where is None else tuple(self.where[int(row)] for row in rows)
        return PreparedRecords(self.x[rows], self.y[rows], extra, patients, where)


@dataclass(frozen=True)
class Preparation:
    """How a site prepares its records."""

    test_fraction: float  # share of held-out records, 0 <= f < 1
    standardize: bool  # subtract the mean and divide by the spread of the training records
    fixed: tuple[int, ...] = ()  # columns on a public scale, which are not standardised
    # A column without a single known training value becomes 0, which after standardisation is "average"; so
    # does every missing value under "centre".
    impute: Literal["median", "centre", "none"] = "none"
    # "stratified" by class; or each record drawn by itself, from its position and the seed ("slots") or what
    # it contains and the seed ("content"). Known patients are drawn as a whole.
    split: Split = "stratified"
    # What to do instead of scaling by a site's own statistics, and of imputing its medians.
    public_scale: str = "set data.standardize = false"
    known_values: str = "repair the records"

    def for_record_privacy(self, columns: int, *, slots: bool) -> Preparation:
        """The same preparation, each record (of so many numeric columns) by itself.

        With ``slots`` neighbouring data sets differ in the content of one record, and no position changes:
        the split is by position, so a record that is replaced stays on its side. Otherwise they differ by
        the presence of a record: the split is by content, so all others stay.
        """
        if self.standardize and len(set(self.fixed)) < columns:
            raise ConfigError(
                "data.standardize: scaling by a site's own statistics lets one record change all others, "
                "so no epsilon per record would be true",
                remedy=self.public_scale,
            )
        if self.impute == "median":
            raise ConfigError(
                "data.impute: a site's median lets one record change all others, so no epsilon per "
                "record would be true",
                remedy=self.known_values,
            )
        split: Split = "slots" if slots else "content"
        if self.split not in ("stratified", split):
            raise ConfigError(
                f'data.split: "{_KEYS[self.split]}" draws held-out records in a way that this [privacy] '
                "cannot protect",
                remedy=f'set data.split = "{_KEYS[split]}"',
            )
        return replace(self, split=split)


@dataclass(frozen=True)
class Facts:
    """What is public of a data set of labelled records."""

    sites: tuple[SiteId, ...]
    rules: Preparation
    input_shape: tuple[int, ...]
    classes: int
    seed: int
    numeric: int = 1  # columns that are standardised unless the rules fix them
    other_targets: Targets | None = None  # None: classes

    @property
    def targets(self) -> Targets:
        """What a record's target is."""
        return self.other_targets or Targets.of_classes(self.classes)


def prepare(site_id: SiteId, records: PreparedRecords, facts: Facts) -> SiteData:
    """Split, impute, standardise and check one site's records; seed and site's name decide the split."""
    if not len(records.y):
        raise datasets.no_records(site_id)
    rules = facts.rules
    train, test = _divided(site_id, records, rules, facts.seed)
    if not len(train):
        unfit(datasets.no_training_records(site_id))
    x = records.x.astype(np.float64)
    large = np.abs(x) > LARGEST
    if large.any():  # named here: standardising would make it NaN, or every other value 0
        unfit(datasets.infinite_features(site_id))
        x[large] = np.nan
    with np.errstate(over="ignore", invalid="ignore"):  # all else is check_site's business
        if rules.impute == "median":
            x = _imputed(x, x[train])
        elif rules.impute == "centre":
            x = np.where(np.isnan(x), 0.0, x)
        if rules.standardize:
            x = _standardised(x, x[train], rules.fixed)
        if records.extra is not None:
            x = np.concatenate([x, records.extra], axis=1)
        if np.isnan(x).any():
            unfit(_unknown_value(site_id, records, x, rules))
            x = np.where(np.isnan(x), 0.0, x)
        inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    labels = torch.from_numpy(np.ascontiguousarray(records.y)).to(facts.targets.kind)
    whose = None if records.patients is None else [records.patients[row] for row in train.tolist()]
    patients = None if whose is None else datasets.numbered(whose)
    data = SiteData(inputs[train], labels[train], inputs[test], labels[test], patients)
    return datasets.check_site(site_id, data, input_shape=facts.input_shape, targets=facts.targets)


class PreparedSites:
    """A data set of labelled records, which every site reads, and prepares by the same rules."""

    def __init__(self, read: Callable[[SiteId], PreparedRecords], facts: Facts) -> None:
        self.sites, self.input_shape, self.classes = facts.sites, facts.input_shape, facts.classes
        self.targets = facts.targets
        self._read, self._facts = read, facts

    def for_record_privacy(self, *, slots: bool = False) -> Self:
        """The same records, each prepared by itself; see :meth:`Preparation.for_record_privacy`."""
        rules = self._facts.rules.for_record_privacy(self._facts.numeric, slots=slots)
        self._facts = replace(self._facts, rules=rules)
        return self

    def site(self, site_id: SiteId) -> SiteData:
        """One site's records, prepared."""
        site_index(self.sites, site_id)
        return prepare(site_id, self._read(site_id), self._facts)


def _divided(site_id: SiteId, records: PreparedRecords, rules: Preparation, seed: int) -> Sides:
    if records.patients is not None:
        key = derive_seed(seed, "split by patient", site_id)
        return split_by_patient(records.patients, rules.test_fraction, key, slots=rules.split == "slots")
    if rules.split == "content":
        return split_by_content(records, rules.test_fraction, derive_seed(seed, "split by content", site_id))
    rng = numpy_generator(seed, "split", site_id)
    if rules.split == "slots":
        return _sides(rng.random(len(records.y)) < rules.test_fraction)
    # A share of each class; of targets that are none, of all records.
    plain = records.y.ndim == 1 and np.issubdtype(records.y.dtype, np.integer)
    classes = records.y if plain else np.zeros(len(records.y), dtype=np.int64)
    return split(classes, rules.test_fraction, rng)


def split(y: NDArray[np.int64], test_fraction: float, rng: np.random.Generator) -> Sides:
    """Ascending positions of the training and the held-out records.

    Each class gives its share to within one record, however rare it is.
    """
    shuffled = rng.permutation(len(y))
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    steps = np.floor(np.arange(len(y) + 1) * test_fraction + 0.5)
    held_out = np.diff(steps) > 0
    return np.sort(by_class[~held_out]), np.sort(by_class[held_out])


def split_by_content(records: PreparedRecords, test_fraction: float, key: int) -> Sides:
    """Positions of the training and the held-out records, each drawn from what the record itself contains.

    Adding or removing a record leaves every other one where it is; identical records share one place. Nothing
    in the records may follow from other records. The key is below 2^64.
    """
    count = len(records.y)
    parts = [np.asarray(records.x, dtype=np.float64).reshape(count, -1), records.y.reshape(count, -1)]
    if records.extra is not None:
        parts.insert(1, records.extra.reshape(count, -1))
    rows = np.concatenate([np.asarray(part, dtype="<f8") for part in parts], axis=1)
    rows = np.where(np.isnan(rows), np.nan, rows) + 0.0  # one NaN and one zero: equal records, equal bytes
    keyed = hashlib.blake2b(digest_size=8, key=key.to_bytes(8, "big"), person=_SPLIT)
    threshold, held_out = int(test_fraction * 2.0**64), np.zeros(count, dtype=np.bool_)
    for at, row in enumerate(np.ascontiguousarray(rows, dtype="<f8")):
        hashed = keyed.copy()
        hashed.update(row)
        held_out[at] = int.from_bytes(hashed.digest(), "big") < threshold
    return _sides(held_out)


def split_by_patient(patients: Sequence[str], test_fraction: float, key: int, *, slots: bool) -> Sides:
    """Positions of the training and the held-out records; all records of a patient share a side.

    A patient's side follows from the name and the key, so adding or removing records leaves all others where
    they are. With slots it follows from the patient's number, in the order in which patients are first seen:
    a patient that is replaced by one of another name, with as many records in the same places, stays there.
    """
    whose = [str(number) for number in datasets.numbered(patients) or ()] if slots else list(patients)
    side = {who: derive_seed(key, "held out", who) < test_fraction * 2.0**63 for who in set(whose)}
    held_out = np.array([side[who] for who in whose], dtype=np.bool_)
    return _sides(held_out)


def _sides(held_out: NDArray[np.bool_]) -> Sides:
    return np.flatnonzero(~held_out).astype(np.int64), np.flatnonzero(held_out).astype(np.int64)


def scaled_by_ranges(x: NDArray[Any], ranges: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """Columns on [-1, 1] by public ranges (low, high); values outside go to the nearest end, NaN stays."""
    low, high = np.array(ranges, dtype=np.float64).T
    return np.asarray(np.clip(2.0 * (x - low) / (high - low) - 1.0, -1.0, 1.0))


def _unknown_value(
    site_id: SiteId, records: PreparedRecords, x: NDArray[np.float64], rules: Preparation
) -> DataError:
    """Names the first record with a value that is missing and that nothing is put in the place of."""
    row = int(np.flatnonzero(np.isnan(x).reshape(len(x), -1).any(axis=1))[0])
    where = f"row {row + 1} of its records" if records.where is None else records.where[row]
    message = f"site {site_id!r}: a feature in {where} is NaN or missing"
    return DataError(message, remedy=rules.known_values)


def _imputed(x: NDArray[np.float64], train: NDArray[np.float64]) -> NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without a known value: handled below
        median = np.nanmedian(train, axis=0)
    return np.where(np.isnan(x), np.nan_to_num(median, nan=0.0), x)


def _standardised(
    x: NDArray[np.float64], train: NDArray[np.float64], fixed: tuple[int, ...]
) -> NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without a known value
        mean, spread = np.nanmean(train, axis=0), np.nanstd(train, axis=0)
    scaled: NDArray[np.float64] = (x - mean) / np.where(spread > _FLAT, spread, 1.0)
    scaled[:, list(fixed)] = x[:, list(fixed)]
    return scaled
