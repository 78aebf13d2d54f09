"""``scenes``: SYNTHETIC scenes of coloured shapes and their captions, made on the spot.

24 x 24 pixels in four cells, three with one of four shapes in one of five colours, moved a little, under
Gaussian noise; a caption names the objects in random order with their places. Image and text sites tell the
first object in reading order (20 classes): easy from an image, a comparison of places from a caption. In
another domain, image sites tell the colour and pattern of stripes, and text sites which two words of a list
are repeated (20 classes, too). A site makes its own records only, from the study's seed and its own name;
pixels are prepared by public constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.data.base import RecordByRecord, site_index
from secfed.algorithms.data.tokens import CLS, PAD, RESERVED
from secfed.algorithms.data.transfer.base import Kind, Samples, TransferSite, check_transfer
from secfed.algorithms.data.transfer.options import ScenesOptions
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.randomness import numpy_generator

SIZE: Final = 24
COLOURS: Final = ("red", "green", "blue", "yellow", "purple")
SHAPES: Final = ("square", "circle", "triangle", "cross")
PLACES: Final = (("top", "left"), ("top", "right"), ("bottom", "left"), ("bottom", "right"))
FILLERS: Final = ("the", "and", "with", "also")
WORDS: Final = (*COLOURS, *SHAPES, "top", "bottom", "left", "right", *FILLERS)
"""Word i of the vocabulary has the token ``RESERVED + i``."""

CLASSES: Final = len(COLOURS) * len(SHAPES)
OBJECTS: Final = 3
_CELL: Final = SIZE // 2
_OBJECT: Final = 10
_MOVES: Final = _CELL - _OBJECT + 1  # 0, 1 or 2 pixels
_LENGTH: Final = 2 + 4 * OBJECTS  # the first token, perhaps a filler, and four words per object
_STRIPE: Final = 3  # pixels
_TIMES: Final = 3  # that a list has the words of its class
_NOISE: Final = 0.1
_MEAN: Final = 0.5
_SPREAD: Final = 0.5
_RGB: Final = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1]], dtype=np.float32)

Ids = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Scenes:
    """What scenes show; of the empty cell, colour and shape mean nothing."""

    empty: Ids  # [n] which of the four cells, in reading order, holds nothing
    colours: Ids  # [n, 4] of the object in each cell
    shapes: Ids  # [n, 4]

    @property
    def labels(self) -> Ids:
        """Class of each scene: colour and shape of the first object in reading order, [n] in 0 .. 19."""
        first = (self.empty == 0).astype(np.int64)
        rows = np.arange(len(first))
        return np.asarray(self.colours[rows, first] * len(SHAPES) + self.shapes[rows, first], dtype=np.int64)


class SceneSites(RecordByRecord):
    """Synthetic scenes of simulated sites; another seed gives other records."""

    def __init__(self, options: ScenesOptions, seed: int) -> None:
        self.sites: tuple[SiteId, ...] = options.site_ids()
        self.kind_of: dict[SiteId, Kind] = options.kind_of
        self.image_shape: tuple[int, int, int] = (3, SIZE, SIZE)
        self.text_length = _LENGTH
        self.vocabulary = RESERVED + len(WORDS)
        self.image_classes = CLASSES
        self.text_classes = CLASSES
        self._options, self._seed = options, seed

    def site(self, site_id: SiteId) -> TransferSite:
        """One site's synthetic records."""
        site_index(self.sites, site_id)
        kind, options = self.kind_of[site_id], self._options
        usual, test = (
            (options.pairs, options.test_pairs)
            if kind == "pairs"
            else (options.records, options.test_records)
        )
        factor = 1 + options.uneven * numpy_generator(self._seed, "scenes", site_id, "size").uniform(-1, 1)
        train, held_out = (
            self._samples(kind, count, numpy_generator(self._seed, "scenes", site_id, part))
            for part, count in (("train", max(1, round(usual * factor))), ("test", test))
        )
        return check_transfer(site_id, TransferSite(kind, train, held_out), self)

    def public_pairs(self, count: int) -> Samples:
        """Scenes and their descriptions that no site holds."""
        return self._samples("pairs", count, numpy_generator(self._seed, "scenes", "public pairs"))

    def _samples(self, kind: Kind, count: int, rng: np.random.Generator) -> Samples:
        if kind == "image" and self._options.images == "stripes":
            labels = rng.integers(CLASSES, size=count)
            return Samples(torch.from_numpy(stripes(labels, rng)), None, torch.from_numpy(labels))
        if kind == "text" and self._options.texts == "lists":
            labels = rng.integers(CLASSES, size=count)
            return Samples(None, torch.from_numpy(lists(labels, rng)), torch.from_numpy(labels))
        shown = draw(count, rng)
        return Samples(
            images=None if kind == "text" else torch.from_numpy(render(shown, rng)),
            tokens=None if kind == "image" else torch.from_numpy(describe(shown, rng)),
            labels=None if kind == "pairs" else torch.from_numpy(shown.labels),
            sources=torch.arange(count) if kind == "pairs" else None,
        )


def draw(count: int, rng: np.random.Generator) -> Scenes:
    """Random scenes: every cell may be the empty one, every object any shape in any colour."""
    return Scenes(
        empty=rng.integers(len(PLACES), size=count),
        colours=rng.integers(len(COLOURS), size=(count, len(PLACES))),
        shapes=rng.integers(len(SHAPES), size=(count, len(PLACES))),
    )


def render(shown: Scenes, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw scenes: [n, 3, 24, 24] float32, standardised by public constants."""
    count = len(shown.empty)
    moved = rng.integers(_MOVES, size=(count, len(PLACES), 2))
    held = (np.arange(len(PLACES)) != shown.empty[:, np.newaxis]).astype(np.float32)
    covered = _CELLS[shown.shapes, moved[..., 0], moved[..., 1]].reshape(count, 2, 2, 1, _CELL, _CELL)
    colours = (_RGB[shown.colours] * held[..., np.newaxis]).reshape(count, 2, 2, 3, 1, 1)
    # Rows of cells and rows within a cell become rows of pixels; so do columns.
    clean = (covered * colours).transpose(0, 3, 1, 4, 2, 5).reshape(count, 3, SIZE, SIZE)
    return _photographed(clean, rng)


def stripes(labels: Ids, rng: np.random.Generator) -> NDArray[np.float32]:
    """Rows, columns, diagonals or squares of one colour, moved by chance: [n, 3, 24, 24] float32, as scenes.

    Class [n] is ``4 * colour + pattern``.
    """
    colour, pattern = np.divmod(labels, len(SHAPES))
    moved = rng.integers(2 * _STRIPE, size=(2, len(labels), 1, 1))
    row, column = (at + by for at, by in zip(np.mgrid[:SIZE, :SIZE], moved, strict=True))
    rows, columns = row // _STRIPE, column // _STRIPE
    kinds = np.stack([rows + 0 * columns, columns + 0 * rows, (row + column) // _STRIPE, rows + columns])
    lit = (kinds[pattern, np.arange(len(labels))] % 2).astype(np.float32)
    return _photographed(lit[:, np.newaxis] * _RGB[colour][:, :, np.newaxis, np.newaxis], rng)


def lists(labels: Ids, rng: np.random.Generator) -> Ids:
    """Words in random order, two of them three times: the colour and shape of the class; [n, 14] int64."""
    named = np.stack([labels // len(SHAPES), len(COLOURS) + labels % len(SHAPES)], axis=1)
    others = np.argsort(rng.random((len(labels), len(WORDS))), axis=1)
    # Of the other words, each once: those that are no name of the class, in an order of chance.
    is_named = (others[:, :, np.newaxis] == named[:, np.newaxis]).any(axis=2)
    others = np.take_along_axis(others, np.argsort(is_named, axis=1, kind="stable"), axis=1)
    words = np.concatenate([np.repeat(named, _TIMES, axis=1), others[:, : _LENGTH - 1 - 2 * _TIMES]], axis=1)
    first = np.full((len(labels), 1), CLS, dtype=np.int64)
    return np.concatenate([first, RESERVED + rng.permuted(words, axis=1)], axis=1)


def _photographed(clean: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Under noise, and standardised by public constants."""
    pixels: NDArray[np.float32] = rng.standard_normal(clean.shape, dtype=np.float32)
    pixels *= np.float32(_NOISE)
    pixels += clean
    pixels -= np.float32(_MEAN)
    pixels /= np.float32(_SPREAD)
    return pixels


def describe(shown: Scenes, rng: np.random.Generator) -> Ids:
    """Captions of scenes as token ids: [n, 14] int64.

    Objects are in random order, and each has its place before or after it, drawn by itself. Half of the
    captions have a filler before an object or at the end.
    """
    count = len(shown.empty)
    rows = np.arange(count)[:, np.newaxis]
    order = rng.permuted(np.tile(np.arange(OBJECTS), (count, 1)), axis=1)
    cells = order + (order >= shown.empty[:, np.newaxis])  # the k-th cell that is not empty
    what = np.stack([_COLOUR_IDS[shown.colours[rows, cells]], _SHAPE_IDS[shown.shapes[rows, cells]]], axis=-1)
    where = _PLACE_IDS[cells]
    place_first = rng.integers(2, size=(count, OBJECTS, 1, 1)).astype(np.bool_)
    both = np.stack([what, where], axis=2)  # [n, object, what and where, two words]
    words = np.where(place_first, both[:, :, ::-1], both).reshape(count, 4 * OBJECTS)
    fillers = _FILLER_IDS[rng.integers(len(FILLERS), size=count)]
    slot = rng.integers(OBJECTS + 1, size=count)
    has = rng.integers(2, size=count).astype(np.bool_)
    # A key per word puts the filler before object k (key 2k), and padding behind all words.
    keys = np.empty((count, 1 + words.shape[1]), dtype=np.int64)
    keys[:, 0] = np.where(has, 2 * slot, 2 * OBJECTS + 1)
    keys[:, 1:] = np.repeat(2 * np.arange(OBJECTS) + 1, 4)
    row = np.concatenate([np.where(has, fillers, PAD)[:, np.newaxis], words], axis=1)
    sorted_row = np.take_along_axis(row, np.argsort(keys, axis=1, kind="stable"), axis=1)
    return np.concatenate([np.full((count, 1), CLS, dtype=np.int64), sorted_row], axis=1)


def _cells() -> NDArray[np.float32]:
    """Which pixels of a cell each shape covers when it is moved down and right: [shapes, 3, 3, 12, 12]."""
    row, column = np.mgrid[:_OBJECT, :_OBJECT].astype(np.float64) - (_OBJECT - 1) / 2
    half = _OBJECT / 2
    square = np.ones_like(row, dtype=np.bool_)
    circle = row**2 + column**2 <= half**2
    triangle = np.abs(column) <= (row + half) / 2
    cross = np.minimum(np.abs(row), np.abs(column)) <= 1.5
    cells = np.zeros((len(SHAPES), _MOVES, _MOVES, _CELL, _CELL), dtype=np.float32)
    for down in range(_MOVES):
        for right in range(_MOVES):
            window = cells[:, down, right, down : down + _OBJECT, right : right + _OBJECT]
            window[:] = np.stack([square, circle, triangle, cross])
    return cells


def _ids(words: tuple[str, ...]) -> Ids:
    return np.array([RESERVED + WORDS.index(word) for word in words], dtype=np.int64)


_CELLS: Final = _cells()
_COLOUR_IDS: Final = _ids(COLOURS)
_SHAPE_IDS: Final = _ids(SHAPES)
_FILLER_IDS: Final = _ids(FILLERS)
_PLACE_IDS: Final = np.stack([_ids(place) for place in PLACES])
