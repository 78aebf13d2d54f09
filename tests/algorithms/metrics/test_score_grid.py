"""Scores leave on a grid: a total over three sites must not be a code for each of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from secfed.algorithms.metrics.retrieval import SHARES
from secfed.algorithms.metrics.score_grid import SCORE_STEP, on_grid
from secfed.crypto.fixedpoint import FixedPoint
from tests.algorithms import fedcola_case, vlp_case
from tests.algorithms.loop import Rounds

MOST = 60  # held-out records, as far as the attacker knows
STEP = FixedPoint.choose(bound=1.0, bits=64, sites=10).step


def triples(total: float, slack: float, values: np.ndarray) -> set[tuple[float, ...]]:
    """Every three sites' scores that add up to a total."""
    found: set[tuple[float, ...]] = set()
    for at, first in enumerate(values):
        rest = total - first - values[at:]
        low, high = (np.searchsorted(values, rest + sign * slack) for sign in (-1, 1))
        for second in np.flatnonzero(high > low):
            thirds = range(max(low[second], at + second), high[second])
            found |= {(first, values[at + second], values[third]) for third in thirds}
    return found


@pytest.mark.parametrize("scores", [(17 / 23, 11 / 31, 40 / 47), (5 / 29, 37 / 41, 52 / 59)])
def test_exact_scores_of_three_sites_follow_from_their_sum_and_those_on_the_grid_do_not(scores) -> None:
    fractions = np.unique([k / n for n in range(1, MOST + 1) for k in range(n + 1)])
    exact = triples(sum(scores), 3 * STEP, fractions)
    assert exact == {tuple(sorted(scores))}  # and with them, the numbers of records
    left = on_grid(dict(enumerate(scores)), range(3))
    on_it = np.unique(np.round(fractions / SCORE_STEP) * SCORE_STEP)
    assert len(triples(sum(left.values()), 3 * STEP, on_it)) > 1000
    assert sum(left.values()) == pytest.approx(sum(scores), abs=3 * SCORE_STEP / 2)


def is_on_grid(value: torch.Tensor | float) -> bool:
    return float(value) % SCORE_STEP == 0.0


def test_every_score_of_fedcola_leaves_on_the_grid() -> None:
    rounds = Rounds(fedcola_case.tiny(data__test_records=11, data__test_pairs=13))
    for name in ("score-image", "score-text", "score-pairs"):
        for sums in rounds.contributions(3, name).values():
            assert all(is_on_grid(value) for value in sums.values())


def test_every_recall_of_vision_language_studies_leaves_on_the_grid() -> None:
    table = {**vlp_case.AVERAGING, "evaluation_batch": 64, "evaluation_ceiling": True}
    study = vlp_case.study(algorithm=table, data__test=13)
    sums = list(vlp_case.Rounds(study).take(1, 0).values())
    assert all(is_on_grid(one[name]) for one in sums for name in SHARES)
    assert not all(is_on_grid(one["eval/infonce"]) for one in sums)
