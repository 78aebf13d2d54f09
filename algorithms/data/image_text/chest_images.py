"""Synthetic chest images: simple shapes for lungs, heart, findings and devices; nothing comes from a patient.

They have just enough structure that an encoder has to look at *where*, *how much* and *what kind*.
Coordinates: x from -1 (left of the picture, the patient's right) to 1, y from -1 (top) to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.image_text.chest_reports import FINDINGS, Latents

Images = NDArray[np.float32]

EDEMA, EFFUSION, CONSOLIDATION, PNEUMOTHORAX, PNEUMONIA = range(len(FINDINGS))

_LUNG_X: Final = 0.42
_LUNG_Y: Final = -0.05
_LUNG_WIDTH: Final = 0.34
_LUNG_HEIGHT: Final = 0.68
_ZONE_Y: Final = (-0.42, -0.04, 0.34)
_AMPLITUDE: Final = (0.22, 0.36, 0.5)  # of an opacity, by severity
_BLOBS: Final = (4, 8)
_IN_MASK: Final = 0.5  # of the height of an opacity
_JITTER: Final = 0.02  # one percent of the width of the picture
_CHUNK: Final = 256


@dataclass(frozen=True)
class Style:
    """How one site's machine shows things."""

    gamma: float  # exponent of brightness
    contrast: float  # factor around middle grey
    noise: float  # spread of the noise of a pixel
    vignette: float  # darkening of the corners


def site_style(index: int, strength: float) -> Style:
    """The style of the site with this index (from 0); strength is 0 (all sites alike) to 1.

    Source: low-discrepancy points from the powers of the generalised golden ratio in four dimensions, so
        that the styles of any number of sites lie apart and one more site lies apart from all of them.
    """
    golden = 1.1673039782614187  # the real root of x^5 = x + 1
    place = [math.fmod(0.5 + (index + 1) / golden**power, 1.0) for power in range(1, 5)]
    return Style(
        gamma=math.exp(strength * 1.2 * (place[0] - 0.5)),
        contrast=1.0 + strength * 0.8 * (place[1] - 0.6),
        noise=0.02 + strength * 0.06 * place[2],
        vignette=strength * 0.4 * place[3],
    )


def render(
    latents: Latents, size: int, styles: tuple[Style, ...], which: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Images, NDArray[np.bool_]]:
    """Draw records, each in the style that ``which`` ([n]) says.

    Images [n, size, size] float32 in [0, 1], and masks [n, size, size] of the pixels that show an opacity. A
    pneumothorax is dark and in no mask.
    """
    images = np.empty((len(latents), size, size), dtype=np.float32)
    masks = np.empty((len(latents), size, size), dtype=np.bool_)
    table = np.array([(s.gamma, s.contrast, s.noise, s.vignette) for s in styles], dtype=np.float32)
    for start in range(0, len(latents), _CHUNK):
        part = slice(start, min(start + _CHUNK, len(latents)))
        scene = _Scene(latents.take(part), size, rng)
        images[part] = _styled(scene.image, table[which[part]], rng)
        masks[part] = scene.mask
    return images, masks


class _Scene:
    """One chunk of records, drawn in order: body, findings, devices."""

    def __init__(self, latents: Latents, size: int, rng: np.random.Generator) -> None:
        n = len(latents)
        axis = ((np.arange(size, dtype=np.float32) + 0.5) / size * 2 - 1).astype(np.float32)
        self._x, self._y = axis[np.newaxis, np.newaxis, :], axis[np.newaxis, :, np.newaxis]
        self._rng, self._latents = rng, latents
        self._shift = rng.normal(0, _JITTER, (n, 2)).astype(np.float32)
        self._scale = (1 + rng.normal(0, _JITTER, (n, 2))).astype(np.float32)
        self.mask = np.zeros((n, size, size), dtype=np.bool_)
        every = np.arange(n)
        self._lungs = [_soft(1 - self._lung(every, side)) for side in (0, 1)]
        self.image = self._body()
        for finding, draw in (
            (EDEMA, self._edema),
            (EFFUSION, self._effusion),
            (CONSOLIDATION, self._consolidation),
            (PNEUMONIA, self._pneumonia),
        ):
            rows = np.flatnonzero(latents.present[:, finding])
            if len(rows):
                shape = draw(rows)
                height = np.array(_AMPLITUDE, dtype=np.float32)[latents.severity[rows, finding]]
                self.image[rows] += _per_record(height) * shape
                self.mask[rows] |= shape >= _IN_MASK
        self._pneumothorax(np.flatnonzero(latents.present[:, PNEUMOTHORAX]))
        self._devices()

    def _body(self) -> Images:
        enlarged = 1 + 0.45 * self._latents.heart
        wide = _per_record(0.27 * enlarged * self._scale[:, 0])
        high = _per_record(0.27 * enlarged**0.5 * self._scale[:, 1])
        across, down = self._x - 0.1 - self._at(0), self._y - 0.3 - self._at(1)
        heart = _soft(1 - (across / wide) ** 2 - (down / high) ** 2)
        lungs = self._lungs[0] + self._lungs[1]
        ribs = 0.03 * np.cos(2 * np.pi * 3.5 * (self._y + 0.25 * self._x**2 - self._at(1)))
        image: Images = 0.78 - lungs * (0.52 - ribs)
        image += heart * (0.72 - image)
        return image

    def _edema(self, rows: NDArray[np.int64]) -> Images:
        """Two hazes beside the middle."""
        shapes = [self._blob(rows, x, -0.05, 0.2, 0.3) for x in (-0.24, 0.24)]
        return np.maximum(shapes[0], shapes[1])

    def _effusion(self, rows: NDArray[np.int64]) -> Images:
        """Fluid below a sloping level in one lung; severity also lifts the level."""
        side = self._latents.side[rows, EFFUSION]
        level = 0.42 - 0.17 * self._latents.severity[rows, EFFUSION]
        outwards = _per_record(self._sign(side)) * self._x - _LUNG_X
        depth = self._y - self._at(1, rows) - _per_record(level) + 0.25 * outwards
        return np.asarray(self._lung_of(rows, side) / (1 + np.exp(-np.clip(depth / 0.05, -30, 30))))

    def _consolidation(self, rows: NDArray[np.int64]) -> Images:
        """One compact blob."""
        x, y = self._place(rows, CONSOLIDATION)
        return self._blob(rows, x, y, 0.15, 0.15)

    def _pneumonia(self, rows: NDArray[np.int64]) -> Images:
        """Four to eight small blobs about one place."""
        x, y = self._place(rows, PNEUMONIA)
        count = self._rng.integers(_BLOBS[0], _BLOBS[1] + 1, len(rows))
        shape: Images = np.zeros((len(rows), self._x.shape[2], self._x.shape[2]), dtype=np.float32)
        for blob in range(_BLOBS[1]):
            off_x, off_y = self._rng.normal(0, 0.13, (2, len(rows)))
            one = self._blob(rows, x + off_x, y + off_y, 0.06, 0.06)
            np.maximum(shape, one * _per_record(blob < count), out=shape)
        return shape

    def _pneumothorax(self, rows: NDArray[np.int64]) -> None:
        """A dark rim at the outer upper edge of one lung; severity is its width."""
        if not len(rows):
            return
        side = self._latents.side[rows, PNEUMOTHORAX]
        width = _per_record(0.12 + 0.12 * self._latents.severity[rows, PNEUMOTHORAX])
        radius = np.sqrt(np.where(_per_record(side == 0), self._lung(rows, 0), self._lung(rows, 1)))
        rim = _soft((radius - (1 - width)) * 3) * self._lung_of(rows, side)
        outer = _soft((_per_record(self._sign(side)) * self._x - _LUNG_X + 0.1) * 4)
        upper = _soft((0.1 - self._y) * 4)
        self.image[rows] *= 1 - 0.85 * rim * outer * upper

    def _devices(self) -> None:
        device = self._latents.device
        tube = (np.abs(self._x - 0.02 - self._at(0)) < 0.045) & (self._y < 0.12)
        box = (np.abs(self._x - 0.62) < 0.15) & (np.abs(self._y + 0.62) < 0.12)
        shown = np.where(_per_record(device == 1) > 0, tube, box) & (_per_record(device) > 0)
        self.image[shown] = 0.97

    def _blob(
        self,
        rows: NDArray[np.int64],
        x: float | NDArray[np.float64],
        y: float | NDArray[np.float64],
        wide: float,
        high: float,
    ) -> Images:
        """A Gaussian of height 1, as a product of one per axis."""
        across = self._x - _per_record(np.broadcast_to(x, len(rows))) - self._at(0, rows)
        down = self._y - _per_record(np.broadcast_to(y, len(rows))) - self._at(1, rows)
        return np.asarray(np.exp(-((across / wide) ** 2) / 2) * np.exp(-((down / high) ** 2) / 2))

    def _place(
        self, rows: NDArray[np.int64], finding: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Centre of the side and zone of a finding, [k] each."""
        x = self._sign(self._latents.side[rows, finding]) * _LUNG_X
        return x, np.array(_ZONE_Y)[self._latents.zone[rows, finding]]

    def _lung(self, rows: NDArray[np.int64], side: int) -> Images:
        """Squared distance from the centre of a lung, 1 at its edge: [k, size, size]."""
        sign = -1 if side == 0 else 1
        wide, high = (_per_record(self._scale[rows, axis]) for axis in (0, 1))
        across = (self._x - sign * _LUNG_X - self._at(0, rows)) / (_LUNG_WIDTH * wide)
        down = (self._y - _LUNG_Y - self._at(1, rows)) / (_LUNG_HEIGHT * high)
        return np.asarray(across**2 + down**2)

    def _lung_of(self, rows: NDArray[np.int64], side: NDArray[np.int64]) -> Images:
        return np.where(side[:, np.newaxis, np.newaxis] == 0, self._lungs[0][rows], self._lungs[1][rows])

    def _at(self, axis: int, rows: NDArray[np.int64] | slice = slice(None)) -> Images:
        return _per_record(self._shift[rows, axis])

    @staticmethod
    def _sign(side: NDArray[np.int64]) -> NDArray[np.float64]:
        """-1 for the patient's right, which is on the left of the picture."""
        return np.where(side == 0, -1.0, 1.0)


def _styled(image: Images, style: Images, rng: np.random.Generator) -> Images:
    """Apply each record's style ([n, 4]) and cut to [0, 1]."""
    gamma, contrast, noise, vignette = (_per_record(style[:, at]) for at in range(4))
    axis = np.linspace(-1, 1, image.shape[1], dtype=np.float32)
    corner = (axis[:, np.newaxis] ** 2 + axis**2) / 2
    shown = np.clip(0.5 + (image - 0.5) * contrast, 0, 1) ** gamma * (1 - vignette * corner)
    shown += noise * rng.standard_normal(image.shape, dtype=np.float32)
    return np.asarray(np.clip(shown, 0, 1))


def _soft(inside: Images) -> Images:
    """A soft edge: 1 well inside (above 0), 0 well outside."""
    return np.asarray(1 / (1 + np.exp(-np.clip(inside * 12, -30, 30))))


def _per_record(values: NDArray[Any]) -> Images:
    """[n] to [n, 1, 1] float32."""
    return np.asarray(values, dtype=np.float32)[:, np.newaxis, np.newaxis]
