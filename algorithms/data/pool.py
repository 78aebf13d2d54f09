"""Data sets that are one pool of records, divided among simulated hospitals; scikit-learn carries two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from secfed.algorithms.data import bundled
from secfed.algorithms.data.base import Alpha, MinRecords, SiteCount, SplitOptions, refuse_unused_alpha
from secfed.algorithms.data.partition import Partition, Pool, dirichlet, iid
from secfed.algorithms.data.prepare import (
    SPLITS,
    Facts,
    Preparation,
    PreparedRecords,
    PreparedSites,
    scaled_by_ranges,
)
from secfed.algorithms.framework.randomness import numpy_generator

Divide = Callable[[PreparedRecords, np.random.Generator], Partition]


class PoolOptions(SplitOptions):
    """Options of a pool divided among ``sites`` simulated hospitals."""

    sites: SiteCount = 4
    partition: Literal["iid", "dirichlet"] = Field(default="iid", description='"iid" or "dirichlet"')
    alpha: Alpha = 0.5
    min_records: MinRecords = 10
    standardize: bool | Literal["public"] = Field(
        default=True,
        description='true (scale by each site\'s own statistics), "public" (by published ranges) or false',
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse_unused_alpha(self, self.partition)
        return self


class DigitsOptions(PoolOptions):
    """Options of ``digits``; pixels share one scale, so they are left as they are by default."""

    standardize: bool = Field(
        default=False,
        description="true (scale by each site's own statistics) or false; pixels are on a public scale",
    )


class MixtureOptions(PoolOptions):
    """Options of ``mixture``."""

    standardize: bool = Field(default=False, description="true (by each site's own statistics) or false")
    records: int = Field(default=1000, ge=1, le=10_000_000, description="the number of records of all sites")
    features: int = Field(default=32, ge=1, le=10_000, description="the number of features of a record")
    classes: int = Field(default=10, ge=2, le=1000, description="the number of classes, at least 2")


class PooledData(PreparedSites):
    """One pool of records, divided among simulated sites."""

    def __init__(self, load: Callable[[], PreparedRecords], facts: Facts, divide: Divide) -> None:
        self.pool = pool = Pool(load, divide, facts.seed)
        super().__init__(lambda site: pool.records.take(pool.partition[facts.sites.index(site)]), facts)


def divide_by(partition: str, sites: int, alpha: float, min_records: int) -> Divide:
    """The partition that the options name."""
    if partition == "dirichlet":
        return lambda pool, rng: dirichlet(pool.y, sites, alpha, min_records, rng)
    return lambda pool, rng: iid(len(pool.y), sites, min_records, rng)


# Smallest and largest value of each feature as the published description of the data set lists them:
# public constants, whoever takes part. Means of ten measurements, then their errors, then the worst.
BREAST_CANCER_RANGES = (
    *((6.981, 28.11), (9.71, 39.28), (43.79, 188.5), (143.5, 2501.0), (0.053, 0.163)),
    *((0.019, 0.345), (0.0, 0.427), (0.0, 0.201), (0.106, 0.304), (0.05, 0.097)),
    *((0.112, 2.873), (0.36, 4.885), (0.757, 21.98), (6.802, 542.2), (0.002, 0.031)),
    *((0.002, 0.135), (0.0, 0.396), (0.0, 0.053), (0.008, 0.079), (0.001, 0.03)),
    *((7.93, 36.04), (12.02, 49.54), (50.41, 251.2), (185.2, 4254.0), (0.071, 0.223)),
    *((0.027, 1.058), (0.0, 1.252), (0.0, 0.291), (0.156, 0.664), (0.055, 0.208)),
)


def _load_breast_cancer(options: PoolOptions) -> PreparedRecords:
    x, y = bundled.breast_cancer()
    if options.standardize == "public":
        x = scaled_by_ranges(x, BREAST_CANCER_RANGES)
    # scikit-learn counts benign as 1; a positive finding is a malignant one.
    return PreparedRecords(x, 1 - y)


def _load_digits() -> PreparedRecords:
    images, y = bundled.digits()
    return PreparedRecords(images[:, np.newaxis, :, :] / 16.0, y)


def _pooled(
    options: PoolOptions, seed: int, load: Callable[[], PreparedRecords], shape: tuple[int, ...], classes: int
) -> PooledData:
    public = type(options) is PoolOptions and 'set data.standardize = "public"'
    rules = Preparation(
        options.test_fraction,
        options.standardize is True,
        split=SPLITS[options.split],
        public_scale=public or "set data.standardize = false",
    )
    divide = divide_by(options.partition, options.sites, options.alpha, options.min_records)
    return PooledData(load, Facts(options.site_ids(), rules, shape, classes, seed), divide)


def breast_cancer(options: PoolOptions, seed: int) -> PooledData:
    """569 patients, 30 features of cell nuclei; class 1 is malignant.

    Source: Wolberg, Mangasarian, Street, Street, Breast Cancer Wisconsin (Diagnostic), UCI, 1995.
    """
    return _pooled(options, seed, lambda: _load_breast_cancer(options), (30,), 2)


def digits(options: DigitsOptions, seed: int) -> PooledData:
    """1797 handwritten digits as 1 x 8 x 8 images in [0, 1], 10 classes.

    Source: Alpaydin, Kaynak, Optical Recognition of Handwritten Digits (test part), UCI, 1998.
    """
    return _pooled(options, seed, _load_digits, (1, 8, 8), 10)


def mixture(options: MixtureOptions, seed: int) -> PooledData:
    """Records around one random centre for each class, all of spread 1: generated, as many as are wanted."""
    shape = (options.features,)

    def load() -> PreparedRecords:
        rng = numpy_generator(seed, "mixture")
        centres = rng.standard_normal((options.classes, options.features), dtype=np.float32)
        y = rng.integers(options.classes, size=options.records)
        x = rng.standard_normal((options.records, options.features), dtype=np.float32)
        return PreparedRecords(np.add(x, centres[y], out=x), y)

    return _pooled(options, seed, load, shape, options.classes)
