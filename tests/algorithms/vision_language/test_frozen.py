"""MGCA's prototypes stay as they are in the first rounds: not trained, and in no sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vlp_oracle import train_alone

from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.loop import same
from tests.algorithms.vlp_case import AVERAGING, Rounds, ToyPairs, study

PROTOTYPES = "objective.prototypes"
FEDDRA = {"name": "feddra", "align_steps": 1, "joint_steps": 1, "batch_size": 8}
FEDDRA |= {"learning_rate": 0.02, "evaluation_batch": 8, "rho": 0.0}


def few_pairs() -> Any:
    """The factory of ``[data]``: images that the smallest model takes."""

    class Larger(ToyPairs):
        image_shape = (1, 16, 16)

    return Larger(5, 8, 8, 1.0)


def mgca(algorithm: dict[str, object], **model: object) -> Study:
    table = {"name": "vision-language", "objective": "mgca", "prototypes": 4, **model}
    made = study(algorithm=algorithm, model=table, study__rounds=2)
    return made.replace("data.name", "tests.algorithms.vision_language.test_frozen:few_pairs")


@pytest.mark.parametrize("algorithm", [AVERAGING, FEDDRA])
def test_prototypes_are_neither_trained_nor_summed_in_the_first_round(algorithm):
    rounds = Rounds(mgca(algorithm))
    start = rounds.server.model()
    summed = [{name for stage in rounds.algorithm.stages(n) for name in stage.summed} for n in (1, 2)]
    assert summed[1] - summed[0] == {PROTOTYPES}
    rounds.round(1)
    first = rounds.server.model()
    assert torch.equal(first[PROTOTYPES], start[PROTOTYPES])
    assert not same(first, start)
    rounds.round(2)
    assert not torch.equal(rounds.server.model()[PROTOTYPES], start[PROTOTYPES])


def test_without_frozen_rounds_prototypes_move_at_once():
    rounds = Rounds(mgca(AVERAGING, mgca_frozen_rounds=0))
    start = rounds.server.model()
    rounds.round(1)
    assert not torch.equal(rounds.server.model()[PROTOTYPES], start[PROTOTYPES])


def test_a_site_that_trains_alone_holds_them_too():
    algorithm = build(mgca(AVERAGING, mgca_frozen_rounds=2))
    alone = train_alone(algorithm, "hospital-1")
    assert torch.equal(alone[PROTOTYPES], algorithm.initial[PROTOTYPES])
    assert not same(alone, algorithm.initial)
