from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from secfed.algorithms.data.tokens import HashTokenizer
from secfed.algorithms.data.transfer.base import TransferData
from secfed.algorithms.data.transfer.flickr import FlickrTransfer, divide
from secfed.algorithms.data.transfer.options import FlickrTransferOptions
from secfed.config.schema import checked
from secfed.errors import ConfigError, DataError


def records_of(images: torch.Tensor) -> list[int]:
    """Which record each image is."""
    return (images[:, 0, 0, 0] * 255).round().int().tolist()


def flickr(place: Path, seed: int = 0, **keys):
    little = {"name": "flickr-transfer", "size": 8, "mean": [0.0], "std": [1.0], "min_records": 2}
    few = {"image_sites": 3, "text_sites": 2, "pair_sites": 2}
    return FlickrTransfer(checked(FlickrTransferOptions, {**little, **few, **keys}, "data"), seed, place)


@pytest.fixture
def little(tmp_path):
    """Made-up files in the published form: 80 + 20 images, 60 texts, 12 + 6 captioned images."""
    image_module = pytest.importorskip("PIL.Image")
    images = np.zeros((100, 8, 8, 3), dtype=np.uint8)
    images[..., 0] = np.arange(100)[:, None, None]
    labels = np.arange(100) % 5
    np.savez(
        tmp_path / "cifar100_30classes.npz",
        train_images=images[:80],
        train_labels=labels[:80],
        test_images=images[80:],
        test_labels=labels[80:],
    )
    classes = ("World", "Sports", "Business", "Sci/Tech")
    news = "".join(f"Title {at // 2},about w{at // 2},{classes[at // 2 % 4]}\n" for at in range(60))
    with gzip.open(tmp_path / "ag_news_7600.csv.gz", "wt") as stream:
        stream.write("title,description,class\n" + news)
    abstracts = "".join(f'{1 + at % 5},"Abstract, w{at}"\n' for at in range(60))
    with gzip.open(tmp_path / "medabstracts_test2888.csv.gz", "wt") as stream:
        stream.write("condition_label,medical_abstract\n" + abstracts)
    with zipfile.ZipFile(tmp_path / "flickr8k_2500_96.zip", "w") as archive:
        lines = []
        for at in range(18):
            stream = io.BytesIO()
            image_module.fromarray(np.full((9, 9, 3), 10 * at, dtype=np.uint8)).save(stream, "PNG")
            archive.writestr(f"images/{at}.png", stream.getvalue())
            split = "train" if at < 12 else "test"
            captions = [f"picture w{at} c{number}" for number in range(5)]
            lines.append(json.dumps({"image": f"images/{at}.png", "split": split, "captions": captions}))
        archive.writestr("captions.jsonl", "\n".join(lines))
    return tmp_path


def test_every_image_of_the_pool_is_at_one_site_and_keeps_its_side(little):
    data = flickr(little, path=".")
    assert isinstance(data, TransferData)
    assert (data.image_classes, data.text_classes, data.vocabulary) == (30, 4, 4099)
    found: list[list[int]] = [[], []]
    for site_id in data.sites[:3]:
        site = data.site(site_id)
        for at, samples in enumerate((site.train, site.test)):
            records = records_of(samples.images)
            assert samples.labels.tolist() == [record % 5 for record in records]
            found[at] += records
    assert (sorted(found[0]), sorted(found[1])) == (list(range(80)), list(range(80, 100)))


@pytest.mark.parametrize("texts", ["ag-news", "med-abstracts"])
def test_every_text_is_at_one_site_and_equal_texts_share_a_side(little, texts):
    data = flickr(little, path=".", texts=texts, text_length=8)
    assert data.text_classes == {"ag-news": 4, "med-abstracts": 5}[texts]
    sides: list[list[tuple[int, ...]]] = [[], []]
    labels = []
    for site_id in ("text-1", "text-2"):
        site = data.site(site_id)
        for at, samples in enumerate((site.train, site.test)):
            sides[at] += [tuple(row) for row in samples.tokens.tolist()]
            labels += samples.labels.tolist()
    assert len(sides[0]) + len(sides[1]) == 60
    assert sides[1]
    assert not set(sides[0]) & set(sides[1])
    assert sorted(labels) == sorted(
        [at // 2 % 4 for at in range(60)] if texts == "ag-news" else [at % 5 for at in range(60)]
    )


@pytest.mark.parametrize("captions", [5, 2])
def test_captions_lie_beside_their_image(little, captions):
    data = flickr(little, path=".", captions_per_image=captions)
    found: list[list[int]] = [[], []]
    for site_id in ("pairs-1", "pairs-2"):
        site = data.site(site_id)
        assert [len(site.train), len(site.test)] == [6 * captions, 3 * captions]
        for at, samples in enumerate((site.train, site.test)):
            shown = [record // 10 for record in records_of(samples.images)]
            texts = [f"picture w{shown[source]}" for source in samples.sources]
            assert torch.equal(samples.tokens[:, :3], HashTokenizer(4096, 3).encode(texts))
            found[at] += shown
    assert (sorted(found[0]), sorted(found[1])) == (list(range(12)), list(range(12, 18)))


def test_the_division_follows_from_the_seed(little):
    for site_id in ("image-1", "text-1", "pairs-1"):
        one, again, other = (flickr(little, seed, path=".").site(site_id).train for seed in (0, 0, 1))
        key = "tokens" if site_id == "text-1" else "images"
        assert torch.equal(getattr(one, key), getattr(again, key))
        assert not (len(one) == len(other) and torch.equal(getattr(one, key), getattr(other, key)))


def test_a_missing_file_matters_to_the_sites_of_its_kind_only(little):
    (little / "ag_news_7600.csv.gz").unlink()
    data = flickr(little, path=".")
    assert len(data.site("image-1").train)
    with pytest.raises(DataError, match=r"ag_news_7600\.csv\.gz does not exist") as caught:
        data.site("text-1")
    assert "SECFED_DATA" in caught.value.remedy


def test_files_that_are_not_the_published_ones_are_refused(little):
    with gzip.open(little / "ag_news_7600.csv.gz", "wt") as stream:
        stream.write("title,description,class\nSecret,of somebody,Gossip\n")
    with pytest.raises(DataError, match=r"ag_news_7600\.csv, line 2: no text, or an unknown class") as caught:
        flickr(little, path=".").site("text-1")
    assert "Gossip" not in str(caught.value)
    for row, says in (
        ({"split": "dev"}, "line 1: an unknown split"),
        ({"captions": ["one"]}, "line 1: too few captions"),
        ({"captions": ["one", 2, "", "four", "five"]}, "line 1: the captions are not texts"),
    ):
        line = {"image": "images/0.png", "split": "train", "captions": ["a", "b", "c", "d", "e"], **row}
        with zipfile.ZipFile(little / "flickr8k_2500_96.zip", "w") as archive:
            archive.writestr("captions.jsonl", json.dumps(line))
        with pytest.raises(DataError, match=says):
            flickr(little, path=".").site("pairs-1")
    images, labels = np.zeros((9, 8, 8, 3), dtype=np.uint8), np.zeros(9, dtype=np.int64)
    arrays = {"train_images": images, "train_labels": labels[1:], "test_images": images}
    np.savez(little / "cifar100_30classes.npz", test_labels=labels, **arrays)
    with pytest.raises(DataError, match=r"cifar100_30classes\.npz: not one label per image"):
        flickr(little, path=".").site("image-1")


@pytest.mark.parametrize(("sites", "site"), [("image_sites", "image-1"), ("pair_sites", "pairs-1")])
def test_more_sites_than_records_are_refused(little, sites, site):
    with pytest.raises(ConfigError, match=r"data\.min_records: 50 sites"):
        flickr(little, path=".", **{sites: 50}).site(site)


def test_a_division_is_complete_skewed_and_alike_in_both_parts():
    train, test = np.arange(3000) % 10, np.arange(1000) % 10
    parts = divide(train, test, 5, 0.3, 10, np.random.default_rng(0))
    for labels, part in zip((train, test), parts, strict=True):
        assert np.array_equal(np.sort(np.concatenate(part)), np.arange(len(labels)))
    counts = [
        np.array([np.bincount(labels[rows], minlength=10) for rows in part])
        for labels, part in zip((train, test), parts, strict=True)
    ]
    assert np.abs(counts[0] / 3 - counts[1]).max() <= 1  # each class by the same proportions
    assert (counts[0] == 0).any()
    assert counts[0].max() > 150
    sizes = counts[0].sum(axis=1)
    # A site is full at an even share (600), before its last class (of 300).
    assert sizes.min() >= 10
    assert sizes.max() < 600 + 300
    even = divide(train, test, 5, 1e6, 10, np.random.default_rng(0))
    assert max(len(rows) for rows in even[0]) - min(len(rows) for rows in even[0]) <= 20


@pytest.mark.shared_data
@pytest.mark.parametrize("texts", ["ag-news", "med-abstracts"])
def test_the_real_files(shared_data, monkeypatch, texts):
    pytest.importorskip("PIL.Image")
    monkeypatch.setenv("SECFED_DATA", str(shared_data))
    data = FlickrTransfer(
        checked(FlickrTransferOptions, {"name": "flickr-transfer", "texts": texts}, "data"), 1, Path()
    )
    total = {"ag-news": 7600, "med-abstracts": 2888}[texts]
    train, test = (sum(map(len, part)) for part in data.pools["text"].partition)
    assert train + test == total
    assert 0.17 < test / total < 0.23
    assert len(data.site("text-1").train) >= 10
    if texts == "ag-news":
        assert [sum(map(len, part)) for part in data.pools["image"].partition] == [2400, 600]
        assert [sum(map(len, part)) for part in data.pools["pairs"].partition] == [2000, 500]
        for site_id in ("image-1", "pairs-1"):
            site = data.site(site_id)
            shown = [{image.numpy().tobytes() for image in part.images} for part in (site.train, site.test)]
            assert len(shown[0]) >= 10
            assert not shown[0] & shown[1]


def test_organs_and_coco_are_read_as_published(little):
    image_module = pytest.importorskip("PIL.Image")
    images = np.zeros((100, 8, 8), dtype=np.uint8) + np.arange(100, dtype=np.uint8)[:, None, None]
    parts = {"train": slice(0, 70), "val": slice(70, 80), "test": slice(80, 100)}
    table = {f"{part}_images": images[rows] for part, rows in parts.items()}
    table |= {
        f"{part}_labels": (np.arange(100)[rows, None] % 5).astype(np.uint8) for part, rows in parts.items()
    }
    np.savez(little / "organcmnist.npz", **table)
    for part, count in (("train2017", 8), ("val2017", 4)):
        (little / "coco" / part).mkdir(parents=True)
        (little / "coco" / "annotations").mkdir(exist_ok=True)
        for at in range(count):
            shade = np.full((9, 9, 3), 10 * at, dtype=np.uint8)
            image_module.fromarray(shade).save(little / "coco" / part / f"{at:012}.jpg")
        named = [{"id": at, "file_name": f"{at:012}.jpg"} for at in range(count)]
        told = [{"image_id": at, "caption": f"picture w{at} c{n}"} for n in range(5) for at in range(count)]
        told = [one for one in told if one != {"image_id": 0, "caption": "picture w0 c4"}]
        text = json.dumps({"images": named, "annotations": told})
        (little / "coco" / "annotations" / f"captions_{part}.json").write_text(text)
    data = flickr(little, path=".", images="organcmnist", captions="coco")
    assert data.image_classes == 11
    sites = [data.site(site) for site in data.sites]
    of_kind = {kind: [site for site in sites if site.kind == kind] for kind in ("image", "pairs")}
    assert sorted(one for site in of_kind["image"] for one in records_of(site.train.images)) == list(
        range(70)
    )
    assert sorted(one for site in of_kind["image"] for one in records_of(site.test.images)) == list(
        range(80, 100)
    )
    pairs = [len(part.images) for site in of_kind["pairs"] for part in (site.train, site.test)]
    assert sum(pairs) == 7 + 3  # the first image of each part has four captions only
    assert all(len(site.train) == 5 * len(site.train.images) for site in of_kind["pairs"])
    (little / "coco" / "annotations" / "captions_val2017.json").write_text('{"images": 3}')
    with pytest.raises(DataError, match="not COCO's"):
        flickr(little, path=".", captions="coco").site("pairs-1")


def organs(place: Path) -> None:
    """Made-up OrganCMNIST in the published form: 30 + 10 grey images of 11 classes, brighter ones."""
    images = np.repeat(100 + np.arange(40, dtype=np.uint8), 64).reshape(40, 8, 8)
    labels = (np.arange(40) % 11)[:, None]
    np.savez(
        place / "organcmnist.npz",
        train_images=images[:30],
        train_labels=labels[:30],
        test_images=images[30:],
        test_labels=labels[30:],
    )


def test_two_sets_of_a_kind_lie_at_half_of_its_sites_each_and_have_their_own_classes(little):
    organs(little)
    more = {"more_images": "organcmnist", "more_texts": "med-abstracts", "text_length": 8}
    data = flickr(little, path=".", image_sites=5, text_sites=4, **more)
    assert (data.image_classes, data.text_classes) == (30 + 11, 4 + 5)
    found: dict[bool, list[int]] = {False: [], True: []}
    for number in range(1, 6):
        site, second = data.site(f"image-{number}"), number > 3
        for samples in (site.train, site.test):
            records = records_of(samples.images)
            classes = [30 + (record - 100) % 11 if second else record % 5 for record in records]
            assert samples.labels.tolist() == classes
            found[second] += records
    assert sorted(found[False]) == list(range(100))
    assert sorted(found[True]) == list(range(100, 140))
    for number in range(1, 5):
        labels = set(data.site(f"text-{number}").train.labels.tolist())
        assert labels <= ({4, 5, 6, 7, 8} if number > 2 else {0, 1, 2, 3})
    alone = flickr(little, path=".", image_sites=3, text_sites=2)
    assert torch.equal(alone.site("image-2").train.images, data.site("image-2").train.images)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"more_texts": "ag-news"}, 'more_texts: is "ag-news", as data.texts'),
        ({"more_images": "organcmnist", "image_sites": 1}, "more_images: needs 2 image sites"),
    ],
)
def test_a_second_set_is_another_one_and_has_sites(little, keys, says):
    with pytest.raises(ConfigError, match=says):
        flickr(little, path=".", **keys)
