"""What becomes of features before anything is learnt or summed: the same everywhere, fixed by the study.

    l2              norm 1
    sqrt-l2         square roots, then norm 1: for counts and histograms
    hog             directions of brightness changes in a square image, norm 1
    projection:K    K random signed sums of all features, norm 1
    standard        every feature by its mean and standard deviation over all hospitals

Maps are joined by ``+`` and take effect from left to right. Whatever a record holds, what comes out has a
norm of at most 1: this is the clipping that every sensitivity in :mod:`secfed.algorithms.canonical.plan`
rests on. All but ``standard`` look at one record only.

Source: histograms of oriented gradients: Dalal, Triggs, CVPR 2005. Projections by signs: Achlioptas,
"Database-friendly random projections", Journal of Computer and System Sciences 66, 2003.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch

from secfed.algorithms.framework.randomness import derive_seed
from secfed.errors import ConfigError

KEY: Final = "algorithm.maps"  # which errors name
STANDARD: Final = "standard"
_PLAIN: Final = ("l2", "sqrt-l2", "hog", STANDARD)
_PROJECTION: Final = "projection"
_DIRECTIONS: Final = 8
_CELLS: Final = 5  # per side
_DEVIATIONS: Final = 10.0  # a standardised feature further out counts as this


@dataclass(frozen=True)
class FeatureMap:
    """The steps of one view's map, by name; a projection with the number of its sums."""

    steps: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"sqrt-l2+projection:300"``; ConfigError if it is none."""
        steps = []
        for at, step in enumerate(text.split("+")):
            name, _, size = step.partition(":")
            sized = name == _PROJECTION and size.isdecimal() and 0 < int(size) <= 100_000
            if not sized and step not in _PLAIN:
                raise ConfigError(
                    f"{KEY}: there is no map {step!r}",
                    remedy=f'use one of {", ".join(_PLAIN)} or projection:K, for example "projection:300"; '
                    'join several by "+"',
                )
            if step == STANDARD and at:
                raise ConfigError(
                    f'{KEY}: in {text!r} "standard" is not the first step',
                    remedy='put "standard" first: it takes the features as they are stored',
                )
            steps.append((name, int(size) if sized else 0))
        return cls(tuple(steps))

    @property
    def standardises(self) -> bool:
        """Whether means and standard deviations must be summed first."""
        return self.steps[0][0] == STANDARD

    def size(self, features: int, view: int) -> int:
        """How many numbers come out; ConfigError if a view (from 1) cannot be mapped so."""
        for name, size in self.steps:
            if name == "hog":
                if math.isqrt(features) ** 2 != features:
                    message = f'{KEY}: "hog" needs square images, and view {view} has {features} features'
                    raise ConfigError(message, remedy='use "l2" for this view')
                features = _DIRECTIONS * _CELLS * _CELLS
            elif size:
                features = size
        return features

    def __call__(self, records: torch.Tensor, seed: int, scale: torch.Tensor | None = None) -> torch.Tensor:
        """Map [n, D] records: [n, d] float64, no row longer than 1.

        Args:
            seed: of the projections: the study's and the view.
            scale: [2, D] mean and inverse standard deviation of every feature, for ``standard``.
        """
        values = records.to(torch.float64)
        for at, (name, size) in enumerate(self.steps):
            if name == STANDARD and scale is not None:
                deviations = ((values - scale[0]) * scale[1]).clamp(-_DEVIATIONS, _DEVIATIONS)
                values = deviations / (_DEVIATIONS * math.sqrt(values.shape[1]))
            elif name == "sqrt-l2":
                values = unit(values.clamp(min=0).sqrt())
            elif name == "hog":
                # One by one: the last bits of hypot and atan2 depend on where in an array a number stands.
                values = unit(torch.cat([_gradients(one) for one in torch.split(values, 1)]))
            elif size:
                signs = _signs(values.shape[1], size, derive_seed(seed, "projection", at))
                values = unit(by_rows(values, signs))
            else:
                values = unit(values)
        return values


def by_rows(records: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """[n, d] times [d, k], so that no row depends on which others there are, to the last bit.

    The last bits of a library's product depend on the number of rows and on the place of a row. Where centres
    tie to rounding, which a broadcast can bring about, they decide the cluster, and a record that is there or
    not would move others.
    """
    result = records.new_zeros(len(records), matrix.shape[1])
    for feature, row in enumerate(matrix):
        result += records[:, feature : feature + 1] * row  # two roundings: never fused with what is next
    return result


def unit(values: torch.Tensor) -> torch.Tensor:
    """Rows of norm 1, whatever their size; rows of zeros stay."""
    values = values / values.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    length: torch.Tensor = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    return values / length.clamp(min=1.0)  # the largest element is 1 now, or all are 0


def _signs(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Random signs, [rows, columns]: raw words, whose stream no version of NumPy changes."""
    words = np.random.PCG64(seed).random_raw(math.ceil(rows * columns / 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8))[: rows * columns]
    return torch.from_numpy(bits.reshape(rows, columns) * 2.0 - 1.0)


def _gradients(values: torch.Tensor) -> torch.Tensor:
    """Mean magnitude of brightness changes by cell and direction: [n, 200] from [n, side * side]."""
    side = math.isqrt(values.shape[1])
    largest = values.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    images = torch.nn.functional.pad((values / largest).reshape(-1, side, side), (1, 1, 1, 1))
    right, down = (images[:, 1:-1, 2:] - images[:, 1:-1, :-2], images[:, 2:, 1:-1] - images[:, :-2, 1:-1])
    magnitude = torch.hypot(right, down)
    place = (torch.atan2(down, right) / (2 * math.pi) + 0.5) * _DIRECTIONS
    by_direction = []
    for direction in range(_DIRECTIONS):  # a change between two directions counts for both, by its distance
        apart = (place - direction).abs()
        by_direction.append(magnitude * (1 - torch.minimum(apart, _DIRECTIONS - apart)).clamp(min=0))
    cells = torch.nn.functional.adaptive_avg_pool2d(torch.stack(by_direction, dim=1), _CELLS)
    return cells.flatten(1)
