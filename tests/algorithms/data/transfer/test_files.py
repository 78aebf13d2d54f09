"""``transfer-files``: hospitals' own files to records, and what is said of bad ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from secfed.algorithms.data.image_files import Preparation
from secfed.algorithms.data.tokens import HashTokenizer
from secfed.algorithms.data.transfer.base import TransferData
from secfed.algorithms.data.transfer.files import TransferFiles, prepared_images
from secfed.algorithms.data.transfer.options import TransferFilesOptions
from secfed.config.schema import checked
from secfed.errors import ConfigError, DataError

N = 60
# Record i has one colour or word of its own, so that a prepared row says which record it is.
IMAGES = np.broadcast_to(np.arange(N, dtype=np.uint8)[:, None, None], (N, 8, 8)).copy()
TEXTS = np.array([f"finding w{number} seen" for number in range(N)])
LABELS = np.arange(N) % 3
SOURCES = np.repeat(np.arange(N), 2)[::-1].copy()
CAPTIONS = np.array([f"finding w{source} number c{at}" for at, source in enumerate(SOURCES)])
ARRAYS = {
    "img": {"images": IMAGES, "labels": LABELS},
    "txt": {"texts": TEXTS, "labels": LABELS % 2},
    "prs": {"images": IMAGES, "texts": CAPTIONS, "sources": SOURCES},
}


def options(**keys) -> TransferFilesOptions:
    table = {
        "name": "transfer-files",
        "path": "records",
        "image_sites": ["img"],
        "text_sites": ["txt"],
        "pair_sites": ["prs"],
        "image_classes": 3,
        "text_classes": 2,
        "size": 8,
        "channels": 1,
        "mean": [0.0],
        "std": [1.0],
        "text_length": 6,
        "test_fraction": 0.3,
    }
    return checked(TransferFilesOptions, {**table, **keys}, "data")


@pytest.fixture
def save(tmp_path):
    """Write one site's file, with some arrays changed or (None) left out."""

    def save(site: str, **changes) -> Path:
        (tmp_path / "records").mkdir(exist_ok=True)
        arrays = {key: value for key, value in (ARRAYS[site] | changes).items() if value is not None}
        np.savez(tmp_path / "records" / f"{site}.npz", **arrays)
        return tmp_path

    return save


def records_of(images: torch.Tensor) -> list[int]:
    """Which record each image is."""
    return (images[:, 0, 0, 0] * 255).round().int().tolist()


def words(number: int) -> torch.Tensor:
    return HashTokenizer(4096, 6).encode([f"w{number}"])[0, 1]


def test_a_site_reads_its_own_file_only(save):
    data = TransferFiles(options(), 0, save("img"))
    assert isinstance(data, TransferData)
    assert (data.image_shape, data.text_length, data.vocabulary) == ((1, 8, 8), 6, 4099)
    assert (data.image_classes, data.text_classes) == (3, 2)
    site = data.site("img")  # the other files do not exist
    for samples in (site.train, site.test):
        assert samples.labels.tolist() == [record % 3 for record in records_of(samples.images)]
    parts = [records_of(samples.images) for samples in (site.train, site.test)]
    assert sorted(parts[0] + parts[1]) == list(range(N))
    assert 5 < len(parts[1]) < 35
    assert site.train_patients is None


def test_texts_keep_their_labels_and_begin_with_the_same_token(save):
    site = TransferFiles(options(), 0, save("txt")).site("txt")
    known = {int(words(number)): number for number in range(N)}
    assert len(known) == N
    seen = []
    for samples in (site.train, site.test):
        assert set(samples.tokens[:, 0].tolist()) == {1}
        numbers = [known[int(token)] for token in samples.tokens[:, 2]]
        assert samples.labels.tolist() == [number % 3 % 2 for number in numbers]
        seen += numbers
    assert sorted(seen) == list(range(N))


def test_captions_stay_with_their_image_and_on_its_side(save):
    site = TransferFiles(options(), 0, save("prs")).site("prs")
    known = {int(words(number)): number for number in range(N)}
    sides = []
    for samples in (site.train, site.test):
        shown = records_of(samples.images)
        assert len(samples) == 2 * len(shown)
        assert [shown[source] for source in samples.sources] == [known[int(t)] for t in samples.tokens[:, 2]]
        sides.append(set(shown))
    assert sides[0] | sides[1] == set(range(N))
    assert not sides[0] & sides[1]


def test_without_sources_caption_i_describes_image_i_and_equal_images_share_a_side(save):
    twice = np.concatenate([IMAGES[:30], IMAGES[:30]])
    site = TransferFiles(options(), 0, save("prs", images=twice, texts=TEXTS, sources=None)).site("prs")
    sides = [set(records_of(samples.images)) for samples in (site.train, site.test)]
    assert sides[0] | sides[1] == set(range(30))
    assert not sides[0] & sides[1]
    for samples in (site.train, site.test):
        assert samples.sources.tolist() == list(range(len(samples)))


@pytest.mark.parametrize("names", [np.arange(N) // 3, np.array([f"patient {at // 3}" for at in range(N)])])
def test_a_patient_is_never_in_both_parts(save, names):
    site = TransferFiles(options(patients=True), 0, save("img", patients=names)).site("img")
    train, test = ({record // 3 for record in records_of(part.images)} for part in (site.train, site.test))
    assert train | test == set(range(20))
    assert test
    assert not train & test
    numbers = [record // 3 for record in records_of(site.train.images)]
    assert len(site.train_patients) == len(site.train)
    assert len(set(zip(numbers, site.train_patients, strict=True))) == len(train)
    assert set(site.train_patients) == set(range(len(train)))


def test_patients_of_pairs_are_named_per_caption(save):
    site = TransferFiles(options(), 0, save("prs", patients=SOURCES // 4)).site("prs")
    train, test = ({record // 4 for record in records_of(part.images)} for part in (site.train, site.test))
    assert test
    assert not train & test
    assert len(site.train_patients) == len(site.train)


def test_the_split_follows_from_the_seed_and_no_row_moves_when_another_is_removed(save):
    place = save("img")
    one = TransferFiles(options(), 0, place).site("img")
    assert torch.equal(one.train.images, TransferFiles(options(), 0, place).site("img").train.images)
    assert not torch.equal(one.test.images, TransferFiles(options(), 1, place).site("img").test.images)
    fewer = TransferFiles(options(), 0, save("img", images=IMAGES[1:], labels=LABELS[1:])).site("img")
    assert set(records_of(fewer.test.images)) == set(records_of(one.test.images)) - {0}


def test_nothing_is_held_out_when_nothing_shall_be(save):
    site = TransferFiles(options(test_fraction=0.0), 0, save("prs")).site("prs")
    assert len(site.train) == 2 * N
    assert len(site.test) == 0
    assert site.test.images.shape == (0, 1, 8, 8)


def half_a_character() -> np.ndarray:
    return np.array(["fine \ud800 word", *TEXTS.tolist()[1:]])


@pytest.mark.parametrize(
    ("site", "change", "says"),
    [
        ("img", {"images": None}, "img.npz has no array 'images'"),
        ("img", {"labels": None}, "img.npz has no array 'labels'"),
        ("img", {"images": IMAGES.astype(np.float32)}, "img.npz: 'images' are not images"),
        ("img", {"images": IMAGES[..., None].repeat(4, 3)}, "img.npz: 'images' are not images"),
        ("img", {"images": IMAGES[:, :0]}, "img.npz: 'images' are not images"),
        ("img", {"labels": LABELS[1:]}, "img.npz: 'labels' does not have one entry per row"),
        ("img", {"labels": LABELS.astype(float)}, "img.npz: 'labels' is not one integer per row"),
        ("img", {"labels": LABELS.astype(object)}, "img.npz is damaged, or not a .npz file of plain arrays"),
        ("img", {"labels": LABELS + 1}, "a label outside the study's 3 classes"),
        ("img", {"patients": np.arange(N - 1)}, "img.npz: 'patients' does not have one entry per row"),
        ("img", {"patients": np.array([""] * N)}, "img.npz: 'patients' does not name every"),
        ("img", {"patients": np.full(N, np.nan)}, "img.npz: 'patients' does not name every"),
        ("img", {"images": IMAGES[:0], "labels": LABELS[:0]}, "has no records"),
        ("txt", {"texts": None}, "txt.npz has no array 'texts'"),
        ("txt", {"texts": np.char.encode(TEXTS)}, "txt.npz: 'texts' is not one text per row"),
        ("txt", {"texts": TEXTS.reshape(-1, 1)}, "txt.npz: 'texts' is not one text per row"),
        ("txt", {"texts": np.where(np.arange(N) == 4, "...", TEXTS)}, "'texts', position 4: is not a text"),
        ("txt", {"texts": half_a_character()}, "'texts', position 0: is not a text"),
        ("prs", {"sources": None}, "prs.npz: 'images' and 'texts' do not have as many rows"),
        ("prs", {"sources": SOURCES[1:]}, "prs.npz: 'sources' does not have one entry per row"),
        ("prs", {"sources": SOURCES + 1}, "prs.npz: 'sources' has a position that no image has"),
        ("prs", {"sources": SOURCES - 1}, "prs.npz: 'sources' has a position that no image has"),
        ("prs", {"sources": np.maximum(SOURCES, 1)}, "prs.npz: an image has no caption"),
        ("prs", {"sources": SOURCES * 1.0}, "prs.npz: 'sources' is not one integer per row"),
        ("prs", {"patients": np.arange(2 * N)}, "captions of one image to two patients"),
    ],
)
def test_a_bad_file_is_named_with_its_site_and_a_remedy(save, site, change, says):
    with pytest.raises(DataError, match=f"site '{site}'.*{says}") as caught:
        TransferFiles(options(), 0, save(site, **change)).site(site)
    assert caught.value.remedy
    assert "w4" not in str(caught.value)


def test_missing_files_patients_and_sites(save):
    place = save("img")
    with pytest.raises(DataError, match=r"site 'txt': .*txt\.npz does not exist") as caught:
        TransferFiles(options(), 0, place).site("txt")
    assert "SITE.npz" in caught.value.remedy
    with pytest.raises(DataError, match=r"site 'img': img\.npz has no array 'patients'"):
        TransferFiles(options(patients=True), 0, place).site("img")
    (place / "records" / "img.npz").write_bytes(b"PK but no archive")
    with pytest.raises(DataError, match=r"site 'img': img\.npz is damaged"):
        TransferFiles(options(), 0, place).site("img")


def test_a_site_with_everything_held_out_is_refused(save):
    place = save("img", images=IMAGES[:1].repeat(N, axis=0))  # one image: one side
    refused = 0
    for seed in range(40):
        try:
            site = TransferFiles(options(), seed, place).site("img")
        except DataError as error:
            refused += str(error).startswith("site 'img' has no training records")
        else:
            assert len(site.train) == N
    assert 0 < refused < 40


def test_a_tokenizer_without_a_first_token_is_refused(monkeypatch):
    class Bare:
        def encode(self, texts):
            return torch.tensor([[3 + len(text)] for text in texts]) + torch.arange(len(texts))[:, None]

    monkeypatch.setattr(TransferFilesOptions, "make_tokenizer", lambda self, folder: Bare())
    with pytest.raises(ConfigError, match=r"data\.tokenizer_folder: .* no \[CLS\] token"):
        TransferFiles(options(), 0, Path())


def rules(**keys) -> Preparation:
    usual = {"size": 4, "channels": 1, "resize": "pad", "constants": ((0.0,), (1.0,))}
    return Preparation(**{**usual, **keys}, max_bytes=1, max_pixels=1)


def test_images_of_the_right_size_are_only_scaled():
    images = np.arange(2 * 16, dtype=np.uint8).reshape(2, 4, 4)
    prepared = prepared_images(images, rules())
    assert torch.equal((prepared * 255).round(), torch.from_numpy(images).float().unsqueeze(1))
    shifted = prepared_images(images, rules(constants=((0.5,), (0.25,))))
    assert torch.allclose(shifted, (prepared - 0.5) / 0.25)
    own = prepared_images(images, rules(constants=None))
    assert torch.allclose(own.mean(dim=(1, 2, 3)), torch.zeros(2), atol=1e-6)
    assert torch.allclose(own.std(dim=(1, 2, 3), correction=0), torch.ones(2))
    assert not prepared_images(np.full((1, 4, 4), 9, dtype=np.uint8), rules(constants=None)).any()


def test_grey_becomes_colour_and_colour_becomes_grey():
    grey = np.full((1, 4, 4), 51, dtype=np.uint8)
    assert torch.allclose(prepared_images(grey, rules(channels=3)), torch.full((1, 3, 4, 4), 0.2))
    red = np.zeros((1, 4, 4, 3), dtype=np.uint8)
    red[..., 0] = 255
    assert torch.allclose(prepared_images(red, rules()), torch.full((1, 1, 4, 4), 0.299))
    per_channel = rules(channels=3, constants=((0.0, 0.5, 1.0), (1.0, 1.0, 2.0)))
    assert prepared_images(red, per_channel)[0, :, 0, 0].tolist() == [1.0, -0.5, -0.5]


def test_wide_images_are_padded_cut_or_stretched():
    wide = np.full((1, 8, 16), 255, dtype=np.uint8)
    wide[:, :, :4] = wide[:, :, 12:] = 0
    pad, crop, stretch = (
        prepared_images(wide, rules(resize=way))[0, 0] for way in ("pad", "crop", "stretch")
    )
    assert torch.allclose(crop, torch.ones(4, 4))
    assert pad[0].max() < 0.1
    assert pad[1:3, 1:3].min() > 0.8
    assert stretch[:, 1:3].min() > 0.8
    assert stretch[:, 0].max() < 0.1
    assert stretch.min() >= 0
    assert stretch.max() <= 1


def test_images_are_prepared_each_by_itself():
    images = np.random.default_rng(0).integers(256, size=(300, 9, 7, 3), dtype=np.uint8)
    alone = prepared_images(images[270:271], rules(constants=None))
    assert torch.allclose(prepared_images(images, rules(constants=None))[270:271], alone, atol=1e-6)
