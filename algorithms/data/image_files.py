"""Images from a folder or a zip archive to tensors, with limits on what a file may cost to read.

A name in a table is somebody else's text: it must stay inside the folder or archive, whatever it says. An
image is decoded only if its format is expected and its size, as its header states it, is within the limits.
Errors name the file and line of the table, and never the image: such names often contain a patient's number.
"""

from __future__ import annotations

import io
import lzma
import struct
import warnings
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from secfed.errors import ConfigError, DataError, installing

_FORMATS: Final = ("JPEG", "PNG", "TIFF")
FLAT: Final = 1e-6  # a spread below this is an image of one colour


@dataclass(frozen=True)
class Preparation:
    """How an image file becomes [channels, size, size] float32; see the options of the same names."""

    size: int
    channels: int
    resize: Literal["pad", "crop", "stretch"]
    # Mean and spread of pixels in [0, 1], one per channel or one for all; None: each image's own.
    constants: tuple[tuple[float, ...], tuple[float, ...]] | None
    max_bytes: int
    max_pixels: int


class ImageSource(ABC):
    """Files by name."""

    def read(self, name: str, limit_bytes: int, where: str) -> bytes:
        """The content of one file; its name is relative to the folder or archive, with forward slashes.

        DataError for a name that leads outside, no such file, one that is too large or unreadable.
        """
        if not stays_inside(name):
            raise _outside(where)
        content = self._read(name, limit_bytes + 1, where)
        if len(content) > limit_bytes:
            message = f"{where}: the file has more than {limit_bytes >> 20} MiB"
            raise DataError(message, remedy="raise data.max_image_mib")
        return content

    @abstractmethod
    def _read(self, name: str, most_bytes: int, where: str) -> bytes: ...


@contextmanager
def open_source(path: Path, key: str = "data.images") -> Iterator[ImageSource]:
    """Open a folder or a ``.zip`` file for reading."""
    if path.is_dir():
        yield _Folder(path)
        return
    try:
        archive = zipfile.ZipFile(path)
    except OSError as error:
        raise DataError(f"{key}: cannot open {path} ({error.strerror})", remedy="check its rights") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error):
        message = f"{key}: {path.name} is neither a folder nor a zip"
        raise DataError(message, remedy="name one of them") from None
    with archive:
        yield _Archive(archive, path.name)


class _Folder(ImageSource):
    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def _read(self, name: str, most_bytes: int, where: str) -> bytes:
        # A link inside the folder may lead outside, so the place is checked after following links.
        try:
            path = (self._root / name).resolve()
        except RuntimeError:  # a link that leads to itself
            raise _absent(where, self._root.name) from None
        if not path.is_relative_to(self._root):
            raise _outside(where)
        try:
            with path.open("rb") as stream:
                return stream.read(most_bytes)
        except (OSError, ValueError):
            raise _absent(where, self._root.name) from None


class _Archive(ImageSource):
    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self._archive, self._name = archive, name

    def _read(self, name: str, most_bytes: int, where: str) -> bytes:
        try:
            entry = self._archive.getinfo(name)
        except KeyError:
            raise _absent(where, self._name) from None
        try:
            with self._archive.open(entry) as stream:  # the stated size may be a lie, so the reading stops
                return stream.read(most_bytes)
        except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError, zlib.error, lzma.LZMAError):
            raise DataError(
                f"{where}: this file in {self._name} is damaged, encrypted or packed in an unknown way",
                remedy="make the archive again, with ordinary compression and without a password",
            ) from None


def stays_inside(name: str) -> bool:
    """Whether a file name is relative and has no drive, no backslash and no step upwards."""
    parts = PurePosixPath(name).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and not any(mark in name for mark in "\\:\0")


def prepared_image(content: bytes, rules: Preparation, where: str) -> NDArray[np.float32]:
    """Decode, turn upright, resize and normalise one image: [channels, size, size] float32."""
    try:
        from PIL import Image, ImageOps  # part of an extra
    except ImportError:
        raise ConfigError(
            "data.images: needs the library Pillow",
            remedy=installing("vision-language"),
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own, higher limit; and hints about odd metadata
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                if image.width * image.height > rules.max_pixels:
                    raise _too_many_pixels(rules, where)
                upright = _resized(_eight_bit(ImageOps.exif_transpose(image), rules.channels), rules)
    except (DataError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise _too_many_pixels(rules, where) from None
    except Exception:  # noqa: BLE001 - a wrong byte, or odd metadata, makes Pillow raise almost anything
        message = f"{where}: the image cannot be read"
        raise DataError(message, remedy=f"give {', '.join(_FORMATS)} of 8 or 16 bits, undamaged") from None
    values = np.asarray(upright, dtype=np.float32).reshape(rules.size, rules.size, rules.channels)
    pixels = values / np.float32(255)
    return np.ascontiguousarray(_normalised(pixels.transpose(2, 0, 1), rules))


def _eight_bit(image: Any, channels: int) -> Any:
    """Grey or colour with 8 bits; Pillow itself would cut 16 bits off instead of scaling them."""
    from PIL import Image  # see above

    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image, dtype=np.float64) / 257).clip(0, 255).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("floating point")  # becomes the DataError of the caller
    return image.convert("L" if channels == 1 else "RGB")


def _resized(image: Any, rules: Preparation) -> Any:
    from PIL import Image, ImageOps  # see above

    side, method = (rules.size, rules.size), Image.Resampling.BICUBIC
    if rules.resize == "pad":
        return ImageOps.pad(image, side, method)
    if rules.resize == "crop":
        return ImageOps.fit(image, side, method)
    return image.resize(side, method)


def _normalised(pixels: NDArray[np.float32], rules: Preparation) -> NDArray[np.float32]:
    if rules.constants is None:
        return np.asarray((pixels - pixels.mean()) / max(float(pixels.std()), FLAT), dtype=np.float32)
    mean, spread = (np.array(numbers, dtype=np.float32).reshape(-1, 1, 1) for numbers in rules.constants)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # check_image_text's business
        return np.asarray((pixels - mean) / spread, dtype=np.float32)


def _too_many_pixels(rules: Preparation, where: str) -> DataError:
    message = f"{where}: the image has more than {rules.max_pixels / 1e6:g} million pixels"
    return DataError(message, remedy="make it smaller, or raise data.max_megapixels")


def _outside(where: str) -> DataError:
    message = f"{where}: the file name leads outside the folder or archive"
    return DataError(message, remedy="use names inside data.path, with forward slashes")


def _absent(where: str, source: str) -> DataError:
    return DataError(
        f"{where}: there is no such file in {source}",
        remedy="check the name, data.path and, for images, data.images, image_folder and image_suffix",
    )
