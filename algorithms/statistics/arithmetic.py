"""Small linear algebra that comes out the same to the last bit everywhere.

Where sites repeat the server's step, all of them must come to the same bytes. Libraries of linear algebra
sum in an order that depends on the processor; here every operation is one of +, -, *, / and the square
root, which IEEE 754 rounds exactly, in an order that is written down. Matrices are lists of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = list[float]
Matrix = list[list[float]]


def symmetric(packed: Sequence[float], size: int) -> Matrix:
    """The matrix whose lower triangle is given row by row."""
    rows = [[0.0] * size for _ in range(size)]
    position = 0
    for i in range(size):
        for j in range(i + 1):
            rows[i][j] = rows[j][i] = packed[position]
            position += 1
    return rows


def dependent(matrix: Matrix, tolerance: float, least: float = 0.0) -> list[int]:
    """Which rows of a positive semidefinite matrix are combinations of the rows before them.

    ``tolerance`` is the share of a row's diagonal that must be left once the earlier ones have explained it,
    and ``least`` how much must be in any case.
    """
    size, rows = len(matrix), [list(row) for row in matrix]
    found = []
    for k in range(size):
        if not rows[k][k] > max(tolerance * matrix[k][k], least):
            found.append(k)
            continue
        for i in range(k + 1, size):
            factor = rows[i][k] / rows[k][k]
            for j in range(k + 1, i + 1):
                rows[i][j] -= factor * rows[j][k]
    return found


def cholesky(matrix: Matrix) -> Matrix:
    """The lower triangular L with L L' = matrix; an ArithmeticError if it is not positive definite."""
    size = len(matrix)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            left = matrix[i][j]
            for k in range(j):
                left -= lower[i][k] * lower[j][k]
            if i > j:
                lower[i][j] = left / lower[j][j]
            elif left > 0.0:
                lower[i][i] = math.sqrt(left)
            else:
                raise ArithmeticError("a matrix is not positive definite")
    return lower


def solve(lower: Matrix, right: Sequence[float]) -> Vector:
    """X with L L' x = right."""
    size, found = len(lower), list(right)
    for i in range(size):
        for k in range(i):
            found[i] -= lower[i][k] * found[k]
        found[i] /= lower[i][i]
    for i in reversed(range(size)):
        for k in range(i + 1, size):
            found[i] -= lower[k][i] * found[k]
        found[i] /= lower[i][i]
    return found


def inverse(lower: Matrix) -> Matrix:
    """The inverse of L L'."""
    size = len(lower)
    columns = [solve(lower, [1.0 if i == j else 0.0 for i in range(size)]) for j in range(size)]
    return [[columns[max(i, j)][min(i, j)] for j in range(size)] for i in range(size)]


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    """The inner product, summed front to back."""
    total = 0.0
    for a, b in zip(one, other, strict=True):
        total += a * b
    return total


def four_digits(value: float) -> float:
    """In full digits a number can be compared with what every table of records would give."""
    return float(f"{value:.3e}")
