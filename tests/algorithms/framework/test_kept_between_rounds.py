"""A lying aggregator can read what a hospital keeps from round to round: SECURITY.md names who keeps."""

from __future__ import annotations

import pytest

from secfed.study.registry import ALGORITHMS
from tests.algorithms.loop import Rounds
from tests.layout import ROOT
from tests.properties.readiness_studies import tiny

# Later sums of a round build on it, and it counts in no other round.
OF_ONE_ROUND = {"fedcola", "creamfl", "feddmvc"}


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - OF_ONE_ROUND))
def test_who_keeps_something_between_rounds_is_named(name: str) -> None:
    rounds = Rounds(tiny(name)).run()
    keeps = any(program.save() for program in rounds.programs.values())
    assert rounds.algorithm.setting.study.algorithm.keeps_state == keeps
    text = (ROOT / "SECURITY.md").read_text()
    told = text.split("### State that hospitals keep between rounds\n")[1].split("\n### ")[0]
    named = told.split("Sums within a round")[0]
    assert (f"`{name}`" in named) == keeps
