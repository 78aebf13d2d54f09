"""``multi-fashion``: three views of 10,000 pieces of clothing, made from the published Fashion-MNIST files.

A view is a photograph: the three views of a record are different pieces of one class, as in the set of this
name that multi-view clustering uses. Which pieces those are is drawn once, from a constant and not from the
study's seed; the published draw is not documented, so records are not those of the papers one by one.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST", arXiv 1708.07747 (images, in the IDX format of MNIST); Peng et
al., COMIC, ICML 2019, and Xu et al., MFLVC, CVPR 2022 (pieces of one class as views).
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.folders import data_folder
from secfed.algorithms.data.multiview.base import MultiviewData, ViewRecords
from secfed.algorithms.data.multiview.options import MultiFashionOptions
from secfed.algorithms.data.multiview.sets import pooled
from secfed.algorithms.framework.randomness import numpy_generator
from secfed.errors import DataError

IMAGES: Final = "train-images-idx3-ubyte"
LABELS: Final = "train-labels-idx1-ubyte"
VIEWS: Final = 3
_SIDE, _CLASSES = 28, 10
_PER_CLASS: Final = 1000  # records
_DRAW: Final = 0
_BYTES: Final = 8  # the format's code for unsigned bytes


def multi_fashion(options: MultiFashionOptions, seed: int, folder: Path) -> MultiviewData:
    """10,000 records, three views of 784 pixels from 0 to 1, 10 classes."""
    path = data_folder() / "fashion-mnist" if options.path is None else folder / options.path
    return pooled(lambda: _records(path), options, (_SIDE * _SIDE,) * VIEWS, _CLASSES, seed)


def _records(folder: Path) -> ViewRecords:
    images, labels = _read(folder, IMAGES, 3), _read(folder, LABELS, 1)
    if images.shape != (len(labels), _SIDE, _SIDE) or labels.max(initial=0) >= _CLASSES:
        raise DataError(
            f"{folder}: images and labels are not those of Fashion-MNIST",
            remedy=f"take {IMAGES}.gz and {LABELS}.gz from one place; images have 28 x 28 pixels",
        )
    rng, drawn = numpy_generator(_DRAW, "multi-fashion"), []
    for label in range(_CLASSES):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = min(_PER_CLASS, len(rows) // VIEWS)
        drawn.append(rows[: VIEWS * count].reshape(VIEWS, count))
    each = np.concatenate(drawn, axis=1)
    flat = images.reshape(len(images), -1)
    views = tuple(flat[rows].astype(np.float32) / 255 for rows in each)
    return ViewRecords(views, labels[each[0]].astype(np.int64))


def _read(folder: Path, name: str, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes in the IDX format, packed with gzip or not."""
    packed, plain = folder / f"{name}.gz", folder / name
    try:
        data = plain.read_bytes() if plain.is_file() else gzip.decompress(packed.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{packed} does not exist",
            remedy="set data.path to the folder with the files of Fashion-MNIST, or the environment variable "
            "SECFED_DATA to the folder that contains fashion-mnist",
        ) from None
    except (OSError, EOFError):
        raise DataError(f"cannot read {packed}", remedy="get the file once more") from None
    header = 4 + 4 * dimensions
    if len(data) >= header and data[:4] == bytes([0, 0, _BYTES, dimensions]):
        shape = struct.unpack(f">{dimensions}I", data[4:header])
        if len(data) == header + math.prod(shape):
            return np.frombuffer(data, np.uint8, offset=header).reshape(shape)
    raise DataError(f"{name} is damaged, or not in the IDX format", remedy="get the file once more")
