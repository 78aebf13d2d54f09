"""Data sets with several views in files: any one, and ``mnist-usps``, ``bdgp`` and ``nuswide``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.folders import data_folder
from secfed.algorithms.data.multiview.base import MultiviewData, ViewRecords, ViewSites
from secfed.algorithms.data.multiview.files import Scale, ViewFile, known_values, scaled
from secfed.algorithms.data.multiview.options import (
    BdgpOptions,
    KnownFileOptions,
    MnistUspsOptions,
    MultiviewOptions,
    NuswideOptions,
    ViewsOptions,
)
from secfed.algorithms.data.partition import Partition, Pool, dirichlet, first_per_class
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.randomness import numpy_generator
from secfed.algorithms.framework.unfit import unfit
from secfed.errors import DataError

_KNOWN_LABELS: Final = "Y"


def multiview(options: MultiviewOptions, seed: int, folder: Path) -> MultiviewData:
    """Any ``.npz`` or ``.mat`` file."""
    file = ViewFile(folder / options.path)
    sizes = options.view_sizes or _sizes(file, options.views)
    if options.site_key is None:
        tied = tuple(f"data.scale.{view}" for view, rule in options.scale.items() if rule == "min-max")
        return pooled(
            lambda: _read(file, options, options.views), options, sizes, options.classes, seed, tied=tied
        )
    return ViewSites(
        lambda site, held: _read_site(file, options, site, held),
        view_of=options.view_of(seed),
        view_sizes=sizes,
        classes=options.classes,
    )


def mnist_usps(options: MnistUspsOptions, seed: int, folder: Path) -> MultiviewData:
    """5000 pairs of digits, one from MNIST and one from USPS: two views of 784 pixels, 10 classes.

    Source: Peng et al., COMIC, ICML 2019 (pairing); LeCun et al. 1998 and Hull 1994 (images).
    """
    return _known(options, seed, folder, "MNIST_USPS.mat", sizes=(784, 784), classes=10)


def bdgp(options: BdgpOptions, seed: int, folder: Path) -> MultiviewData:
    """2500 images of fruit-fly embryos: 1750 visual and 79 textual features, 5 classes.

    By default every feature is scaled by its own range over all records, as in the paper.

    Source: Cai, Wang, Huang, Ding, "Joint stage recognition and anatomical annotation of Drosophila gene
        expression patterns", Bioinformatics 28 (ISMB), 2012.
    """
    rules, tied = _rules(options)
    return _known(options, seed, folder, "BDGP.mat", sizes=(1750, 79), classes=5, scale=rules, tied=tied)


def nuswide(options: NuswideOptions, seed: int, folder: Path) -> MultiviewData:
    """5000 web images in five kinds of descriptors, 5 classes; scaled as those of ``bdgp``.

    Source: Chua et al., "NUS-WIDE: a real-world web image database", CIVR 2009.
    """
    sizes, (rules, tied) = (65, 226, 145, 74, 129), _rules(options)
    return _known(options, seed, folder, "NUSWIDE.mat", sizes=sizes, classes=5, scale=rules, tied=tied)


def pooled(
    load: Callable[[], ViewRecords],
    options: ViewsOptions,
    sizes: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    tied: tuple[str, ...] = (),
) -> ViewSites:
    """A pool, limited and divided as the options say. For ``tied`` see :class:`ViewSites`."""

    def limited() -> ViewRecords:
        records = load()
        if classes > len(records.labels):
            message = f"data.classes: {classes} classes cannot come from {len(records.labels)} records"
            raise DataError(message, remedy="set it to the number of classes that the labels have")
        if options.per_class is None:
            return records
        rng = numpy_generator(seed, "per class")
        return records.take(first_per_class(records.labels, options.per_class, rng))

    def divide(records: ViewRecords, rng: np.random.Generator) -> Partition:
        alpha, least = options.alpha, options.min_records
        return dirichlet(records.labels, len(sites), alpha, least, rng, capped=True)

    def read(site: SiteId, held: tuple[int, ...]) -> ViewRecords:
        del held  # the pool has every view; the others are left out afterwards
        return pool.records.take(pool.partition[sites.index(site)])

    view_of, pool = options.view_of(seed), Pool(limited, divide, seed)
    sites = tuple(view_of)
    return ViewSites(read, view_of=view_of, view_sizes=sizes, classes=classes, tied=tied)


def _rules(options: BdgpOptions | NuswideOptions) -> tuple[tuple[Scale, ...], tuple[str, ...]]:
    """How each view is scaled, and the key that says so where that needs the records of all sites."""
    if isinstance(options.scale, str):
        return (options.scale,) * len(options.view_names), ("data.scale",)
    ranges = {str(view): ends for view, ends in options.scale.items()}
    return tuple(ranges[view] for view in options.view_names), ()


def _known(
    options: KnownFileOptions,
    seed: int,
    folder: Path,
    name: str,
    *,
    sizes: tuple[int, ...],
    classes: int,
    scale: Sequence[Scale | None] = (None, None),
    tied: tuple[str, ...] = (),
) -> MultiviewData:
    path = data_folder() / name if options.path is None else folder / options.path
    file = ViewFile(
        path,
        absent=f"set data.path to {name}, or the environment variable SECFED_DATA to the folder that "
        "contains it",
    )

    def load() -> ViewRecords:
        celled = "X" in (stored := file.shapes()) and "X1" not in stored
        keys = [f"X{{{number}}}" if celled else f"X{number}" for number in range(1, len(sizes) + 1)]
        arrays = file.arrays(*keys, _KNOWN_LABELS)
        rules = zip(keys, scale, strict=True)
        views = tuple(scaled(file.view(key, arrays[key]), rule) for key, rule in rules)
        labels = file.labels(_KNOWN_LABELS, arrays[_KNOWN_LABELS], 0)
        counted_from_one = int(labels.max(initial=0)) == classes and int(labels.min(initial=1)) == 1
        return ViewRecords(views, labels - 1 if counted_from_one else labels)

    return pooled(load, options, sizes, classes, seed, tied=tied)


def _sizes(file: ViewFile, views: tuple[str, ...]) -> tuple[int, ...]:
    try:
        shapes = file.shapes(*views)
    except DataError as error:
        raise DataError(error.message, remedy=f"{error.remedy}; or set data.view_sizes") from None
    for view in views:
        if view not in shapes:
            raise file.has_no(view)
        if len(shapes[view]) != 2:
            raise DataError(f"data.views: {view!r} is not a table", remedy="a view has one row per record")
    return tuple(shapes[view][1] for view in views)


def _read(file: ViewFile, options: MultiviewOptions, views: tuple[str, ...]) -> ViewRecords:
    """All records; None in the place of every view that is not named."""
    arrays = file.arrays(*views, options.label_key)
    labels = file.labels(
        options.label_key, arrays[options.label_key], options.first_label, options.class_names
    )
    read: list[NDArray[np.float32] | None] = []
    for view in options.views:
        if view not in views:
            read.append(None)
            continue
        values = file.view(view, arrays[view])
        if len(values) != len(labels):
            raise DataError(
                f"{options.path}: view {view!r} does not have one row for each label",
                remedy="store one row per record; transpose the view if its records are columns",
            )
        one = scaled(known_values(values, options.missing), options.scale.get(view))
        if options.missing == "error" and not options.site_key:
            _check_rows(options.path, view, one)
        read.append(one if options.missing == "error" else np.where(np.isnan(one), np.float32(0), one))
    return ViewRecords(tuple(read), labels)


def _check_rows(path: str, view: str, values: NDArray[np.float32]) -> None:
    """Name the first record of a simulation's file that cannot be used."""
    wrong = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(wrong):
        message = f"{path}: view {view!r} has NaN or infinite features in row {wrong[0] + 1}"
        unfit(DataError(message, remedy='set data.missing to "record" or "zero", or repair the records'))


def _read_site(file: ViewFile, options: MultiviewOptions, site: SiteId, held: tuple[int, ...]) -> ViewRecords:
    key = options.site_key or ""
    records = _read(file, options, tuple(options.views[view] for view in held))
    sites = _names(file, options, key, "site", len(records.labels))
    if options.patient_key is not None:
        patients = _names(file, options, options.patient_key, "patient", len(records.labels))
        records = replace(records, patients=patients)
    return records.take(np.flatnonzero(sites == site))


def _names(file: ViewFile, options: MultiviewOptions, key: str, what: str, count: int) -> NDArray[np.str_]:
    names = file.names(key, file.arrays(key)[key], f"{what}s")
    if len(names) != count:
        message = f"{options.path}: {key!r} does not have one entry per record"
        raise DataError(message, remedy=f"name every record's {what}")
    return names
