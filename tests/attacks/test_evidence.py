"""What counts as learned."""

from __future__ import annotations

import numpy as np
import pytest

from secfed.attack.evidence import Evidence
from secfed.attack.scene import RingVector
from secfed.crypto.lanes import Run, VectorShape

LANES = 4096
SHAPE = VectorShape((Run(24, LANES - 10), Run(64, 10)), bytes(32))


def vector(seed: int, scale: float = 1000.0) -> RingVector:
    generator = np.random.default_rng(seed)
    return tuple(
        generator.normal(scale=scale, size=run.count).astype(np.int64).astype(run.dtype)
        & run.dtype.type((1 << run.bits) - 1)
        for run in SHAPE.runs
    )


def plus(*vectors: RingVector) -> RingVector:
    return tuple(
        sum(parts[1:], parts[0]) & run.dtype.type((1 << run.bits) - 1)
        for run, parts in zip(SHAPE.runs, zip(*vectors, strict=True), strict=True)
    )


def one_lane_off() -> RingVector:
    guess = vector(1)
    guess[0][7] ^= 1
    return guess


@pytest.mark.parametrize(
    ("guess", "learned"),
    [
        (vector(1), "everything"),
        (one_lane_off(), "part"),
        (vector(2), "nothing"),
        (tuple(np.zeros_like(run) for run in vector(1)), "nothing"),
    ],
    ids=["the update itself", "one lane off", "another vector", "a constant"],
)
def test_a_guess_is_the_update_or_a_part_of_it_or_nothing(guess: RingVector, learned: str):
    evidence = Evidence(SHAPE, vector(1), guess)
    assert evidence.learned == learned
    assert abs(evidence.correlation) < 0.1 or learned != "nothing"


@pytest.mark.parametrize("noise", [1, 5])
def test_the_update_with_some_noise_is_a_part(noise: int):
    others = [vector(seed) for seed in range(2, 2 + noise**2)]
    evidence = Evidence(SHAPE, vector(1), plus(vector(1), *others))
    assert evidence.learned == "part"
    assert evidence.correlation == pytest.approx(1 / np.sqrt(1 + noise**2), abs=0.05)


def test_negative_integers_are_small_numbers():
    """The ring's upper half stands for negative values: a sign does not look like noise."""
    opposite = tuple(
        (-run.astype(np.int64)).astype(run.dtype) & run.dtype.type((1 << b.bits) - 1)
        for run, b in zip(vector(1), SHAPE.runs, strict=True)
    )
    assert Evidence(SHAPE, vector(1), opposite).correlation == pytest.approx(-1.0, abs=1e-9)


def test_the_sum_says_nothing_beyond_itself():
    """The sum of four has a correlation of 1/2 with each; that much the protection gives away."""
    total = plus(*(vector(seed) for seed in range(1, 5)))
    assert Evidence(SHAPE, vector(1), total).learned == "part"
    assert Evidence(SHAPE, vector(1), total, allowed=(total,)).learned == "nothing"


def test_a_difference_of_two_sums_is_beyond_the_sum():
    rest = plus(*(vector(seed) for seed in range(2, 5)))
    total = plus(vector(1), rest)
    evidence = Evidence(SHAPE, vector(1), rest, allowed=(total,))
    assert evidence.learned == "part"
    assert evidence.correlation == pytest.approx(-1.0, abs=1e-6)
