"""From what is told of a table nobody can compute a small number: checked with linear programs."""

from __future__ import annotations

import time

import numpy as np
import pytest

from secfed.algorithms.statistics.disclosure import WITHHELD, Told, is_small, protected

optimize = pytest.importorskip("scipy.optimize")

LEAST = 5


def largest(told: Told, row: int, column: int) -> float:
    """The largest number of records that a cell could have, by everything that is told."""
    cells = np.array(told.cells)
    shape = cells.shape
    equations, values = [], []

    def require(mask: np.ndarray, value: float) -> None:
        if value != WITHHELD:
            equations.append(mask.ravel().astype(float))
            values.append(value)

    for i, j in np.ndindex(shape):
        one = np.zeros(shape)
        one[i, j] = 1
        require(one, cells[i, j])
    for i, margin in enumerate(told.rows):
        require(np.arange(shape[0])[:, None] == i + np.zeros(shape), margin)
    for j, margin in enumerate(told.columns):
        require(np.arange(shape[1])[None] == j + np.zeros(shape), margin)
    require(np.ones(shape), told.total)
    goal = np.zeros(shape)
    goal[row, column] = -1
    found = optimize.linprog(goal.ravel(), A_eq=np.array(equations), b_eq=values, bounds=(0, None))
    assert found.success
    return float(-found.fun)


@pytest.mark.parametrize("shape", [(1, 4), (2, 2), (2, 5), (4, 3)])
def test_no_small_cell_is_bounded_below_the_limit(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    checked = nothing = 0
    for _ in range(20):
        cells = np.where(rng.random(shape) < 0.3, rng.integers(0, LEAST, shape), rng.integers(0, 60, shape))
        small = [[is_small(cell, LEAST) for cell in row] for row in cells.tolist()]
        told = protected(cells.tolist(), small, LEAST)
        if told is None:
            assert is_small(cells.sum(), LEAST)
            continue
        shown = np.array(told.cells)
        assert ((shown == cells) | (shown == WITHHELD)).all()
        nothing += bool((shown == WITHHELD).all())
        for margin, lines in ((told.rows, cells), (told.columns, cells.T)):
            for value, line in zip(margin, lines, strict=True):
                assert value == WITHHELD or (value == line.sum() and not is_small(value, LEAST))
        for i, j in np.argwhere(np.array(small)):
            checked += 1
            assert shown[i, j] == WITHHELD
            assert largest(told, i, j) >= LEAST - 1e-6
    assert checked > 8
    assert nothing < 15


def test_a_table_without_small_numbers_is_told_whole() -> None:
    cells = [[0.0, 7.0], [5.0, 100.0]]
    told = protected(cells, [[False] * 2] * 2, LEAST)
    assert told == Told(cells, [7.0, 105.0], [5.0, 107.0], 112.0)


def test_a_large_table_is_decided_quickly() -> None:
    """Every hospital does this where sums are closed; with a search of all rectangles it is ten seconds."""
    cells = np.random.default_rng(0).poisson(2.0, (11, 1001)).astype(float).tolist()
    begun = time.process_time()
    told = protected(cells, [[is_small(cell, LEAST) for cell in row] for row in cells], LEAST)
    assert told is not None
    assert time.process_time() - begun < 3
