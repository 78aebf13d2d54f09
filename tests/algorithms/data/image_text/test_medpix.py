from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from secfed.algorithms.data.image_text.medpix import FINDINGS, LOCATIONS, MedpixOptions, medpix
from secfed.algorithms.data.image_text.partition import combination
from secfed.config.schema import checked
from secfed.errors import ConfigError, DataError
from tests.algorithms.image_text_case import mean_total_variation

Image = pytest.importorskip("PIL.Image")


def load(place: Path, **keys):
    return medpix(checked(MedpixOptions, {"name": "medpix", "size": 8, **keys}, "data"), 0, place)


@pytest.fixture
def little(tmp_path):
    """A made-up archive in the published form: 60 training and 10 held-out images."""
    with zipfile.ZipFile(tmp_path / "medpix2_160.zip", "w") as archive:
        tables: dict[str, list[str]] = {part: [] for part in ("train", "dev", "test", "train_1", "train_2")}
        for at in range(70):
            name = f"MPX{at}"
            stream = io.BytesIO()
            Image.fromarray(np.full((6, 9), at, dtype=np.uint8)).save(stream, "JPEG")
            archive.writestr(f"images/{name}.jpg", stream.getvalue())
            row = {
                "image": name,
                "Type": ("CT", "MR")[at % 2],
                "Location Category": LOCATIONS[at % 5],
                "Description": {"Caption": f"mass number {at // 2}"},
            }
            parts = ("train", f"train_{1 + at % 2}") if at < 60 else (("dev", "test")[at % 2],)
            for part in parts:
                tables[part].append(json.dumps(row))
        for part, lines in tables.items():
            archive.writestr(f"descriptions_{part}.jsonl", "\n".join(lines))
    return tmp_path


def labels(pairs, names) -> set[str]:
    return {FINDINGS[at] for row in pairs.findings for at in row.nonzero().flatten().tolist()} & set(names)


@pytest.mark.parametrize("shift", ["dirichlet", "iid", "location", "type"])
def test_every_image_goes_to_one_hospital(little, shift):
    keys = {"min_records": 2} if shift in ("dirichlet", "iid") else {}
    data = load(little, path="medpix2_160.zip", shift=shift, distinct_test=False, **keys)
    parts = [data.site(site) for site in data.sites]
    assert sum(len(part.train) for part in parts) == 60
    assert sum(len(part.test) for part in parts) == 10
    for train in data.pool.partition:
        rows = np.concatenate(train)
        assert np.array_equal(np.sort(rows), np.arange(len(rows)))


def test_a_shift_by_location_gives_one_part_of_the_body_to_each(little):
    data = load(little, path="medpix2_160.zip", shift="location")
    for site, location in zip(data.sites, LOCATIONS, strict=True):
        for pairs in (data.site(site).train, data.site(site).test):
            assert labels(pairs, FINDINGS[2:]) == {location.lower()}


def test_a_shift_by_type_gives_ct_to_some_and_mr_to_the_others(little):
    data = load(little, path="medpix2_160.zip", shift="type")
    kinds = [labels(data.site(site).train, ("ct", "mr")) for site in data.sites]
    assert kinds == [{"ct"}] * 3 + [{"mr"}] * 2


def test_one_image_of_each_caption_is_held_out(little):
    data = load(little, path="medpix2_160.zip", shift="location", held_out=["dev"])
    assert sum(len(data.site(site).test) for site in data.sites) == 5
    data = load(little, path="medpix2_160.zip", shift="iid", sites=1)
    assert len(data.site("hospital-1").test) == 5


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"shift": "location", "sites": 4}, r"data\.sites: .* among 4 sites"),
        ({"shift": "type", "sites": 1}, r"data\.sites"),
        ({"shift": "iid", "alpha": 0.3}, r"data\.alpha"),
        ({"shift": "type", "min_records": 3}, r"data\.min_records"),
        ({"share": 0.5}, r"data\.share"),
    ],
)
def test_a_table_that_cannot_be_carried_out_names_the_key(keys, says):
    with pytest.raises(ConfigError, match=says):
        load(Path(), **keys)


def test_a_missing_archive_says_where_it_is_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"medpix: .*absent\.zip does not exist"):
        load(tmp_path, path="absent.zip").site("hospital-1")


@pytest.mark.shared_data
def test_the_real_archive_at_five_hospitals(shared_data):
    data = load(Path(), path=str(shared_data / "medpix2_160.zip"), size=32)
    sites = [data.site(site) for site in data.sites]
    assert sum(len(site.train) for site in sites) == 1653
    assert sum(len(rows) for rows in data.pool.partition[1]) == 397
    assert all(len(site.test.tokens.unique(dim=0)) == len(site.test) for site in sites)
    assert 0.2 < mean_total_variation([combination(site.train.findings.numpy()) for site in sites]) < 0.8
    images = torch.cat([site.train.images for site in sites])
    assert torch.allclose(images.mean(dim=(1, 2, 3)), torch.zeros(1653), atol=1e-4)
