from __future__ import annotations

import io
import json
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from secfed.algorithms.data.image_files import Preparation, open_source, prepared_image
from secfed.algorithms.data.image_text import ImageTextData
from secfed.algorithms.data.image_text_files import image_text
from secfed.algorithms.data.image_text_options import ImageTextOptions
from secfed.algorithms.data.mimic_cxr import MimicCxrOptions, mimic_cxr, section
from secfed.algorithms.data.ophthalmology import OphthalmologyOptions, ophthalmology
from secfed.algorithms.data.tokens import HashTokenizer
from secfed.algorithms.options import checked
from secfed.errors import ConfigError, DataError

Image = pytest.importorskip("PIL.Image")

BY_COLUMN = {"sites": ["north", "south"], "site_column": "site", "test_fraction": 0.0}


def picture(level: int, mode: str = "L", size=(20, 10), kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    colour = level if mode in ("L", "I;16") else (level, 0, 0)
    Image.new(mode, size, colour).save(stream, kind)
    return stream.getvalue()


@pytest.fixture
def place(tmp_path):
    """A folder with 24 pairs at two sites, as JSON Lines and CSV, and their images in a folder and a zip."""
    (tmp_path / "images").mkdir()
    rows, lines = [], ["image,text,site,edema,mass,part,patient"]
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for at in range(24):
            site, part = ("north", "south")[at % 2], ("train", "train", "test", "other")[at % 4]
            name, content = f"{at}.png", picture(10 * at)
            (tmp_path / "images" / name).write_bytes(content)
            archive.writestr(name, content)
            text = f"image number {at}"
            rows.append(
                {
                    "image": name,
                    "text": text,
                    "site": site,
                    "edema": at % 3 == 0,
                    "mass": None if at % 2 else 1,
                    "part": part,
                    "patient": f"p{at // 4}",
                    "note": {"kind": ["CT", "MR"][at // 12]},
                }
            )
            lines.append(f"{name},{text},{site},{int(at % 3 == 0)},{'' if at % 2 else 1},{part},p{at // 4}")
        table = "\n".join(map(json.dumps, rows)) + "\n\n"
        archive.writestr("pairs.jsonl", table)
    (tmp_path / "pairs.jsonl").write_text(table)
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    return tmp_path


def load(place: Path, seed: int = 0, **keys):
    keys = {key: value for key, value in {"images": "images", **keys}.items() if value is not None}
    table = {"name": "image-text", "path": ".", "table": "pairs.jsonl", "size": 8, "text_length": 6}
    if "partition" not in keys:
        keys = {**BY_COLUMN, **keys}
    if "split_column" in keys or "test_table" in keys:
        keys.pop("test_fraction", None)
    options = checked(ImageTextOptions, {**table, **keys}, "data")
    return image_text(options, seed, place)


def tokens(*texts: str) -> torch.Tensor:
    return HashTokenizer(4096, 6).encode(texts)


@pytest.mark.parametrize(
    "keys",
    [
        {"table": "pairs.jsonl"},
        {"table": "pairs.csv"},
        {"table": "pairs.jsonl", "images": "images.zip"},
        {"path": "images.zip", "images": None},
        {"table": "pairs.jsonl", "images": None, "image_folder": "images/"},
    ],
)
def test_tables_and_images_become_pairs(place, keys):
    data = load(place, finding_columns=["edema", "mass"], **keys)
    assert isinstance(data, ImageTextData)
    assert data.findings == ("edema", "mass")
    site = data.site("south")
    assert (len(site.train), len(site.test)) == (12, 0)
    assert torch.equal(site.train.tokens, tokens(*(f"image number {at}" for at in range(1, 24, 2))))
    assert site.train.findings.tolist() == [[int(at % 3 == 0), 0] for at in range(1, 24, 2)]
    # Twice as wide as high: a quarter of the height above and below is border.
    assert site.train.images[3, 0, 0].tolist() == [-1.0] * 8
    assert torch.allclose(site.train.images[3, 0, 2:6], torch.tensor(70 / 255 * 2 - 1))


def test_only_its_own_images_are_read(place):
    for at in range(0, 24, 2):
        (place / "images" / f"{at}.png").unlink()
    assert len(load(place).site("south").train) == 12
    with pytest.raises(DataError, match="line 1: there is no such file"):
        load(place).site("north")


def test_one_file_per_site(place):
    rows = (place / "pairs.jsonl").read_text().splitlines()
    (place / "north.jsonl").write_text("\n".join(rows[:5]))
    (place / "south.jsonl").write_text("\n".join(rows[5:7]))
    os.rename(place / "images", place / "north")
    os.rename(place / "images.zip", place / "south.zip")
    data = load(
        place, partition="by-file", sites=["north"], table="{site}.jsonl", images="{site}", test_fraction=0.0
    )
    assert len(data.site("north").train) == 5
    data = load(
        place,
        partition="by-file",
        sites=["south"],
        table="{site}.jsonl",
        images="{site}.zip",
        test_fraction=0.0,
    )
    assert len(data.site("south").train) == 2


def test_a_split_column_decides_and_other_values_are_left_out(place):
    site = load(place, split_column="part").site("north")
    assert (len(site.train), len(site.test)) == (6, 6)
    site = load(place, split_column="part", test_values=["other"]).site("south")
    assert (len(site.train), len(site.test)) == (6, 6)


def test_a_second_file_is_held_out(place):
    rows = (place / "pairs.jsonl").read_text().splitlines()
    (place / "held.jsonl").write_text("\n".join(rows[:3]))
    site = load(place, test_table="held.jsonl").site("north")
    assert (len(site.train), len(site.test)) == (12, 2)


def test_the_place_of_a_pair_depends_on_its_patient_alone(place):
    def parts(**keys):
        pool = load(place, partition="iid", sites=1, min_records=1, test_fraction=0.4, **keys)
        return {entry.image: entry.held_out for part in pool.entries for entry in part}

    whole = parts(patient_column="patient")
    assert len(set(whole.values())) == 2
    for patient in range(6):
        assert len({whole[f"{at}.png"] for at in range(4 * patient, 4 * patient + 4)}) == 1
    rows = (place / "pairs.jsonl").read_text().splitlines()
    (place / "pairs.jsonl").write_text("\n".join(rows[5:]))
    assert parts(patient_column="patient") == {name: whole[name] for name in parts(patient_column="patient")}
    used = parts(patient_column="patient", share=0.5)
    assert 0 < len(used) < 19
    assert used.items() <= whole.items()


@pytest.mark.parametrize("partition", ["dirichlet", "iid"])
def test_a_pool_is_divided_without_loss_or_overlap(place, partition):
    keys = {"finding_columns": ["edema", "mass"]} if partition == "dirichlet" else {}
    data = load(place, partition=partition, sites=3, min_records=2, split_column="part", **keys)
    seen = [
        tuple(row)
        for site in data.sites
        for part in ("train", "test")
        for row in getattr(data.site(site), part).tokens.tolist()
    ]
    assert len(set(seen)) == len(seen) == 18
    assert 0 <= data.total_variation <= 1
    assert torch.equal(
        data.site("hospital-2").train.images,
        load(place, partition=partition, sites=3, min_records=2, split_column="part", **keys)
        .site("hospital-2")
        .train.images,
    )


def test_categories_become_findings_also_from_nested_columns(place):
    data = load(place, categories={"note.kind": ["CT", "MR"]}, uncertain="present")
    assert data.findings == ("CT", "MR")
    assert data.site("north").train.findings.tolist() == [[1, 0]] * 6 + [[0, 1]] * 6


def test_uncertain_findings_count_as_the_options_say(place):
    lines = (place / "pairs.csv").read_text().replace(",north,1,", ",north,-1.0,")
    (place / "pairs.csv").write_text(lines)
    for uncertain, count in (("absent", 0), ("present", 4)):
        data = load(place, table="pairs.csv", finding_columns=["edema"], uncertain=uncertain)
        assert int(data.site("north").train.findings.sum()) == count


def test_one_image_of_each_report_is_held_out(place):
    text = (place / "pairs.jsonl").read_text()
    for at in range(24):
        text = text.replace(f'number {at}"', f'number {at // 8}"')
    (place / "pairs.jsonl").write_text(text)
    site = load(place, split_column="part", distinct_test=True).site("north")
    assert (len(site.train), len(site.test)) == (6, 3)


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/passwd", "a/../../b", "C:x.png", "a\\b.png", ".", "x\0y"]
)
@pytest.mark.parametrize("images", ["images", "images.zip"])
def test_a_name_that_leads_outside_is_refused_with_its_line_and_without_the_name(place, name, images):
    (place / "secret.png").write_bytes(picture(1))
    row = {"image": name, "text": "a", "site": "north"}
    (place / "pairs.jsonl").write_text("\n" + json.dumps(row))
    with pytest.raises(DataError, match=r"pairs\.jsonl, line 2: ") as error:
        load(place, images=images).site("north")
    assert "secret" not in str(error.value)
    assert "outside" in str(error.value)


def test_a_link_that_leads_outside_is_refused(place):
    (place / "secret.png").write_bytes(picture(1))
    (place / "images" / "0.png").unlink()
    (place / "images" / "0.png").symlink_to(place / "secret.png")
    with pytest.raises(DataError, match=r"line 1: the file name leads outside"):
        load(place).site("north")


def rules(**keys):
    usual = {
        "size": 8,
        "channels": 1,
        "resize": "pad",
        "constants": ((0.0,), (1.0,)),
        "max_bytes": 1 << 20,
        "max_pixels": 10_000,
    }
    return Preparation(**{**usual, **keys})


@pytest.mark.parametrize("source", ["images", "images.zip"])
def test_files_beyond_the_limit_are_not_read(place, source):
    with open_source(place / source) as files:
        assert len(files.read("1.png", 1 << 20, "here")) > 60
        with pytest.raises(DataError, match="here: the file has more than"):
            files.read("1.png", 60, "here")


def test_a_bomb_in_an_archive_is_read_to_the_limit_only(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", b"\0" * (64 << 20))
    tracemalloc.start()
    with open_source(tmp_path / "bomb.zip") as files, pytest.raises(DataError, match="more than 1 MiB"):
        files.read("a.png", 1 << 20, "here")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_an_image_beyond_the_limit_is_not_decoded():
    with pytest.raises(DataError, match=r"here: the image has more than 0\.01 million pixels"):
        prepared_image(picture(1, size=(101, 100)), rules(), "here")


@pytest.mark.parametrize(
    "content", [b"", b"GIF89a", picture(3, kind="GIF"), picture(3)[:50], b"\x89PNG\r\n\x1a\n" * 9]
)
def test_what_is_no_expected_image_is_refused(content):
    with pytest.raises(DataError, match="here: the image cannot be read"):
        prepared_image(content, rules(), "here")


def test_grey_and_colour():
    grey = prepared_image(picture(255, "RGB"), rules(), "here")
    assert grey.shape == (1, 8, 8)
    assert grey.max() == pytest.approx(76 / 255)  # 0.299 of red
    colour = prepared_image(picture(255, "RGB"), rules(channels=3), "here")
    assert colour[:, 4, 4].tolist() == [1.0, 0.0, 0.0]


def test_sixteen_bits_are_scaled_and_not_cut():
    for mode_kind in ("PNG", "TIFF"):
        image = prepared_image(picture(32768, "I;16", kind=mode_kind), rules(resize="stretch"), "here")
        assert image.mean() == pytest.approx(0.5, abs=0.01)


def test_ways_to_resize():
    wide = np.zeros((8, 16), dtype=np.uint8)
    wide[:, 4:12] = 255
    stream = io.BytesIO()
    Image.fromarray(wide).save(stream, "PNG")
    results = {
        way: prepared_image(stream.getvalue(), rules(resize=way), "here")
        for way in ("pad", "crop", "stretch")
    }
    assert results["crop"].min() == 1.0
    assert results["pad"][0, 0].max() == 0.0
    assert results["pad"][0, 4, 4] == results["stretch"][0, 0, 4] == 1.0
    assert results["stretch"][0, 0, 0] < 0.1


def test_ways_to_normalise():
    content = picture(51)
    assert prepared_image(content, rules(resize="stretch", constants=((0.5,), (0.5,))), "here")[
        0, 0, 0
    ] == pytest.approx(-0.6)
    ramp = np.arange(64, dtype=np.uint8).reshape(8, 8)
    stream = io.BytesIO()
    Image.fromarray(ramp).save(stream, "PNG")
    own = prepared_image(stream.getvalue(), rules(constants=None), "here")
    assert (own.mean(), own.std()) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))
    assert np.isfinite(prepared_image(picture(7), rules(constants=None, resize="stretch"), "here")).all()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: is no JSON object"),
        ("[1]", "line 1: is no JSON object"),
        ("[" * 100_000, "line 1: is no JSON object"),
        ('{"image": "1.png", "text": "a"}', "line 1: there is no column 'site'"),
        ('{"image": "1.png", "text": "...", "site": "north"}', "line 1: there is no report"),
        ('{"image": "", "text": "a", "site": "north"}', "line 1: column 'image' is empty"),
        ('{"image": "1.png", "text": {}, "site": "north"}', "line 1: column 'text' is not a text"),
        ('{"image": "1.png", "text": "a", "site": "north", "edema": 7}', "line 1: column 'edema' is not 0"),
    ],
)
def test_a_wrong_line_is_named(place, line, says):
    (place / "pairs.jsonl").write_text(line)
    with pytest.raises(DataError, match=r"pairs\.jsonl, " + says):
        load(place, finding_columns=["edema"] if "edema" in line else []).site("north")


def test_pairs_without_a_report_can_be_skipped(place):
    rows = [{"image": "1.png", "text": None}, {"image": "2.png", "text": ["b", "c"]}]
    (place / "pairs.jsonl").write_text("\n".join(json.dumps({**row, "site": "north"}) for row in rows))
    site = load(place, without_text="skip").site("north")
    assert torch.equal(site.train.tokens, tokens("b"))


def test_files_that_cannot_be_used_are_named(place):
    for keys, says in (
        ({"table": "absent.jsonl"}, "data.table, absent.jsonl: there is no such file"),
        ({"table": "images.zip"}, "neither .jsonl nor .csv|not UTF-8"),
        ({"images": "absent"}, "data.images: cannot open"),
        ({"images": "pairs.csv"}, "neither a folder nor a zip"),
    ):
        with pytest.raises(DataError, match=says):
            load(place, **keys).site("north")
    (place / "pairs.jsonl").write_text("")
    with pytest.raises(DataError, match="site 'south' has no records"):
        load(place).site("south")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"partition": "dirichlet", "sites": 3}, "data.finding_columns: there are no findings"),
        ({"partition": "iid", "sites": ["a"]}, "data.sites: iid divides"),
        ({"partition": "iid", "sites": 0}, "data.sites: iid divides"),
        ({"partition": "by-file", "sites": ["a"]}, "data.table: {site}"),
        ({"partition": "by-file", "sites": ["../a"], "table": "{site}.csv"}, "cannot be part of a file name"),
        ({"sites": ["a", "a"]}, "data.sites: by-column needs"),
        ({"partition": "iid", "sites": 2, "site_column": "site"}, "data.site_column"),
        ({"alpha": 2.0}, "data.alpha: has no effect"),
        ({"images": "{site}"}, "data.images: {site} belongs"),
        ({"images": "/etc"}, "data.images: leads outside data.path"),
        ({"table": "a/../../b.csv"}, "data.table: leads outside data.path"),
        ({"split_column": "part", "test_table": "a.csv"}, "data.test_table: has no effect"),
        ({"split_column": "part", "test_values": ["train"]}, "data.test_values: a value"),
        ({"test_values": ["dev"]}, "data.train_values"),
        ({"tokenizer": "words"}, "data.words_file: is missing"),
        ({"words_file": "a.txt"}, "data.words_file: has no effect"),
        ({"normalise": "image", "mean": [0.1]}, "data.mean: data.mean and data.std have no effect"),
        ({"std": [0.0]}, "data.std: needs one number"),
        ({"mean": [0.1, 0.2]}, "data.mean: needs one number"),
        ({"finding_columns": ["a", "a"]}, "names a finding twice"),
        ({"min_records": 3}, "data.min_records: has no effect"),
    ],
)
def test_a_table_that_cannot_be_carried_out_names_the_key(place, keys, says):
    with pytest.raises(ConfigError, match=says.replace("{", r"\{")):
        load(place, **keys)


def test_privacy_of_records_is_possible(place):
    for data in (load(place), load(place, partition="iid", sites=2)):
        assert data.for_record_privacy() is data


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
    table = {
        "name": "mimic-cxr",
        "path": "jpg",
        "reports": "reports.zip",
        "size": 8,
        "sites": 1,
        "min_records": 1,
    }
    return mimic_cxr(checked(MimicCxrOptions, {**table, **keys}, "data"), 0, place)


def test_mimic_frontal_images_with_their_findings_section(mimic):
    data = load_mimic(mimic)
    site = data.site("hospital-1")
    # Six studies are for training; one of them has no findings section.
    assert (len(site.train), len(site.test)) == (5, 3)
    assert site.train.findings.tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 0], *([[1, 0, 0, 0, 0]] * 3)]
    assert data.findings[0] == "edema"
    words = "The lungs are clear 0. Note: no effusion. Heart size is normal."
    assert torch.equal(site.train.tokens[:1], HashTokenizer(4096, 112).encode([words]))


def test_mimic_options(mimic):
    uncertain = load_mimic(mimic, uncertain="present").site("hospital-1").test.findings
    assert uncertain.tolist() == [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
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
        DataError, match=r"split\.csv, line 2: column 'subject_id' has not the published form"
    ):
        load_mimic(mimic).site("hospital-1")
    path.unlink()
    with pytest.raises(DataError, match=r"has neither mimic-cxr-2\.0\.0-split\.csv nor"):
        load_mimic(mimic).site("hospital-1")


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


def test_a_grade_without_a_name_is_refused(clinics):
    (clinics / "one.csv").write_text("Image name,Retinopathy grade,Risk\n0.jpg,9,0")
    with pytest.raises(DataError, match=r"one\.csv, line 2: column 'Retinopathy grade' is no grade"):
        load_clinics(clinics).site("one")


def test_a_clinic_needs_its_columns(clinics):
    for broken, says in (
        ({"table": "one.csv"}, r"data\.clinics\.one\.images: is missing"),
        ({**CLINICS["one"], "images": ".."}, r"data\.clinics\.one\.images: leads outside"),
        ({**CLINICS["one"], "colour": "red"}, r"data\.clinics\.one\.colour: unknown key"),
    ):
        with pytest.raises(ConfigError, match=says):
            load_clinics(clinics, {"one": broken})
