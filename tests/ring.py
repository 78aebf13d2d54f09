"""Vectors of ring integers for tests, and their sum in plain Python: independent of the code under test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secfed.attack.scene import Integers, RingVector
from secfed.crypto.lanes import Run, VectorShape


class Rereadable(Integers):
    """Starts again once it has been read to the end: for sites whose states a test handles repeatedly."""

    def __init__(self, runs: RingVector) -> None:
        self._all = runs
        self._restart()

    def _restart(self) -> None:
        super().__init__(self._all)
        self._unread = sum(run.size for run in self._all)

    def fill(self, run: Run, out: NDArray[Any]) -> None:
        """Hand out the next lanes."""
        if not self._unread:
            self._restart()
        super().fill(run, out)
        self._unread -= out.size


def random_vector(shape: VectorShape, generator: np.random.Generator) -> RingVector:
    """Uniform ring integers; the first and last lane of a run take the extremes of its ring."""
    runs = []
    for run in shape.runs:
        top = (1 << run.bits) - 1
        lanes = generator.integers(0, top, size=run.count, dtype=np.uint64, endpoint=True)
        if run.count > 1:
            lanes[0], lanes[-1] = top, generator.choice([0, 1 << (run.bits - 1)])
        runs.append(lanes.astype(run.dtype))
    return tuple(runs)


def add_in_ring(vectors: Iterable[RingVector], shape: VectorShape) -> list[list[int]]:
    """The sum modulo each run's ring, in Python integers: independent of the code under test."""
    sums = [[0] * run.count for run in shape.runs]
    for vector in vectors:
        for run, lanes, total in zip(shape.runs, vector, sums, strict=True):
            total[:] = [(a + int(b)) % (1 << run.bits) for a, b in zip(total, lanes, strict=True)]
    return sums


def as_integers(runs: RingVector) -> list[list[int]]:
    """Ring integers as plain lists, for comparison with :func:`add_in_ring`."""
    return [[int(lane) for lane in run] for run in runs]
