"""The published layout of MIMIC-CXR, in a made-up miniature."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from secfed.algorithms.data.image_text.mimic_cxr import MimicCxrOptions, mimic_cxr, section
from secfed.algorithms.data.tokens import HashTokenizer
from secfed.config.schema import checked
from secfed.errors import DataError
from tests.algorithms.image_text_case import picture

REPORT = """                                 FINAL REPORT
 EXAMINATION:  CHEST (PA AND LAT)

 INDICATION:  ___ year old with cough: rule out pneumonia.

 FINDINGS:

 The lungs are clear.  Note: no effusion.
 Heart size is normal.

 IMPRESSION:

 No acute process.
"""


def test_sections_of_a_report():
    assert section(REPORT, "findings") == "The lungs are clear. Note: no effusion. Heart size is normal."
    assert section(REPORT, "impression") == "No acute process."
    assert section(REPORT, "history") == section("", "findings") == ""


@pytest.fixture
def mimic(tmp_path):
    """A made-up miniature of the layout: 12 patients with two images of one study each."""
    root = tmp_path / "jpg"
    root.mkdir()
    meta, split = ["dicom_id,subject_id,study_id,ViewPosition"], ["dicom_id,study_id,subject_id,split"]
    labels = ["subject_id,study_id,Consolidation,Edema,Pleural Effusion,Pneumonia,Pneumothorax"]
    with zipfile.ZipFile(root / "reports.zip", "w") as archive:
        for at in range(12):
            patient, study = 10000032 + at, 50414267 + at
            place = f"files/p{str(patient)[:2]}/p{patient}/s{study}"
            (root / place).mkdir(parents=True)
            for view in ("PA", "LATERAL"):
                image = f"ab{at}-{view.lower()}"
                (root / place / f"{image}.jpg").write_bytes(picture(10 * at, kind="JPEG"))
                meta.append(f"{image},{patient},{study},{view}")
                split.append(f"{image},{study},{patient},{('train', 'validate', 'test', 'train')[at % 4]}")
            text = REPORT.replace("clear", f"clear {at}") if at != 3 else REPORT.replace("FINDINGS", "OTHER")
            archive.writestr(f"{place}.txt", text)
            if at != 4:
                labels.append(f"{patient},{study},,1.0,{'-1.0' if at == 1 else '0.0'},,")
    for name, lines in (("metadata", meta), ("split", split), ("chexpert", labels)):
        (root / f"mimic-cxr-2.0.0-{name}.csv").write_text("\n".join(lines))
    return tmp_path


def load_mimic(place: Path, **keys):
    table = {"name": "mimic-cxr", "path": "jpg", "reports": "reports.zip"}
    table |= {"size": 8, "sites": 1, "min_records": 1}
    return mimic_cxr(checked(MimicCxrOptions, {**table, **keys}, "data"), 0, place)


def test_mimic_frontal_images_with_their_findings_section(mimic):
    data = load_mimic(mimic)
    site = data.site("hospital-1")
    # Six studies are for training; one of them has no findings section.
    assert (len(site.train), len(site.test)) == (5, 3)
    assert site.train.findings.tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 0], *([[1, 0, 0, 0, 0]] * 3)]
    assert data.findings[0] == "edema"
    assert site.train_patients == tuple(range(5))
    words = "The lungs are clear 0. Note: no effusion. Heart size is normal."
    assert torch.equal(site.train.tokens[:1], HashTokenizer(4096, 112).encode([words]))


def test_two_images_of_a_patient_have_one_number(mimic):
    site = load_mimic(mimic, views=["PA", "LATERAL"]).site("hospital-1")
    assert site.train_patients == (0, 0, 1, 1, 2, 2, 3, 3, 4, 4)


def test_mimic_options(mimic):
    uncertain = load_mimic(mimic, uncertain="present").site("hospital-1").test.findings
    assert uncertain.tolist() == [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    labelled = load_mimic(mimic, present="labelled").site("hospital-1").test.findings
    assert labelled.tolist() == [[1, 1, 0, 0, 0]] * 3  # 0 and -1 count, no label does not
    site = load_mimic(mimic, views=["LATERAL", "PA"], held_out=["test"], sections=["impression"]).site(
        "hospital-1"
    )
    assert (len(site.train), len(site.test)) == (12, 6)
    data = load_mimic(mimic, sites=2, alpha=100.0)
    assert sum(len(data.site(site).train) for site in data.sites) == 5


def test_mimic_needs_its_tables_in_the_published_form(mimic):
    path = mimic / "jpg" / "mimic-cxr-2.0.0-split.csv"
    path.write_text(path.read_text().replace("10000032", "../10000032"))
    with pytest.raises(
        DataError, match=r"split\.csv, line 2: column 'subject_id' does not have the published form"
    ):
        load_mimic(mimic).site("hospital-1")
    path.unlink()
    with pytest.raises(DataError, match=r"has neither mimic-cxr-2\.0\.0-split\.csv nor"):
        load_mimic(mimic).site("hospital-1")
