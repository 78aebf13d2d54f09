"""The check that every site's images, texts and pairs pass, and the options of the data sets of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from secfed.algorithms.data.transfer.base import Samples, TransferSite, check_transfer
from secfed.algorithms.data.transfer.options import FlickrTransferOptions, ScenesOptions, TransferFilesOptions
from secfed.config.schema import checked
from secfed.errors import ConfigError, DataError

FACTS = SimpleNamespace(
    sites=("i", "t", "p"),
    kind_of={"i": "image", "t": "text", "p": "pairs"},
    image_shape=(3, 4, 4),
    text_length=5,
    vocabulary=9,
    image_classes=4,
    text_classes=2,
)
IMAGES = torch.arange(2 * 48, dtype=torch.float32).reshape(2, 3, 4, 4)
TOKENS = torch.tensor([[1, 3, 8, 0, 0], [1, 4, 5, 6, 7], [1, 3, 3, 3, 0]])
GOOD = {
    "i": Samples(IMAGES, None, torch.tensor([0, 3]), None),
    "t": Samples(None, TOKENS, torch.tensor([0, 1, 1]), None),
    "p": Samples(IMAGES, TOKENS, None, torch.tensor([1, 0, 1])),
}


def site(name: str, train: Samples | None = None, **keys) -> TransferSite:
    good = GOOD[name]
    return TransferSite(FACTS.kind_of[name], good if train is None else train, good, **keys)


def none_of(samples: Samples) -> Samples:
    parts = {key: None if part is None else part[:0] for key, part in vars(samples).items()}
    return Samples(**parts)


@pytest.mark.parametrize(("name", "rows"), [("i", 2), ("t", 3), ("p", 3)])
def test_good_records_pass_and_count_images_or_texts(name, rows):
    data = site(name, train_patients=tuple(range(rows)))
    assert check_transfer(name, data, FACTS) is data
    assert len(data.train) == rows
    held_out_of_none = replace(data, test=none_of(data.test))
    assert check_transfer(name, held_out_of_none, FACTS) is held_out_of_none


def with_token(row: int, column: int, token: int) -> torch.Tensor:
    tokens = TOKENS.clone()
    tokens[row, column] = token
    return tokens


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("i", {"labels": None}, "have images, but those of image sites have images, labels"),
        ("i", {"tokens": TOKENS}, "have images, tokens, labels, but those of image"),
        ("t", {"images": IMAGES}, "but those of text sites have tokens, labels"),
        ("p", {"labels": torch.zeros(3, dtype=torch.int64)}, "but those of pairs sites"),
        ("p", {"sources": None}, "but those of pairs sites have images, tokens, sources"),
        ("i", {"images": IMAGES[:, :1]}, r"have images of shape \(1, 4, 4\)"),
        ("i", {"images": IMAGES.double()}, "torch.float64"),
        ("i", {"images": IMAGES / 0}, "contain NaN or infinite pixels"),
        ("i", {"labels": torch.tensor([0])}, "do not have one label each"),
        ("i", {"labels": torch.tensor([0.0, 1.0])}, "have labels of shape .* and type torch.float32"),
        ("i", {"labels": torch.tensor([0, 4])}, "a label outside the study's 4 classes"),
        ("t", {"labels": torch.tensor([0, 1, 2])}, "a label outside the study's 2 classes"),
        ("t", {"labels": torch.tensor([0, -1, 1])}, "a label outside the study's 2 classes"),
        ("t", {"tokens": TOKENS[:, :4]}, r"have tokens of shape \(4,\)"),
        ("t", {"tokens": TOKENS.int()}, "torch.int32"),
        ("t", {"tokens": with_token(0, 1, 9)}, "a token outside the vocabulary of 9"),
        ("t", {"tokens": with_token(0, 1, -1)}, "a token outside the vocabulary of 9"),
        ("t", {"tokens": with_token(0, 0, 0)}, "an empty text, or padding before"),
        ("t", {"tokens": with_token(1, 2, 0)}, "padding between the words"),
        ("p", {"sources": torch.tensor([0, 1])}, "which image it describes"),
        ("p", {"sources": torch.tensor([0, 1, 2])}, "a caption of an image that is not there"),
        ("p", {"sources": torch.tensor([0, -1, 1])}, "a caption of an image that is not there"),
        ("p", {"sources": torch.tensor([1, 1, 1])}, "an image without a caption"),
    ],
)
@pytest.mark.parametrize("part", ["train", "test"])
def test_what_is_wrong_is_said_with_the_site_and_the_part(name, change, says, part):
    data = replace(site(name), **{part: replace(GOOD[name], **change)})
    named = {"train": "training", "test": "held-out"}[part]
    with pytest.raises(DataError, match=f"site '{name}': {named} records .*{says}"):
        check_transfer(name, data, FACTS)


@pytest.mark.parametrize("name", ["i", "t", "p"])
def test_a_site_without_training_records_is_refused(name):
    with pytest.raises(DataError, match="has no training records"):
        check_transfer(name, site(name, none_of(GOOD[name])), FACTS)
    nothing = TransferSite(FACTS.kind_of[name], none_of(GOOD[name]), none_of(GOOD[name]))
    with pytest.raises(DataError, match="has no records"):
        check_transfer(name, nothing, FACTS)


def test_a_site_of_another_kind_or_name_is_refused():
    for name in ("t", "elsewhere"):
        with pytest.raises(DataError, match=f"site '{name}' does not hold what the study says"):
            check_transfer(name, site("i"), FACTS)


def test_patients_are_given_for_every_row_or_for_none():
    with pytest.raises(DataError, match="'p': training records do not have one patient each"):
        check_transfer("p", site("p", train_patients=(0, 1)), FACTS)  # one per image is not one per caption


def test_an_error_shows_no_value_of_a_record():
    bad = site("i", replace(GOOD["i"], labels=torch.tensor([0, 1234567])))
    with pytest.raises(DataError) as caught:
        check_transfer("i", bad, FACTS)
    assert "1234567" not in f"{caught.value} {bad!r}"


def test_numbered_sites_come_kind_by_kind():
    given = {"name": "scenes", "image_sites": 2, "text_sites": 0, "pair_sites": 1}
    for model in (ScenesOptions, FlickrTransferOptions):
        options = checked(model, given, "data")
        assert options.site_ids() == ("image-1", "image-2", "pairs-1")
        assert list(options.kind_of.values()) == ["image", "image", "pairs"]
        assert len(checked(model, {"name": "scenes"}, "data").site_ids()) == 16


FILES = {
    "name": "transfer-files",
    "path": ".",
    "image_sites": ["a", "b"],
    "text_sites": ["c"],
    "pair_sites": ["d"],
    "image_classes": 3,
    "text_classes": 2,
}


def test_named_sites_come_kind_by_kind():
    options = checked(TransferFilesOptions, FILES, "data")
    assert options.site_ids() == ("a", "b", "c", "d")
    assert options.kind_of == {"a": "image", "b": "image", "c": "text", "d": "pairs"}
    assert options.classes == (3, 2)
    assert not options.names_patients
    pairs_only = checked(TransferFilesOptions, {"name": "x", "path": ".", "pair_sites": ["d"]}, "data")
    assert pairs_only.classes == (1, 1)


@pytest.mark.parametrize(
    ("model", "table", "says"),
    [
        (ScenesOptions, {"name": "scenes", "test_fraction": 0.2}, r"data\.test_fraction"),
        (ScenesOptions, {"name": "scenes", "pair_sites": 0}, r"data\.pair_sites"),
        (ScenesOptions, {"name": "scenes", "uneven": 1.0}, r"data\.uneven"),
        (FlickrTransferOptions, {"name": "flickr-transfer", "captions_per_image": 6}, r"captions_per_image"),
        (FlickrTransferOptions, {"name": "flickr-transfer", "resize": "pad"}, r"data\.resize: has no effect"),
        (FlickrTransferOptions, {"name": "flickr-transfer", "share": 0.5}, r"data\.share: has no effect"),
        (FlickrTransferOptions, {"name": "flickr-transfer", "texts": "news"}, r"data\.texts"),
        (TransferFilesOptions, {**FILES, "distinct_test": True}, r"data\.distinct_test: has no effect"),
        (TransferFilesOptions, {**FILES, "max_image_mib": 1}, r"data\.max_image_mib: has no effect"),
        (TransferFilesOptions, {**FILES, "pair_sites": []}, r"data\.pair_sites"),
        (TransferFilesOptions, {**FILES, "pair_sites": ["A"]}, r"data\.pair_sites: the site 'A' is listed"),
        (TransferFilesOptions, {**FILES, "text_sites": ["../c"]}, r"data\.text_sites: '\.\./c' cannot be pa"),
        (TransferFilesOptions, {**FILES, "image_classes": 1}, r"data\.image_classes"),
        (TransferFilesOptions, {**FILES, "text_sites": []}, r"data\.text_classes: has no effect"),
        (
            TransferFilesOptions,
            {key: value for key, value in FILES.items() if key != "image_classes"},
            r"data\.image_classes: is missing",
        ),
    ],
)
def test_a_table_that_cannot_be_carried_out_names_the_key(model, table, says):
    with pytest.raises(ConfigError, match=says):
        checked(model, table, "data")
