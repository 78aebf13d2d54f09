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
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from secfed.crypto.masked.threads import processors
from secfed.errors import ConfigError, DataError, installing

Pixels = NDArray[np.uint8]
"""[size, size, channels]"""

_FORMATS: Final = ("JPEG", "PNG", "TIFF")
_MOST_WORKERS: Final = 8  # each may hold an image of data.max_megapixels
_SMALL: Final = 1_000_000  # pixels; below it decoding is cheap, and stays exact
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

    def stamp(self, name: str) -> str | None:
        """What changes when this file is another or gets another content; None where it cannot be read."""
        return self._stamp(name) if stays_inside(name) else None

    @abstractmethod
    def _read(self, name: str, most_bytes: int, where: str) -> bytes: ...

    @abstractmethod
    def _stamp(self, name: str) -> str | None: ...


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
        yield _Archive(archive, path)


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

    def _stamp(self, name: str) -> str | None:
        try:
            path = (self._root / name).resolve()
            if not path.is_relative_to(self._root):
                return None
            facts = path.stat()
        except (OSError, RuntimeError, ValueError):
            return None
        # Two files of one size and time can change names; then these two tell.
        return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino} {self._root}"


class _Archive(ImageSource):
    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive, self._name, self._path = archive, path.name, path.resolve()

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

    def _stamp(self, name: str) -> str | None:
        try:
            entry = self._archive.getinfo(name)
        except KeyError:
            return None
        return f"{entry.CRC} {entry.file_size} {self._path}"


def stays_inside(name: str) -> bool:
    """Whether a file name is relative and has no drive, no backslash and no step upwards."""
    parts = PurePosixPath(name).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and not any(mark in name for mark in "\\:\0")


def prepared_image(content: bytes, rules: Preparation, where: str) -> NDArray[np.float32]:
    """Decode, turn upright, resize and normalise one image: [channels, size, size] float32."""
    _load_pillow()
    with _silent():
        pixels = _decoded(content, rules, where)
    return normalised(pixels, rules)


def decoded_images(
    named: Sequence[tuple[str, str]], source: ImageSource, rules: Preparation, workers: int | None = None
) -> Generator[Pixels | DataError, None, None]:
    """In the order of the list (file name, and where it stands) each image, or why it cannot be used.

    The calling thread reads, because archives do not allow more; threads decode. A list that is given up
    before its end needs ``close()``.

    Args:
        workers: images that are decoded at a time; by default one per processor, at most 8.
    """
    workers = workers or min(_MOST_WORKERS, processors())
    if named:
        _load_pillow()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="images") if workers > 1 else None
    started: deque[Future[Pixels | DataError]] = deque()
    with _silent():  # for all threads: the filters of warnings belong to the process
        try:
            for name, where in named:
                content = _content(source, name, rules, where)
                if pool is None:
                    yield _decoded_or_error(content, rules, where)
                    continue
                started.append(pool.submit(_decoded_or_error, content, rules, where))
                if len(started) == 2 * workers:  # no more files than that are in memory
                    yield started.popleft().result()
            while started:
                yield started.popleft().result()
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)


def normalised(pixels: Pixels, rules: Preparation) -> NDArray[np.float32]:
    """One decoded image as [channels, size, size] float32."""
    values = np.asarray(pixels, dtype=np.float32) / np.float32(255)
    return np.ascontiguousarray(_normalised(values.transpose(2, 0, 1), rules))


def _content(source: ImageSource, name: str, rules: Preparation, where: str) -> bytes | DataError:
    try:
        return source.read(name, rules.max_bytes, where)
    except DataError as error:
        return error  # told when its turn comes


def _decoded_or_error(content: bytes | DataError, rules: Preparation, where: str) -> Pixels | DataError:
    if isinstance(content, DataError):
        return content
    try:
        return _decoded(content, rules, where)
    except DataError as error:
        return error


def _load_pillow() -> None:
    try:
        from PIL import Image  # part of an extra
    except ImportError:
        raise ConfigError(
            "data.images: needs the library Pillow",
            remedy=installing("vision-language"),
        ) from None
    # Before threads do it: one that comes while another loads the formats takes a TIFF for no image.
    Image.init()


@contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own, higher limit; and hints about odd metadata
        yield


def _decoded(content: bytes, rules: Preparation, where: str) -> Pixels:
    from PIL import Image, ImageOps  # see above

    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            if image.width * image.height > rules.max_pixels:
                raise _too_many_pixels(rules, where)
            _draft(image, rules.size)
            upright = _resized(_eight_bit(ImageOps.exif_transpose(image), rules.channels), rules)
    except (DataError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise _too_many_pixels(rules, where) from None
    except Exception:  # noqa: BLE001 - a wrong byte, or odd metadata, makes Pillow raise almost anything
        message = f"{where}: the image cannot be read"
        raise DataError(message, remedy=f"give {', '.join(_FORMATS)} of 8 or 16 bits, undamaged") from None
    return np.asarray(upright, dtype=np.uint8).reshape(rules.size, rules.size, rules.channels)


def _draft(image: Any, size: int) -> None:
    """Have a large JPEG decoded at 1/2, 1/4 or 1/8, and still at least twice as large as it will be.

    Nothing is decoded yet. Pillow's thumbnails are made so (``reducing_gap=2.0``); other formats ignore it.
    """
    # The mode stays what it is: a JPEG's own brightness differs from that of its colours where they are
    # clipped, and large and small images would become grey in two ways. Most X-rays are grey already.
    if image.width * image.height > _SMALL:
        image.draft(None, (2 * size, 2 * size))


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
