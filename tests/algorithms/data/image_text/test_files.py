"""Tables of images and texts become pairs at sites; what cannot be read is named by file and line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from secfed.algorithms.data.image_text.base import ImageTextData
from secfed.algorithms.data.table_lines import parse_table, read_table
from secfed.errors import ConfigError, DataError
from tests.algorithms.image_text_case import load, picture, tokens, write_pairs


@pytest.fixture
def place(tmp_path):
    return write_pairs(tmp_path)


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


@pytest.mark.parametrize("column", ["image", "text", "site"])
def test_half_a_character_is_an_error_that_names_the_line(place, column):
    row = {"image": "0.png", "text": "a report", "site": "north", column: "\ud800"}
    (place / "pairs.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError, match=f"line 1: column '{column}' is not a text"):
        load(place, table="pairs.jsonl").site("north")


def test_one_file_per_site(place):
    rows = (place / "pairs.jsonl").read_text().splitlines()
    (place / "north.jsonl").write_text("\n".join(rows[:5]))
    (place / "south.jsonl").write_text("\n".join(rows[5:7]))
    os.rename(place / "images", place / "north")
    os.rename(place / "images.zip", place / "south.zip")
    for site, images, count in (("north", "{site}", 5), ("south", "{site}.zip", 2)):
        keys = {"sites": [site], "table": "{site}.jsonl", "images": images, "test_fraction": 0.0}
        data = load(place, partition="by-file", **keys)
        assert len(data.site(site).train) == count


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
        return {entry.image: entry.held_out for part in pool.pool.records for entry in part}

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


def test_a_patient_is_a_number_beside_its_pairs(place):
    whole = load(place, patient_column="patient").site("south")
    assert whole.train_patients == (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    pool = load(place, partition="iid", sites=1, min_records=1, test_fraction=0.4, patient_column="patient")
    train = pool.pool.records[0]
    assert 0 < len(train) < 24
    assert all(entry.patient == f"p{int(entry.image.removesuffix('.png')) // 4}" for entry in train)
    got = pool.site("hospital-1").train_patients
    assert len(got) == len(train)
    assert len(set(got)) == len({entry.patient for entry in train})
    assert load(place).site("south").train_patients is None


@pytest.mark.parametrize("partition", ["dirichlet", "iid"])
def test_a_pool_is_divided_without_loss_or_overlap(place, partition):
    keys = {"finding_columns": ["edema", "mass"]} if partition == "dirichlet" else {}
    data, again = (
        load(place, partition=partition, sites=3, min_records=2, split_column="part", **keys)
        for _ in range(2)
    )
    seen = [
        tuple(row)
        for site in data.sites
        for part in ("train", "test")
        for row in getattr(data.site(site), part).tokens.tolist()
    ]
    assert len(set(seen)) == len(seen) == 18
    assert torch.equal(data.site("hospital-2").train.images, again.site("hospital-2").train.images)


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


@pytest.mark.parametrize(("label", "count"), [("1", 12), ("-1", 12), ("0.0", 12), ("", 8), ("nan", 8)])
def test_a_finding_that_is_labelled_at_all_can_count(place, label, count):
    """FedDRA's rule for MIMIC-CXR. Eight of the twelve labels at that site are 0."""
    lines = (place / "pairs.csv").read_text().replace(",north,1,", f",north,{label},")
    (place / "pairs.csv").write_text(lines)
    data = load(place, table="pairs.csv", finding_columns=["edema"], present="labelled")
    assert int(data.site("north").train.findings.sum()) == count


@pytest.mark.parametrize(
    "unused", [{"uncertain": "present", "finding_columns": ["edema"]}, {"finding_columns": []}]
)
def test_label_rules_without_effect_are_refused(place, unused):
    with pytest.raises(ConfigError, match="has no effect"):
        load(place, table="pairs.csv", present="labelled", **unused)


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


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: is not a JSON object"),
        ("[1]", "line 1: is not a JSON object"),
        ("[" * 100_000, "line 1: is not a JSON object"),
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
        ({"table": "absent.jsonl"}, "data.path, absent.jsonl: there is no such file"),
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
        ({"test_values": ["dev"]}, "data.test_values: has no effect"),
        ({"tokenizer": "words"}, "data.words_file: is missing"),
        ({"words_file": "a.txt"}, "data.words_file: has no effect"),
        ({"normalise": "image", "mean": [0.1]}, "data.mean: has no effect"),
        ({"std": [0.0]}, "data.std: needs one number"),
        ({"mean": [0.1, 0.2]}, "data.mean: needs one number"),
        ({"finding_columns": ["a", "a"]}, "names a finding twice"),
        ({"min_records": 3}, "data.min_records: has no effect"),
    ],
)
def test_a_table_that_cannot_be_carried_out_names_the_key(place, keys, says):
    with pytest.raises(ConfigError, match=says.replace("{", r"\{")):
        load(place, **keys)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("3.png,a report,south", "line 3: 3 cells, the header has 7"),
        ('3.png,a report,"south\nnorth",0,1,train,p0', "line 3: column 'site' has more than one line"),
    ],
)
def test_a_damaged_csv_table_loses_no_pair_in_silence(place, row, says):
    lines = (place / "pairs.csv").read_text().splitlines()
    (place / "pairs.csv").write_text("\n".join([*lines[:2], row, *lines[3:]]))
    with pytest.raises(DataError, match=r"pairs\.csv, " + says) as caught:
        load(place, table="pairs.csv").site("north")
    assert caught.value.remedy


def test_a_report_in_a_csv_table_may_have_several_lines():
    table = b'image,report\n\na.png,"one, two\n\nthree"\nb.png,four\n'
    first, second = parse_table(table, "pairs.csv")
    assert (first.text("report"), first.where) == ("one, two\n\nthree", "pairs.csv, line 3")
    assert (second.text("report"), second.where) == ("four", "pairs.csv, line 6")


def test_a_path_that_no_file_can_have_is_an_error():
    for name in ("a\0b.csv", "a\0b.csv.gz"):
        with pytest.raises(DataError, match=r"data\.path: cannot be the name of a file"):
            list(read_table(Path(name)))


def test_a_column_of_a_table_that_is_there_twice_is_refused_if_it_is_asked_for():
    (line,) = parse_table(b"image,report,report,,\na.png,one,two,,\n", "pairs.csv")
    assert line.text("image") == "a.png"
    with pytest.raises(DataError, match=r"pairs\.csv, line 2: the table has the column 'report' twice"):
        line.text("report")
