"""``volumes``: folders of volumes with masks, for segmentation; ``volume-table``: what they look like.

    path/SITE/images/CASE.nii.gz       or path/SITE/images/CASE/ with one DICOM series
    path/SITE/masks/CASE.nii.gz        whole numbers: the class of every voxel, 0 for what is around

A volume is cut or padded around its middle to ``shape``, and intensities within ``window`` become 0 to 1:
public constants, so that no record changes another. Which constants suit can be asked of all hospitals
together: ``volume-table`` has a row for every volume, with distances between voxels and percentiles of
intensities, whose distribution over all hospitals ``secfed analyse`` finds from secure sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from secfed.algorithms.data import base
from secfed.algorithms.data.prepare import SPLITS, Facts, Preparation, PreparedRecords, PreparedSites
from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.data.volumes.files import read_volume
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.targets import Targets
from secfed.algorithms.framework.unfit import unfit
from secfed.errors import ConfigError, DataError

PERCENTILES: Final = (0.5, 50.0, 99.5)  # those that nnU-Net clips at, and the middle
_SUFFIXES: Final = (".nii.gz", ".nii")


class FolderOptions(base.SplitOptions):
    """Where volumes lie."""

    path: str = Field(description="the folder with one folder for each site, relative to the study file")
    sites: tuple[str, ...] = Field(description="an array of sites")

    @model_validator(mode="after")
    def _check_sites(self) -> Self:
        base.check_listed_sites(self.sites, "a folder of volumes")
        if any(not site or Path(site).name != site for site in self.sites):
            raise ConfigError("data.sites: a site is no name of a folder", remedy="use letters and digits")
        return self


class VolumesOptions(FolderOptions):
    """Options of ``volumes``."""

    shape: tuple[int, int, int] = Field(description="[depth, height, width] in voxels, each 1 to 512")
    window: tuple[float, float] = Field(description="[low, high], the intensities that become 0 and 1")
    classes: int = Field(default=2, ge=2, le=256, description="classes of voxels, with what is around")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not all(1 <= side <= 512 for side in self.shape):
            raise ConfigError("data.shape: a side is not 1 to 512 voxels", remedy="give smaller volumes")
        if self.window[0] >= self.window[1]:
            raise ConfigError("data.window: is empty", remedy="write the lower intensity first")
        return self


class VolumeTableOptions(FolderOptions):
    """Options of ``volume-table``."""

    intensities: tuple[float, float] = Field(
        default=(-1024.0, 3071.0), description="[low, high], bounds of intensities; beyond they are clipped"
    )
    largest_spacing: float = Field(default=20.0, gt=0, description="the largest distance of voxels, in mm")


def volumes(options: VolumesOptions, seed: int, folder: Path) -> PreparedSites:
    """The data set; files are read when a site is asked for."""
    low, high = options.window

    def read(site: SiteId) -> PreparedRecords:
        images, masks, patients = [], [], []
        for number, (name, path) in enumerate(_cases(folder / options.path / site, site), start=1):
            where = f"site {site!r}, volume {number}"
            image = read_volume(path, where)
            found = [path.parent.parent / "masks" / (name + suffix) for suffix in _SUFFIXES]
            mask_path = next((one for one in found if one.is_file()), None)
            if mask_path is None:
                raise DataError(f"{where}: has no mask", remedy="put it into masks, with the volume's name")
            mask = read_volume(mask_path, f"{where}, mask")
            if mask.values.shape != image.values.shape:
                raise DataError(f"{where}: its mask has another shape", remedy="draw it on this very volume")
            scaled = np.clip((image.values - low) / (high - low), 0.0, 1.0)
            images.append(fitted(scaled, options.shape)[None])
            masks.append(_classes(fitted(mask.values, options.shape), options.classes, where))
            patients.append(name)
        return PreparedRecords(np.stack(images), np.stack(masks), patients=tuple(patients))

    rules = Preparation(options.test_fraction, standardize=False, split=SPLITS[options.split])
    targets = Targets.of_voxels(options.classes, options.shape)
    shape = (1, *options.shape)
    facts = Facts(options.sites, rules, shape, options.classes, seed, other_targets=targets)
    return PreparedSites(read, facts)


class VolumeTable:
    """One row for every volume, as :class:`~secfed.algorithms.data.tabular.columns.TableData` has them."""

    def __init__(self, options: VolumeTableOptions, _seed: int, folder: Path) -> None:
        self.sites, self._root = options.sites, folder / options.path
        low, high = options.intensities
        spacing = [Column.number(f"spacing_{axis}", 0.0, options.largest_spacing, "mm") for axis in "zyx"]
        names = [f"p{share:g}".replace(".", "_") for share in PERCENTILES]
        self.columns = (*spacing, *(Column.number(name, low, high) for name in names))

    def table(self, site_id: SiteId) -> Table:
        """One site's volumes."""
        base.site_index(self.sites, site_id)
        rows = []
        for number, (_, path) in enumerate(_cases(self._root / site_id, site_id), start=1):
            volume = read_volume(path, f"site {site_id!r}, volume {number}")
            rows.append([*volume.spacing, *np.percentile(volume.values, PERCENTILES).tolist()])
        values = np.array(rows, dtype=np.float64).T
        clipped = {
            column.name: np.clip(one, column.low, column.high)
            for column, one in zip(self.columns, values, strict=True)
        }
        return Table(self.columns, clipped, len(rows), tuple(range(len(rows))))


def fitted(values: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Cut, or padded with 0, around the middle."""
    for axis, side in enumerate(shape):
        spare = values.shape[axis] - side
        start = max(spare, 0) // 2
        values = values.take(range(start, start + min(side, values.shape[axis])), axis=axis)
        before = max(-spare, 0) // 2
        pads = [(0, 0)] * values.ndim
        pads[axis] = (before, max(-spare, 0) - before)
        values = np.pad(values, pads)
    return values


def _classes(mask: NDArray[np.float32], classes: int, where: str) -> NDArray[np.int64]:
    """At a hospital, what is no class counts as what is around."""
    whole = np.round(mask).astype(np.int64)
    wrong = (whole != mask) | (whole < 0) | (whole >= classes)
    if wrong.any():
        message = f"{where}: its mask has values other than 0 to {classes - 1}"
        unfit(DataError(message, remedy="correct the mask, or set data.classes"))
        whole[wrong] = 0
    return whole


def _cases(folder: Path, site: SiteId) -> Iterator[tuple[str, Path]]:
    """Names and paths of a site's volumes, in the order of their names."""
    images = folder / "images"
    if not images.is_dir():
        message = f"site {site!r}: there is no folder images"
        raise DataError(message, remedy="check data.path; a site's volumes lie in SITE/images")
    found = False
    for path in sorted(images.iterdir()):
        name = path.name
        suffix = next((one for one in _SUFFIXES if name.endswith(one)), "")
        if path.is_dir() or suffix:
            found = True
            yield name.removesuffix(suffix), path
    if not found:
        raise DataError(f"site {site!r} has no volumes", remedy="put them into SITE/images")
