"""DICOM and NIfTI folders: what is read, what is refused, and a study on them."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.data.volumes.files import read_volume, refuse_identity
from secfed.algorithms.data.volumes.folders import (
    VolumesOptions,
    VolumeTable,
    VolumeTableOptions,
    fitted,
    volumes,
)
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.config.schema import checked
from secfed.errors import ConfigError, DataError

SHAPE = (4, 5, 6)
VALUES = np.arange(120, dtype=np.int16).reshape(SHAPE)
SECRET = "Muster^Maria"


@pytest.fixture
def dicom() -> Any:
    return pytest.importorskip("pydicom", reason="the extra imaging is not installed")


@pytest.fixture
def nifti() -> Any:
    return pytest.importorskip("nibabel", reason="the extra imaging is not installed")


def write_dicom(dicom: Any, folder: Path, **attributes: object) -> None:
    folder.mkdir(parents=True)
    series = dicom.uid.generate_uid()
    for number, pixels in enumerate(VALUES):
        one = dicom.Dataset()
        one.file_meta = dicom.dataset.FileMetaDataset()
        one.file_meta.TransferSyntaxUID = dicom.uid.ExplicitVRLittleEndian
        one.SOPClassUID = one.file_meta.MediaStorageSOPClassUID = dicom.uid.CTImageStorage
        one.SOPInstanceUID = one.file_meta.MediaStorageSOPInstanceUID = dicom.uid.generate_uid()
        one.SeriesInstanceUID, one.PatientID, one.PatientName = series, "pseudonym-7", ""
        one.Rows, one.Columns = pixels.shape
        one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
        one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 16, 15, 1
        one.ImageOrientationPatient, one.PixelSpacing = [1, 0, 0, 0, 1, 0], [0.5, 0.75]
        one.ImagePositionPatient = [0, 0, 3.0 * number]
        one.RescaleSlope, one.RescaleIntercept = 2, -1000
        one.PixelData = pixels.tobytes()
        for name, value in attributes.items():
            setattr(one, name, value)
        # In an order of names that is not that of the slices.
        one.save_as(folder / f"{(number * 3) % 4}.dcm", enforce_file_format=True)


def write_nifti(
    nifti: Any, path: Path, values: np.ndarray, spacing: tuple[float, ...] = (3, 0.5, 0.75)
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nifti.Nifti1Image(values.T, np.diag([*spacing[::-1], 1.0])).to_filename(path)


def test_a_series_is_put_in_order_and_scaled(dicom: Any, tmp_path: Path):
    write_dicom(dicom, tmp_path / "case")
    volume = read_volume(tmp_path / "case", "volume 1")
    assert volume.spacing == (3.0, 0.5, 0.75)
    assert np.array_equal(volume.values, VALUES * 2.0 - 1000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PatientName", SECRET),
        ("PatientBirthDate", "19700101"),
        ("OperatorsName", SECRET),
        ("PersonName", SECRET),  # of a kind that is a person's name, in an attribute that is on no list
        ("AccessionNumber", "4711"),
    ],
)
def test_a_file_that_names_somebody_is_refused_without_the_value(
    dicom: Any, tmp_path: Path, name: str, value: str
):
    write_dicom(dicom, tmp_path / "case", **{name: value})
    with pytest.raises(DataError, match=rf"volume 1, file 1: still has the attribute {name}") as error:
        read_volume(tmp_path / "case", "volume 1")
    assert value not in str(error.value)


def test_a_name_inside_a_sequence_is_found_and_dummies_are_none(dicom: Any):
    inside, outside = dicom.Dataset(), dicom.Dataset()
    outside.PatientName, outside.PatientBirthDate = "ANONYMIZED", ""
    inside.ReferringPhysicianName = SECRET
    refuse_identity(outside, "file 1")
    outside.ReferencedStudySequence = [inside]
    with pytest.raises(DataError, match="ReferringPhysicianName"):
        refuse_identity(outside, "file 1")


def test_a_series_with_a_missing_slice_is_refused(dicom: Any, tmp_path: Path):
    write_dicom(dicom, tmp_path / "case")
    (tmp_path / "case" / "3.dcm").unlink()  # the second of four
    with pytest.raises(DataError, match="slices are missing"):
        read_volume(tmp_path / "case", "volume 1")
    (tmp_path / "case" / "note.txt").write_text(SECRET)
    with pytest.raises(DataError, match="is no DICOM image") as error:
        read_volume(tmp_path / "case", "volume 1")
    assert SECRET not in str(error.value)


def sites(nifti: Any, folder: Path) -> VolumesOptions:
    for site in "ab":
        for case in range(3):
            write_nifti(nifti, folder / site / "images" / f"{case}.nii.gz", VALUES + case)
            write_nifti(nifti, folder / site / "masks" / f"{case}.nii", (VALUES > 60).astype(np.int16))
    keys = {"name": "volumes", "path": ".", "sites": ["a", "b"], "shape": [4, 4, 8], "window": [0, 200]}
    return checked(VolumesOptions, keys, "data")


def test_folders_of_volumes_and_masks(nifti: Any, tmp_path: Path):
    data = volumes(sites(nifti, tmp_path), 1, tmp_path)
    site = data.site("a")
    assert (site.train_x.shape[1:], site.train_y.shape[1:]) == ((1, 4, 4, 8), (4, 4, 8))
    assert (data.classes, site.train_y.dtype) == (2, torch.int64)
    assert float(site.train_x.min()) == 0
    assert site.train_y[0, :, :, 1:7].tolist() == (VALUES > 60)[:, :4].astype(int).tolist()
    assert len(volumes(sites(nifti, tmp_path), 1, tmp_path).for_record_privacy().site("b").train_y) > 0


def test_a_mask_with_other_values_is_an_error_here_and_around_at_a_hospital(nifti: Any, tmp_path: Path):
    options = sites(nifti, tmp_path)
    write_nifti(nifti, tmp_path / "a" / "masks" / "1.nii", VALUES)
    with pytest.raises(DataError, match="site 'a', volume 2: its mask has values other than 0 to 1"):
        volumes(options, 1, tmp_path).site("a")
    heard: list[DataError] = []
    with counted_as_defaults(heard.append):
        assert int(volumes(options, 1, tmp_path).site("a").train_y.max()) <= 1
    assert len(heard) == 1
    (tmp_path / "a" / "masks" / "1.nii").unlink()
    with pytest.raises(DataError, match="has no mask"):
        volumes(options, 1, tmp_path).site("a")


def test_a_damaged_header_is_an_error_that_names_the_volume(nifti: Any, tmp_path: Path):
    options = sites(nifti, tmp_path)
    (path,) = tmp_path.glob("b/images/1.*")
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[70:72] = b"\xff\x7f"  # the code of the values' type
    path.write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(DataError, match=r"site 'b', volume .: is no NIfTI volume"):
        volumes(options, 1, tmp_path).site("b")


def test_what_volumes_look_like_is_a_table(nifti: Any, tmp_path: Path):
    sites(nifti, tmp_path)
    keys = {"name": "volume-table", "path": ".", "sites": ["a", "b"], "intensities": [0, 100]}
    table = VolumeTable(checked(VolumeTableOptions, keys, "data"), 1, tmp_path).table("a")
    assert table.values["spacing_y"].tolist() == [0.5] * 3
    assert table.values["p50"].tolist() == [59.5, 60.5, 61.5]
    assert table.values["p99_5"].tolist() == [100.0] * 3


def test_cutting_and_padding_keep_the_middle():
    line = np.arange(1, 6, dtype=np.float32)
    assert fitted(line, (3,)).tolist() == [2, 3, 4]
    assert fitted(line, (8,)).tolist() == [0, 1, 2, 3, 4, 5, 0, 0]


def test_options_that_make_no_sense():
    keys = {"name": "volumes", "path": ".", "sites": ["a"], "shape": [4, 4, 4], "window": [0, 1]}
    for key, value in (("shape", [0, 4, 4]), ("window", [1, 1]), ("sites", ["../a"])):
        with pytest.raises(ConfigError, match=f"data.{key}"):
            checked(VolumesOptions, {**keys, key: value}, "data")


def element(keyword: str, value: object, kind: str = "LO") -> SimpleNamespace:
    return SimpleNamespace(keyword=keyword, value=value, VR=kind, tag=SimpleNamespace(group=8, element=9))


@pytest.mark.parametrize(
    "found",
    [
        element("PatientBirthDate", "19700101", "DA"),
        element("", SECRET, "PN"),
        element("AccessionNumber", 4711),
    ],
)
def test_identity_is_refused_where_the_extra_is_not_installed_too(found: SimpleNamespace):
    harmless = [element("PatientID", "pseudonym"), element("PatientName", "^^", "PN")]
    refuse_identity(harmless, "file 1")
    for dataset in ([*harmless, found], [*harmless, element("Items", [[found]], "SQ")]):
        with pytest.raises(DataError, match="file 1: still has the attribute") as error:
            refuse_identity(dataset, "file 1")
        assert str(found.value) not in str(error.value)
