"""One volume from a DICOM series or a NIfTI file, with the distances between its voxels.

DICOM files carry names, dates and numbers of patients unless they were taken out. A file that still has one
of :data:`IDENTIFYING` is refused: training has no use for it, and what is not read cannot leave. Pseudonyms
are common, so ``PatientID`` is not among them; its value is never used. Errors name attributes, never values,
and count the files of a series, for a file's name may be a patient's.

Source: DICOM PS3.15, annex E, table E.1-1 (basic application level confidentiality profile; those that
identify by themselves).
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secfed.errors import ConfigError, DataError, installing

# Keywords of DICOM attributes that name a person or lead to one. An empty value is no value.
IDENTIFYING: Final = (
    *("PatientName", "OtherPatientNames", "OtherPatientIDs", "OtherPatientIDsSequence", "PatientBirthName"),
    *("PatientMotherBirthName", "PatientBirthDate", "PatientBirthTime", "PatientAddress"),
    *("PatientTelephoneNumbers", "PatientTelecomInformation", "PatientInsurancePlanCodeSequence"),
    *("MilitaryRank", "BranchOfService", "MedicalRecordLocator", "IssuerOfPatientID", "PatientComments"),
    *("ResponsiblePerson", "AccessionNumber", "ReferringPhysicianName", "ReferringPhysicianAddress"),
    *("ReferringPhysicianTelephoneNumbers", "PerformingPhysicianName", "NameOfPhysiciansReadingStudy"),
    *("PhysiciansOfRecord", "RequestingPhysician", "OperatorsName", "InstitutionAddress"),
)
# What dummies are written as where a value may not be empty.
_DUMMY: Final = re.compile(r"[\s^]*|anonymi[sz]ed|anonymous|removed|none|unknown", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class Volume:
    """One volume.

    Security: single-site values; nothing of it may leave except inside a protected sum.
    """

    values: NDArray[np.float32]  # [depth, height, width]
    spacing: tuple[float, float, float]  # millimetres between voxels, in that order


def read_volume(path: Path, where: str) -> Volume:
    """A folder with one DICOM series, or a ``.nii`` or ``.nii.gz`` file; ``where`` begins errors."""
    volume = _dicom(path, where) if path.is_dir() else _nifti(path, where)
    if volume.values.ndim != 3 or not volume.values.size:
        raise DataError(f"{where}: is no volume of three dimensions", remedy="leave it out, or convert it")
    if not np.isfinite(volume.values).all():
        raise DataError(f"{where}: has voxels that are NaN or infinite", remedy="repair it, or leave it out")
    if not all(0 < distance < np.inf for distance in volume.spacing):
        raise DataError(f"{where}: says no distance between voxels", remedy="repair its header")
    return volume


def refuse_identity(dataset: Any, where: str) -> None:
    """Refuse a DICOM file, or an item of a sequence in it, with an identifying attribute that has a value."""
    for element in dataset:
        if element.VR == "SQ":
            for item in element.value or ():
                refuse_identity(item, where)
        given = element.value is not None and not _DUMMY.fullmatch(str(element.value))
        private_name = element.VR == "PN"  # a person's name, in whichever attribute
        if given and (private_name or element.keyword in IDENTIFYING):
            name = element.keyword or f"({element.tag.group:04x},{element.tag.element:04x})"
            raise DataError(
                f"{where}: still has the attribute {name}",
                remedy="take identifying attributes out, for example with dcmodify or CTP, before training",
            )


def _dicom(folder: Path, where: str) -> Volume:
    try:
        import pydicom
    except ImportError:
        raise ConfigError("data.path: DICOM needs pydicom", remedy=installing("imaging")) from None
    slices, series = [], set()
    for number, path in enumerate(sorted(one for one in folder.iterdir() if one.is_file()), start=1):
        at = f"{where}, file {number}"
        try:
            dataset = pydicom.dcmread(path)
            refuse_identity(dataset, at)
            pixels = dataset.pixel_array.astype(np.float32)
        except DataError:
            raise
        except Exception:  # noqa: BLE001  pydicom raises what it meets, with values in its texts
            message = f"{at}: is no DICOM image that can be read"
            raise DataError(message, remedy="leave it out, or decompress it") from None
        if pixels.ndim != 2:
            raise DataError(f"{at}: is no single slice", remedy="convert the series to NIfTI")
        try:
            scale = float(dataset.get("RescaleSlope") or 1), float(dataset.get("RescaleIntercept") or 0)
            axes = np.array([float(one) for one in dataset.ImageOrientationPatient]).reshape(2, 3)
            height = float(np.cross(*axes) @ [float(one) for one in dataset.ImagePositionPatient])
            apart = tuple(float(one) for one in dataset.PixelSpacing)
        except (AttributeError, TypeError, ValueError):
            message = f"{at}: does not say where the slice lies"
            raise DataError(message, remedy="export it with position, orientation and spacing") from None
        slices.append((height, pixels * scale[0] + scale[1]))
        series.add((str(dataset.get("SeriesInstanceUID")), pixels.shape, apart))
    if len(slices) < 2 or len(series) != 1:
        message = f"{where}: is not one series of two slices or more"
        raise DataError(message, remedy="give every series a folder of its own")
    slices.sort(key=lambda one: one[0])
    gaps = np.diff([height for height, _ in slices])
    if gaps.min() <= 0 or gaps.max() > 1.1 * gaps.min():
        message = f"{where}: slices are missing, or lie on each other"
        raise DataError(message, remedy="export the whole series once")
    spacing = (float(np.median(gaps)), *next(iter(series))[2])
    return Volume(np.stack([pixels for _, pixels in slices]), (spacing[0], spacing[1], spacing[2]))


def _nifti(path: Path, where: str) -> Volume:
    try:
        import nibabel
    except ImportError:
        raise ConfigError("data.path: NIfTI needs nibabel", remedy=installing("imaging")) from None
    try:
        to_canonical: Any = nibabel.as_closest_canonical  # without annotations
        image = to_canonical(nibabel.load(path))
        values = np.asarray(image.dataobj, dtype=np.float32)
        x, y, z = (float(one) for one in image.header.get_zooms()[:3])
    except (
        nibabel.filebasedimages.ImageFileError,
        nibabel.spatialimages.HeaderDataError,
        *(OSError, EOFError, ValueError, zlib.error),
    ):
        message = f"{where}: is no NIfTI volume that can be read"
        raise DataError(message, remedy="save it as .nii or .nii.gz") from None
    return Volume(np.ascontiguousarray(values.T), (z, y, x))
