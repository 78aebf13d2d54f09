"""Fundus images with grades, one table per clinic."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from secfed.algorithms.data.image_text.ophthalmology import MBRSET, OphthalmologyOptions, ophthalmology
from secfed.algorithms.data.tokens import HashTokenizer
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.config.schema import checked
from secfed.errors import ConfigError, DataError
from tests.algorithms.image_text_case import picture


@pytest.fixture
def clinics(tmp_path):
    """Two clinics, each with its own table and images."""
    for name, header in (
        ("one", "Image name,Retinopathy grade,Risk"),
        ("two", "image_id,DR,edema,patient_id"),
    ):
        (tmp_path / name).mkdir()
        lines = [header]
        for at in range(6):
            (tmp_path / name / f"{at}.jpg").write_bytes(picture(40, "RGB", kind="JPEG"))
            lines.append(
                f"{at}.jpg,{at % 4},{at % 2}" if name == "one" else f"{at},{at % 5}.0,{at % 2},p{at // 2}"
            )
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    return tmp_path


CLINICS = {
    "one": {
        "table": "one.csv",
        "images": "one",
        "image_column": "Image name",
        "retinopathy_column": "Retinopathy grade",
        "edema_column": "Risk",
    },
    "two": {
        "table": "two.csv",
        "images": "two",
        "image_column": "image_id",
        "image_suffix": ".jpg",
        "retinopathy_column": "DR",
        "edema_column": "edema",
        "patient_column": "patient_id",
    },
}


def load_clinics(place: Path, clinics=CLINICS, **keys):
    table = {"name": "ophthalmology", "size": 8, "clinics": clinics, "test_fraction": 0.0, **keys}
    return ophthalmology(checked(OphthalmologyOptions, table, "data"), 0, place)


def test_grades_become_captions(clinics):
    data = load_clinics(clinics)
    assert (data.sites, data.image_shape) == (("one", "two"), (3, 8, 8))
    site = data.site("two")
    captions = ["retinal image with no diabetic retinopathy and no risk of macular edema"]
    captions += ["retinal image with mild diabetic retinopathy and risk of macular edema"]
    assert torch.equal(site.train.tokens[:2], HashTokenizer(4096, 24).encode(captions))
    assert site.train.findings.tolist() == [[0, 0], [1, 1], [1, 0], [1, 1], [1, 0], [0, 1]]
    assert len(data.site("one").train) == 6
    assert site.train_patients == (0, 0, 1, 1, 2, 2)
    assert data.site("one").train_patients is None  # its table does not name them


def test_a_grade_without_a_name_is_refused(clinics):
    (clinics / "one.csv").write_text("Image name,Retinopathy grade,Risk\n0.jpg,9,0")
    with pytest.raises(DataError, match=r"one\.csv, line 2: column 'Retinopathy grade' is not a grade"):
        load_clinics(clinics).site("one")


def test_at_a_hospital_a_grade_without_a_name_counts_as_none(clinics):
    (clinics / "one.csv").write_text("Image name,Retinopathy grade,Risk\n0.jpg,9,1\n1.jpg,,yes")
    heard: list[DataError] = []
    with counted_as_defaults(heard.append):
        site = load_clinics(clinics).site("one")
    assert site.train.findings.tolist() == [[0, 1], [0, 1]]
    assert ["line 2" in str(heard[0]), "line 3" in str(heard[1])] == [True, True]


def test_a_hospital_without_any_grade_answers_as_the_others(clinics):
    """Whose lines are left out is no answer to a study's author, who names the columns."""
    (clinics / "one.csv").write_text("Image name,Retinopathy grade,Risk\n0.jpg,,1\n1.jpg,,0")
    heard: list[DataError] = []
    with counted_as_defaults(heard.append):
        site = load_clinics(clinics, {**CLINICS, "one": {**CLINICS["one"], "ungraded": "skip"}}).site("one")
    assert len(site.train.findings) == 1
    assert "has no records" in str(heard[0])


def mbrset(place: Path, rows: list[str]) -> Path:
    """The folder of mBRSET as published: a table with a line per photograph, and the photographs."""
    (place / "images").mkdir()
    table = ["patient,age,laterality,file,final_artifacts,final_quality,final_icdr,final_edema"]
    for row in rows:
        patient, photograph, icdr, edema = row.split()
        (place / "images" / photograph).write_bytes(picture(40, "RGB", kind="JPEG"))
        grades = [value.replace("-", "") for value in (icdr, edema)]
        table.append(f"{patient},61,left,{photograph},no,yes,{','.join(grades)}")
    (place / "labels_mbrset.csv").write_text("\n".join(table))
    return place


def test_the_published_folder_of_mbrset(tmp_path):
    rows = ["1 1.1.jpg 0.0 no", "1 1.2.jpg 2.0 yes", "1 1.3.jpg - no", "2 2.1.jpg 4.0 -", "2 2.2.jpg 0.0 no"]
    place = mbrset(tmp_path, rows)
    site = load_clinics(place, {"mbrset": dict(MBRSET)}).site("mbrset")
    assert site.train.findings.tolist() == [[0, 0], [1, 1], [0, 0]]  # without those that nobody could grade
    assert site.train_patients == (0, 0, 1)
    graded = {key: value for key, value in MBRSET.items() if key != "ungraded"}
    with pytest.raises(DataError, match=r"line 4: column 'final_icdr' is not a grade") as caught:
        load_clinics(place, {"mbrset": graded}).site("mbrset")
    assert 'ungraded = "skip"' in caught.value.remedy


def test_a_clinic_needs_its_columns(clinics):
    for broken, says in (
        ({"table": "one.csv"}, r"data\.clinics\.one\.images: is missing"),
        ({**CLINICS["one"], "images": ".."}, r"data\.clinics\.one\.images: leads outside"),
        ({**CLINICS["one"], "colour": "red"}, r"data\.clinics\.one\.colour: unknown key"),
        ({**CLINICS["one"], "ungraded": "keep"}, r'data\.clinics\.one\.ungraded: is not "skip"'),
    ):
        with pytest.raises(ConfigError, match=says):
            load_clinics(clinics, {"one": broken})
