"""Robust weights from the excess over a site's own reference."""

from __future__ import annotations

import pytest
import torch

from secfed.algorithms.vision_language.reference import REFERENCE
from secfed.errors import ConfigError, MalformedMessage
from secfed.study.build import build
from tests.algorithms.vlp_case import Rounds, study

WEIGHTS = 0
GROUPS = {"unit": "group", "group_size": 4, "epsilon": 8.0, "delta": 1e-4}


@pytest.fixture(scope="module")
def pair() -> tuple[Rounds, Rounds]:
    """One round of weights without and with a reference."""
    both = Rounds(study()), Rounds(study(algorithm__reference_steps=8))
    for rounds in both:
        rounds.take(1, WEIGHTS)
    return both


def test_the_loss_is_what_exceeds_that_of_the_sites_own_model(pair):
    plain, excess = pair
    for site, program in excess.programs.items():
        reference = program.save()[REFERENCE]
        assert bool((reference > 0).all())
        whole = plain.programs[site].weight.loss
        assert program.weight.loss < whole
        assert program.weight.loss == pytest.approx(max(whole - float(reference.mean()), 0.0), abs=0.02)


def test_training_it_leaves_the_sites_network_alone(pair):
    plain, excess = pair
    for site, program in excess.programs.items():
        for name, value in program.network.state_dict().items():
            assert torch.equal(value, plain.programs[site].network.state_dict()[name])


def test_it_is_trained_once_and_kept(pair):
    rounds = pair[1].copy()
    program = rounds.programs["hospital-1"]
    before = program.save()[REFERENCE]
    rounds.take(1, 1)
    rounds.take(1, 2)
    rounds.take(2, WEIGHTS)
    assert torch.equal(program.save()[REFERENCE], before)
    state = program.save()
    other = rounds.algorithm.site("hospital-1")
    other.load(state)
    assert torch.equal(other.save()[REFERENCE], before)
    with pytest.raises(MalformedMessage, match="reference"):
        other.load({**state, REFERENCE: before[:-1]})


def test_a_reference_that_cannot_be_trained_leaves_the_loss(pair, monkeypatch):
    rounds = Rounds(study(algorithm__reference_steps=8))
    program = rounds.programs["hospital-1"]

    def fails(*_: object) -> float:
        raise ValueError("no gradient")

    monkeypatch.setattr(program, "fit", fails)
    rounds.take(1, WEIGHTS)
    assert program.weight.loss == pytest.approx(pair[0].programs["hospital-1"].weight.loss)


@pytest.mark.parametrize("changes", [{"algorithm__rho": 0.0}, {"privacy": GROUPS}])
def test_without_robust_weights_or_under_privacy_it_is_refused(changes):
    with pytest.raises(ConfigError, match=r"algorithm\.reference_steps"):
        build(study(algorithm__reference_steps=8, **changes))
