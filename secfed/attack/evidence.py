"""How much an attacker learned of one hospital, beyond what the protection gives to everybody.

Bits of a secret or offers taken are counted (:class:`Count`). Of an update (:class:`Evidence`) it is a
correlation: updates are independent random numbers, so a worthless guess has one of about 1/sqrt(lanes). What
the adversary may know (the sum, its colluders' parts) is taken out first, by least squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secfed.attack.scene import RingVector
from secfed.crypto.lanes import VectorShape

Learned = Literal["nothing", "part", "everything"]

_CHANCE: Final = 6.0  # standard deviations of a correlation by chance
_EXPLAINED: Final = 1e-9  # of a vector's norm: what least squares leaves of a multiple of the sum


@dataclass(frozen=True)
class Count:
    """``found`` out of ``of`` things that ``what`` names, and the numbers of the refusals that were met."""

    found: float
    of: int
    what: str
    refusals: frozenset[int] = frozenset()

    @property
    def learned(self) -> Learned:
        """All is everything."""
        return "nothing" if self.found <= 0 else "everything" if self.found >= self.of else "part"

    @property
    def measured(self) -> str:
        """For a table."""
        return f"{self.found:g} of {self.of} {self.what}"


@dataclass(frozen=True)
class Evidence:
    """What an attack on an update brought."""

    shape: VectorShape
    truth: RingVector  # the victim's ring integers, and the attacker's best guess of them
    guess: RingVector
    allowed: tuple[RingVector, ...] = ()  # vectors that the adversary may know: the sum, its colluders' own
    refusals: frozenset[int] = frozenset()  # numbers of the refusals that hospitals answered with

    @property
    def correlation(self) -> float:
        """Of guess and truth, both without what the allowed vectors explain; -1 to 1."""
        known = [_signed(self.shape, vector) for vector in self.allowed]
        guess = _unexplained(_signed(self.shape, self.guess), known)
        truth = _unexplained(_signed(self.shape, self.truth), known)
        if guess is None or truth is None:
            return 0.0
        return float(guess @ truth)

    @property
    def measured(self) -> str:
        """For a table."""
        if self.learned == "everything":
            return "the exact update"
        return f"correlation {abs(self.correlation):.2f}"

    @property
    def learned(self) -> Learned:
        """Whether the guess is the update ("everything") or no better than chance ("nothing")."""
        if all(np.array_equal(one, other) for one, other in zip(self.guess, self.truth, strict=True)):
            return "everything"
        lanes = sum(run.count for run in self.shape.runs)
        return "nothing" if abs(self.correlation) < _CHANCE / math.sqrt(lanes) else "part"


Finding: TypeAlias = Count | Evidence


def _signed(shape: VectorShape, vector: RingVector) -> NDArray[np.float64]:
    """Ring integers as what they stand for, each run scaled to its ring."""
    parts = []
    for run, lanes in zip(shape.runs, vector, strict=True):
        half = 1 << (run.bits - 1)
        wide = lanes.astype(np.float64)
        parts.append(np.where(wide >= half, wide - 2.0 * half, wide) / half)
    return np.concatenate(parts)


def _unexplained(values: NDArray[np.float64], known: list[NDArray[Any]]) -> NDArray[np.float64] | None:
    """What a constant and the known vectors leave of a vector, with norm 1; None if that is nothing."""
    basis = np.stack([np.ones_like(values), *known], axis=1)
    basis = basis / np.maximum(np.linalg.norm(basis, axis=0), np.finfo(np.float64).tiny)
    solution, *_ = np.linalg.lstsq(basis, values, rcond=None)
    rest = values - basis @ solution
    norm = float(np.linalg.norm(rest))
    if norm <= _EXPLAINED * max(1e-300, float(np.linalg.norm(values))):
        return None
    return np.asarray(rest / norm)
