"""Decoded images are kept on the disk where that is asked for, for this account alone."""

from __future__ import annotations

import os
import zipfile

import numpy as np
import pytest

from secfed.algorithms.data import image_cache, image_files
from secfed.algorithms.data.image_cache import FOLDER
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.errors import DataError
from tests.algorithms.image_text_case import load, picture, write_pairs


@pytest.fixture
def place(tmp_path):
    return write_pairs(tmp_path)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def decoded(monkeypatch):
    """The lines of the table whose images were decoded."""
    lines, usual = [], image_files._decoded
    monkeypatch.setattr(
        image_files,
        "_decoded",
        lambda content, rules, where: lines.append(where) or usual(content, rules, where),
    )
    return lines


def images(place, **keys):
    return load(place, **keys).site("north").train.images.numpy()


def kept(cache):
    return sorted(cache.iterdir())


@pytest.mark.parametrize("source", ["images", "images.zip"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_kept_is_not_decoded_again(place, cache, decoded, source, channels, monkeypatch):
    monkeypatch.delenv(FOLDER)
    expected = images(place, images=source, channels=channels)
    monkeypatch.setenv(FOLDER, str(cache))
    decoded.clear()
    assert np.array_equal(images(place, images=source, channels=channels), expected)
    assert len(decoded) == 12
    decoded.clear()
    assert np.array_equal(images(place, images=source, channels=channels), expected)
    assert decoded == []
    (file,) = kept(cache)
    assert np.load(file, mmap_mode="r").shape == (12, 8, 8, channels)


def test_how_pixels_are_normalised_does_not_matter(place, cache, decoded):
    images(place)
    decoded.clear()
    own = images(place, normalise="image")
    assert decoded == []
    assert np.array_equal(own.mean((1, 2, 3)).round(4), np.zeros(12))


@pytest.mark.parametrize(
    "keys",
    [{"size": 16}, {"channels": 3}, {"resize": "crop"}, {"max_image_mib": 1}, {"max_megapixels": 1}],
)
def test_another_preparation_is_decoded_again(place, cache, decoded, keys):
    images(place)
    decoded.clear()
    images(place, **keys)
    assert len(decoded) == 12
    assert len(kept(cache)) == 2


def test_a_changed_image_is_decoded_again(place, cache, decoded):
    path = place / "images" / "2.png"
    before = images(place)
    facts = path.stat()
    path.write_bytes(picture(90, size=(11, 11)))
    assert not np.array_equal(images(place), before)
    path.write_bytes(picture(20))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    decoded.clear()
    assert np.array_equal(images(place), before)
    assert len(decoded) == 12


def test_a_changed_archive_is_decoded_again(place, cache, decoded):
    before = images(place, images="images.zip")
    with zipfile.ZipFile(place / "images.zip", "w") as archive:
        for at in range(24):
            archive.writestr(f"{at}.png", picture(10 * at + 5))
    assert not np.array_equal(images(place, images="images.zip"), before)


@pytest.mark.parametrize("where", [0, 8, 60, 128, 500, -1])
def test_a_damaged_file_is_written_again(place, cache, decoded, where):
    expected = images(place)
    (file,) = kept(cache)
    content = file.read_bytes()
    damaged = bytearray(content)
    damaged[where] ^= 1
    file.write_bytes(damaged)
    decoded.clear()
    assert np.array_equal(images(place), expected)
    assert len(decoded) == 12
    assert file.read_bytes() == content


@pytest.mark.parametrize("length", [0, 5, 128, 400, 128 + 12 * 64, 128 + 12 * 64 + 5])
def test_a_file_of_another_length_is_written_again(place, cache, decoded, length):
    images(place)
    (file,) = kept(cache)
    content = file.read_bytes()
    assert len(content) == 128 + 12 * 64 + 4
    file.write_bytes(content[:length].ljust(length, b"\0"))
    decoded.clear()
    images(place)
    assert len(decoded) == 12
    assert file.read_bytes() == content


def test_files_of_another_shape_or_kind_are_not_taken(place, cache, decoded):
    images(place)
    (file,) = kept(cache)
    content = file.read_bytes()
    for other in (np.zeros((12, 8, 16, 1), np.uint8), np.zeros((12, 8, 8, 1), np.int8), np.array([{}])):
        with file.open("wb") as stream:
            np.save(stream, other, allow_pickle=True)
        decoded.clear()
        images(place)
        assert len(decoded) == 12
        assert file.read_bytes() == content


def test_only_this_account_may_read_what_is_kept(place, cache):
    before = os.umask(0)
    try:
        images(place)
    finally:
        os.umask(before)
    (file,) = kept(cache)
    assert (cache.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert file.name[:-4].isalnum()
    assert len(file.name) == 64 + 4
    assert b"png" not in file.read_bytes()


@pytest.mark.parametrize("how", ["a file", "a link to itself", "inside nothing"])
def test_a_folder_that_cannot_be_written_stops_nothing(place, cache, decoded, how, monkeypatch, caplog):
    if how == "a file":
        cache.write_text("")
    elif how == "a link to itself":
        cache.symlink_to(cache)
    else:
        monkeypatch.setenv(FOLDER, str(cache / "deeper" / "still"))
    assert np.array_equal(images(place), images(place))
    assert len(decoded) == 24
    assert not caplog.records


def test_a_full_disk_stops_nothing_and_leaves_nothing(place, cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        assert len(images(place)) == 12
    assert kept(cache) == []


@pytest.mark.parametrize("value", [None, ""])
def test_nothing_is_kept_unless_asked_for(place, tmp_path, monkeypatch, value):
    monkeypatch.setenv(FOLDER, "")
    if value is None:
        monkeypatch.delenv(FOLDER)
    monkeypatch.setattr(image_cache, "_write", None)
    before = sorted(tmp_path.rglob("*"))
    images(place)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("lost", [False, True])
def test_a_list_with_an_image_that_cannot_be_used_is_not_kept(place, cache, lost):
    path = place / "images" / "4.png"
    if lost:
        path.unlink()
    else:
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="line 5"):
        images(place)
    heard: list[DataError] = []
    with counted_as_defaults(heard.append):
        loaded = images(place)
    assert [str(error).split(":")[0] for error in heard] == ["pairs.jsonl, line 5"]
    assert not loaded[2].any()
    assert loaded[[0, 1, *range(3, 12)]].any((1, 2, 3)).all()
    assert not cache.exists()


def test_nothing_is_kept_for_a_list_without_images(place, cache):
    assert len(load(place).site("north").test.images) == 0
    assert len(kept(cache)) == 1  # of the training images
