"""Images are read and decoded within limits, and prepared as the options say."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from secfed.algorithms.data.image_files import Preparation, open_source, prepared_image
from secfed.errors import DataError
from tests.algorithms.image_text_case import Image, picture, write_pairs


@pytest.fixture
def place(tmp_path):
    return write_pairs(tmp_path)


def rules(**keys):
    usual = {"size": 8, "channels": 1, "resize": "pad", "constants": ((0.0,), (1.0,))}
    usual |= {"max_bytes": 1 << 20, "max_pixels": 10_000}
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


def test_odd_metadata_of_a_camera_is_an_error_that_names_the_line():
    # Upright only with its metadata; Pillow writes them again, and cannot where a text is a number.
    entries = struct.pack("<HHIHxx", 0x112, 3, 1, 6), struct.pack("<HHI4s", 0x10E, 11, 1, b"ab\0\0")
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4)
    stream = io.BytesIO()
    Image.new("L", (8, 8)).save(stream, "JPEG", exif=exif)
    with pytest.raises(DataError, match="here: the image cannot be read"):
        prepared_image(stream.getvalue(), rules(), "here")


def test_a_link_to_itself_is_no_file(place):
    (place / "images" / "loop.png").symlink_to("loop.png")
    with open_source(place / "images") as files, pytest.raises(DataError, match="here: there is no such"):
        files.read("loop.png", 100, "here")


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_an_archive_with_a_wrong_byte_anywhere_gives_a_file_or_an_error(tmp_path, packing):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("\u00fc.png", picture(3))
    content = path.read_bytes()
    for at in range(0, len(content), 3):
        path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
        with contextlib.suppress(DataError), open_source(path) as files:
            files.read("\u00fc.png", 1 << 20, "here")


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
