"""From what is told of a table nobody can compute a small number: checked with linear programs."""

from __future__ import annotations

import itertools
import time
from typing import Any

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


def released(row: tuple[int, ...], *, last_told: bool = False) -> tuple[float, ...] | None:
    told = protected([row], [[is_small(n, 3) for n in row]], 3, last_told=last_told)
    return None if told is None else (*told.cells[0], told.total)


def test_a_list_gives_no_small_number_to_who_knows_the_rule() -> None:
    """Of all lists that give one output not all have the same small number, in one cell or in any."""
    lists: dict[Any, list[tuple[int, ...]]] = {}
    for row in itertools.product(range(11), repeat=3):
        lists.setdefault(released(row), []).append(row)
    checked = 0
    for told, rows in lists.items():
        if told is None or WITHHELD not in told or sum(rows[0]) > 10:
            continue  # nothing withheld, or lists beyond the range are among them
        checked += 1
        assert all(len(set(cell)) > 1 for cell in zip(*rows, strict=True) if 0 < cell[0] < 3)
        assert len({tuple(sorted(n for n in row if 0 < n < 3)) for row in rows}) > 1
    assert checked > 20


def test_missing_values_that_table_1_tells_hide_no_cell() -> None:
    assert released((40, 60, 2, 9), last_told=True) == (40.0, WITHHELD, WITHHELD, 9.0, 111.0)
    assert released((40, 60, 50, 2), last_told=True) == (40.0, 60.0, WITHHELD, WITHHELD, 152.0)
    cells, marks = [[40, 2, 9], [30, 50, 9]], [[False, True, False], [False] * 3]
    told = protected(cells, marks, LEAST, last_told=True)
    assert told is not None
    assert told.cells == [[WITHHELD, WITHHELD, 9.0], [WITHHELD, WITHHELD, 9.0]]
    # Where Table 1 withholds them, they are withheld, with cells for them and for the others.
    cells, marks = [[40, 2, 50, 2], [30, 50, 60, 9]], [[False, True, False, True], [False] * 4]
    told = protected(cells, marks, LEAST, last_told=True)
    assert told is not None
    assert told.columns == [70.0, 52.0, 110.0, 11.0]
    assert [row[-1] for row in told.cells] == [WITHHELD] * 2
    assert WITHHELD in told.cells[0][:1] + told.cells[0][2:3]


def test_by_group_they_are_corners_of_no_rectangle() -> None:
    """What Table 1 tells of a group's missing values a histogram tells, but where nothing else is told."""
    rng, checked = np.random.default_rng(0), 0
    for _ in range(60):
        cells = np.where(
            rng.random((3, 5)) < 0.25, rng.integers(0, LEAST, (3, 5)), rng.integers(9, 40, (3, 5))
        )
        table_1 = np.column_stack([cells[:, :-1].sum(axis=1), cells[:, -1]])
        told, beside = (
            protected(
                one.tolist(), [[is_small(n, LEAST) for n in row] for row in one.tolist()], LEAST, **last
            )
            for one, last in ((cells, {"last_told": True}), (table_1, {}))
        )
        assert told is not None
        assert beside is not None
        if all(n == WITHHELD for row in told.cells for n in row):
            continue
        for own, row, margin in zip(told.cells, beside.cells, told.rows, strict=True):
            if WITHHELD not in (margin, told.columns[-1]):
                checked += 1
                assert own[-1] == row[-1]
    assert checked > 60


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
