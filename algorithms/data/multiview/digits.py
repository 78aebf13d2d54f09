"""``digits-views``: real handwriting in several views; scikit-learn carries it, nothing is downloaded.

A record is several *different* images of the same digit, one per view; no image occurs twice. ``pixels``: the
8 x 8 image (64 features); ``fourier``: magnitudes of low frequencies, which hardly notice where the digit
stands (66); ``edges``: how brightness changes, in eight directions, in 4 x 4 cells (128). Every feature lies
in [0, 1] by constants that follow from its formula, not from records.

Source: Alpaydin, Kaynak, Optical Recognition of Handwritten Digits (test part), UCI, 1998. Feature families:
van Breukelen, Duin, Tax, den Hartog, Kybernetika 34, 1998. Gradient cells: Dalal, Triggs, CVPR 2005, section
6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data import bundled
from secfed.algorithms.data.multiview.base import MultiviewData, ViewRecords
from secfed.algorithms.data.multiview.options import DigitsViewsOptions
from secfed.algorithms.data.multiview.sets import pooled
from secfed.algorithms.framework.randomness import numpy_generator

Images = NDArray[np.float64]

_CLASSES: Final = 10
_SIDE: Final = 8
_GRID: Final = 16  # the image is put into an empty frame of this side before the transform
_FREQUENCIES: Final = 5  # -5 .. 5 from top to bottom, 0 .. 5 from left to right
_DIRECTIONS: Final = 8
_CELLS: Final = 4  # per side


def digits_views(options: DigitsViewsOptions, seed: int, folder: Path) -> MultiviewData:
    """About 1797 / V records of V views, 10 classes; which images form a record never changes."""
    del folder
    sizes = tuple(_VIEWS[view][1] for view in options.views)
    return pooled(lambda: _load(options.views), options, sizes, _CLASSES, seed)


def pixels(images: Images) -> Images:
    """The images ([n, 8, 8] in [0, 1]) themselves: [n, 64]."""
    return images.reshape(len(images), -1)


def fourier(images: Images) -> Images:
    """Logarithmic magnitudes of low frequencies, none above the sum of the 64 pixels: [n, 66] in [0, 1]."""
    spectrum = np.abs(np.fft.fft2(images, s=(_GRID, _GRID), axes=(1, 2)))
    rows = np.arange(-_FREQUENCIES, _FREQUENCIES + 1) % _GRID
    low = spectrum[:, rows, : _FREQUENCIES + 1].reshape(len(images), -1)
    features: Images = np.log1p(low) / math.log1p(_SIDE * _SIDE)
    return features.clip(max=1.0)  # rounding can pass 1 by an ulp


def edges(images: Images) -> Images:
    """Mean gradient magnitude by direction and cell: [n, 128] in [0, 1].

    A gradient between two of the eight directions counts for both, by its distance from them; none exceeds
    sqrt(1/2).
    """
    framed = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    right = (framed[:, 1:-1, 2:] - framed[:, 1:-1, :-2]) / 2
    down = (framed[:, 2:, 1:-1] - framed[:, :-2, 1:-1]) / 2
    magnitude = np.hypot(right, down) / math.sqrt(0.5)
    position = (np.arctan2(down, right) + math.pi) / (2 * math.pi) * _DIRECTIONS
    by_direction = []
    for direction in range(_DIRECTIONS):
        apart = np.abs(position - direction)
        near = np.maximum(1 - np.minimum(apart, _DIRECTIONS - apart), 0)
        width = _SIDE // _CELLS
        cells = (magnitude * near).reshape(len(images), _CELLS, width, _CELLS, width)
        by_direction.append(cells.mean(axis=(2, 4)).reshape(len(images), -1))
    return np.concatenate(by_direction, axis=1).clip(max=1.0)


_VIEWS: Final[Mapping[str, tuple[Callable[[Images], Images], int]]] = {  # how it is computed, and its width
    "pixels": (pixels, _SIDE * _SIDE),
    "fourier": (fourier, (2 * _FREQUENCIES + 1) * (_FREQUENCIES + 1)),
    "edges": (edges, _DIRECTIONS * _CELLS * _CELLS),
}


def _load(views: tuple[str, ...]) -> ViewRecords:
    images, digits = bundled.digits()
    images = images / 16.0
    members = image_of_record(digits, len(views))
    shown = zip(views, members, strict=True)
    read = tuple(_VIEWS[view][0](images[rows]).astype(np.float32) for view, rows in shown)
    return ViewRecords(read, digits[members[0]])


def image_of_record(digits: NDArray[np.int64], views: int) -> NDArray[np.int64]:
    """Which image gives each view of each record: [views, n], positions in ``digits``.

    All views of a record show the same digit, and no image is used twice; up to ``views - 1`` images of
    each digit are left over.
    """
    rng = numpy_generator(0, "digits-views")  # not the study's seed: the data set is always the same one
    blocks = []
    for digit in range(_CLASSES):
        images = rng.permutation(np.flatnonzero(digits == digit))
        records = len(images) // views
        blocks.append(images[: records * views].reshape(views, records))
    return np.concatenate(blocks, axis=1)
