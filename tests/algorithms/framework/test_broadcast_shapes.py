"""Every algorithm says what its broadcasts look like, so that others are refused before anything is paid."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from secfed.algorithms.dro.answer import DroAnswer
from secfed.errors import MalformedMessage
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.study.build import build, build_data
from secfed.study.registry import ALGORITHMS
from tests.properties.readiness_studies import OF_MEANS, OF_PAIRS, tiny

CASES = [
    *((name, "") for name in OF_MEANS),
    ("canonical", ""),
    ("canonical-alignment", ""),
    ("feddmvc", ""),
    ("fmcsc", ""),
    ("fmcsc", "one-view"),
    ("creamfl", ""),
    ("fedcola", ""),
    ("statistics", ""),
    ("view-kmeans", ""),
    *((name, "") for name in OF_PAIRS),
]


def test_every_algorithm_is_asked() -> None:
    assert {name for name, _ in CASES} == set(ALGORITHMS)


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_broadcast_of_the_study_passes_and_one_with_other_names_or_shapes_does_not(
    name: str, variant: str
) -> None:
    study = tiny(name, variant=variant)
    algorithm = build(study)
    server = algorithm.server()
    for number in range(1, study.rounds + 2):
        for exchange in algorithm.exchanges(number):
            honest = server.broadcast(number, exchange)
            algorithm.check_broadcast(number, exchange, honest)
            wrong = [{**honest, "one more": torch.zeros(())}]
            for parameter, value in honest.items():
                wrong.append({one: other for one, other in honest.items() if one != parameter})
                wrong.append({**honest, parameter: value[None]})
            for state in wrong:
                with pytest.raises(MalformedMessage):
                    algorithm.check_broadcast(number, exchange, state)


def test_noise_in_the_sum_leaves_the_check_to_the_algorithm() -> None:
    study = tiny("fmcsc", "site")
    algorithm = with_privacy(study, build(study), build_data(study).sites)
    exchange, server = algorithm.exchanges(1)[0], algorithm.server()
    algorithm.check_broadcast(1, exchange, server.broadcast(1, exchange))
    with pytest.raises(MalformedMessage):
        algorithm.check_broadcast(1, exchange, {})


def test_an_answer_about_robust_weights_is_checked_with_the_model() -> None:
    algorithm: Any = build(tiny("feddra"))
    exchange, rule = algorithm.exchanges(1)[0], algorithm.rule
    model = algorithm.server().broadcast(1, exchange)
    sums = (float(len(rule.sites)),) * rule.revealed
    for members, fits in ((len(rule.sites), True), (len(rule.sites) + 1, False)):
        state = {**model, **DroAnswer(1, sums, (True,) * members).to_state()}
        if fits:
            algorithm.check_broadcast(2, exchange, state)
        else:
            with pytest.raises(MalformedMessage, match="another study"):
                algorithm.check_broadcast(2, exchange, state)
    with pytest.raises(MalformedMessage, match="incomplete"):
        algorithm.check_broadcast(2, exchange, {**model, "dro/round": torch.tensor(1.0)})
