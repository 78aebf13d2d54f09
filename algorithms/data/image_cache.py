"""Decoded images that are kept on the disk, so that the next training process need not decode them.

Where the environment variable ``SECFED_IMAGE_CACHE`` names a folder, each list of images has one file there:
a ``.npy`` of uint8 [n, size, size, channels] and, behind it, a checksum. Its name is a digest of what decides
the pixels. The limits on files are part of that: what one study's limits let in, another's may leave out.

Security: such a file holds patients' images. It and a folder made here are for this account alone, and no
name of an image or site is in either.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import numpy as np

from secfed.algorithms.data.image_files import ImageSource, Pixels, Preparation, decoded_images
from secfed.errors import ConfigError, DataError
from secfed.storage.atomic import write_shared
from secfed.storage.private_files import make_folder

FOLDER: Final = "SECFED_IMAGE_CACHE"

_FORMAT: Final = 1  # raised whenever the same files would give other pixels
CHECKSUM_BYTES: Final = 4


def loaded_images(
    named: Sequence[tuple[str, str]], source: ImageSource, rules: Preparation
) -> Generator[Pixels | DataError, None, None]:
    """As ``decoded_images``, from the cache where it has this list; else it is kept, if no image failed."""
    path = _path([name for name, _ in named], source, rules)
    if path is None:
        yield from decoded_images(named, source, rules)
        return
    shape = (len(named), rules.size, rules.size, rules.channels)
    cached = _read(path, shape)
    if cached is not None:
        yield from cached
        return
    pixels = np.empty(shape, dtype=np.uint8)
    failed = False
    with closing(decoded_images(named, source, rules)) as images:
        for at, image in enumerate(images):
            if isinstance(image, DataError):
                failed = True
            else:
                pixels[at] = image
            yield image
    if not failed:
        _write(path, pixels)


def _path(names: Sequence[str], source: ImageSource, rules: Preparation) -> Path | None:
    """Where the pixels of a list belong; None without a cache, or where an image cannot be read anyhow.

    Files are looked at before they are read: one that changes in between is decoded again next time.
    """
    folder = os.environ.get(FOLDER)
    if not folder or not names:
        return None
    files = []
    for name in names:
        stamp = source.stamp(name)
        if stamp is None:
            return None
        files.append((name, stamp))
    how = (rules.size, rules.channels, rules.resize, rules.max_bytes, rules.max_pixels)
    key = hashlib.sha256(json.dumps([_FORMAT, how, files]).encode())
    return Path(folder) / f"{key.hexdigest()}.npy"


def _read(path: Path, shape: tuple[int, ...]) -> np.memmap[tuple[int, ...], np.dtype[np.uint8]] | None:
    """The pixels in a file; None where it is missing or not exactly what is written here."""
    head = _head(shape)
    try:
        with path.open("rb") as stream:
            if stream.read(len(head)) != head:
                return None
            pixels = np.memmap(stream, np.uint8, "r", len(head), shape)
            stream.seek(len(head) + pixels.nbytes)
            whole = stream.read(CHECKSUM_BYTES + 1) == checksum(pixels.data)
    except (OSError, ValueError):  # ValueError: too short for its shape
        return None
    return pixels if whole else None


def _write(path: Path, pixels: Pixels) -> None:
    # A full disk, or no right to write, only means that the next process decodes again.
    with suppress(ConfigError):
        make_folder(path.parent)
        write_shared(path, _head(pixels.shape), pixels.data, checksum(pixels.data))


def _head(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def checksum(content: bytes | bytearray | memoryview) -> bytes:
    """Tells a file that is whole from one that is cut or damaged; nobody who means harm is kept out."""
    return zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "big")
