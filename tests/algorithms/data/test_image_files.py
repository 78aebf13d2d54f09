"""Images are read and decoded within limits, and prepared as the options say."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from secfed.algorithms.data import image_files
from secfed.algorithms.data.image_files import Preparation, decoded_images, open_source, prepared_image
from secfed.errors import DataError
from tests.algorithms.image_text_case import Image, picture, write_pairs

LARGE = {"size": 32, "resize": "stretch", "max_pixels": 10_000_000}


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


def photograph(kind: str = "JPEG", mode: str = "RGB", **how) -> bytes:
    """1600 x 1200 pixels, the upper half much brighter than the lower."""
    small = np.random.default_rng(3).integers(60, 120, (12, 16, 3), dtype=np.uint8)
    small[:6] += 100
    stream = io.BytesIO()
    Image.fromarray(small).resize((1600, 1200), Image.Resampling.BICUBIC).convert(mode).save(
        stream, kind, **how
    )
    return stream.getvalue()


def without_draft(content: bytes, how: Preparation, monkeypatch) -> np.ndarray:
    with monkeypatch.context() as patched:
        patched.setattr(image_files, "_SMALL", 1 << 40)
        return prepared_image(content, how, "here")


@pytest.mark.parametrize("resize", ["pad", "crop", "stretch"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_a_large_jpeg_is_decoded_small_and_looks_the_same(resize, channels, mode, monkeypatch):
    content = photograph(mode=mode, quality=95)
    how = rules(**(LARGE | {"resize": resize, "channels": channels}))
    sizes = []
    eight_bit = image_files._eight_bit
    monkeypatch.setattr(
        image_files, "_eight_bit", lambda image, to: sizes.append(image.size) or eight_bit(image, to)
    )
    small, full = prepared_image(content, how, "here"), without_draft(content, how, monkeypatch)
    assert sizes == [(200, 150), (1600, 1200)]
    assert np.abs(small - full).max() < 3 / 255


def test_a_picture_of_two_frames_is_one_image(monkeypatch):
    second = Image.new("RGB", (1600, 1200))
    content = photograph("MPO", save_all=True, append_images=[second])
    full = without_draft(content, rules(**LARGE), monkeypatch)
    assert np.abs(prepared_image(content, rules(**LARGE), "here") - full).max() < 3 / 255


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_other_formats_are_decoded_as_before(kind, monkeypatch):
    content = photograph(kind, **({"compression": "jpeg"} if kind == "TIFF" else {}))
    full = without_draft(content, rules(**LARGE), monkeypatch)
    assert np.array_equal(prepared_image(content, rules(**LARGE), "here"), full)


def test_a_small_jpeg_is_decoded_exactly(monkeypatch):
    stream = io.BytesIO()
    Image.effect_noise((900, 900), 60).save(stream, "JPEG")
    how = rules(size=32, max_pixels=1_000_000)
    full = without_draft(stream.getvalue(), how, monkeypatch)
    assert np.array_equal(prepared_image(stream.getvalue(), how, "here"), full)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_large_jpeg_is_turned_upright(orientation, monkeypatch):
    exif = Image.Exif()
    exif[0x112] = orientation
    content = photograph(exif=exif.tobytes())
    how = rules(**(LARGE | {"resize": "pad"}))
    image = prepared_image(content, how, "here")
    assert np.abs(image - without_draft(content, how, monkeypatch)).max() < 4 / 255
    bright_half = {1: "top", 2: "top", 3: "bottom", 4: "bottom", 5: "left", 6: "right", 7: "right", 8: "left"}
    halves = {"top": image[0, :16], "bottom": image[0, 16:]}
    halves |= {"left": image[0, :, :16], "right": image[0, :, 16:]}
    assert max(halves, key=lambda side: halves[side].mean()) == bright_half[orientation]


def test_the_limit_on_pixels_is_for_the_size_in_the_header():
    how = rules(**(LARGE | {"max_pixels": 1_900_000}))
    with pytest.raises(DataError, match=r"here: the image has more than 1\.9 million pixels"):
        prepared_image(photograph(), how, "here")


@pytest.mark.parametrize("source", ["images", "images.zip"])
def test_threads_keep_the_order_of_images_and_errors(place, source):
    (place / "images" / "bad.png").write_bytes(b"no image")
    with zipfile.ZipFile(place / "images.zip", "a") as archive:
        archive.writestr("bad.png", b"no image")
    names = [f"{at}.png" for at in range(24)]
    for at, name in ((2, "bad.png"), (3, "absent.png"), (9, "../out.png"), (10, "bad.png"), (23, "bad.png")):
        names[at] = name
    named = [(name, f"line {at}") for at, name in enumerate(names)]
    with open_source(place / source) as files:
        results = [list(decoded_images(named, files, rules(), workers)) for workers in (1, 2, 5, None)]
    for result in results:
        for got, expected in zip(result, results[0], strict=True):
            assert type(got) is type(expected)
            if isinstance(got, DataError):
                assert str(got) == str(expected)
            else:
                assert np.array_equal(got, expected)
    failed = [str(one).split(":")[0] for one in results[0] if isinstance(one, DataError)]
    assert failed == ["line 2", "line 3", "line 9", "line 10", "line 23"]


def test_no_more_files_are_read_ahead_than_threads_need(place):
    with open_source(place / "images") as files:
        read, usual = [], files.read
        files.read = lambda name, *rest: read.append(name) or usual(name, *rest)
        images = decoded_images([(f"{at}.png", "here") for at in range(24)], files, rules(), workers=2)
        next(images)
        images.close()
    assert read == [f"{at}.png" for at in range(4)]


def test_a_mistake_in_a_thread_is_not_lost(place, monkeypatch):
    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr(image_files, "_decoded", exhausted)
    with open_source(place / "images") as files, pytest.raises(MemoryError):
        list(decoded_images([("1.png", "here")] * 5, files, rules(), workers=2))


@pytest.mark.parametrize("source", ["images", "images.zip"])
def test_a_stamp_changes_with_the_file_and_only_inside(place, source):
    (place / "out.png").write_bytes(picture(1))
    (place / "images" / "link.png").symlink_to("../out.png")
    (place / "images" / "loop.png").symlink_to("loop.png")
    with open_source(place / source) as files:
        stamps = [files.stamp(f"{at}.png") for at in (1, 2)]
        assert None not in stamps
        outside = ("../out.png", str(place / "out.png"), "link.png", "loop.png", "absent.png", "", "a\0b")
        assert [files.stamp(name) for name in (*outside, "x" * 5000)] == [None] * 8
    with zipfile.ZipFile(place / "images.zip", "w") as archive:
        archive.writestr("1.png", picture(99))
    (place / "images" / "1.png").write_bytes(picture(99))
    with open_source(place / source) as files:
        assert files.stamp("1.png") not in stamps
