"""DRO weights in whole studies, and the worked example of docs/private-dro.md."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from secfed.runs.run_report import SilentObserver
from secfed.simulation.dropouts import Dropout
from secfed.simulation.simulate import simulate
from secfed.study.study import Study
from tests.algorithms.dro_case import WeightsOnly, a_rule, losses_of, plain, totals

DOC = (Path(__file__).parents[3] / "docs" / "private-dro.md").read_text(encoding="utf-8")

STUDY = """
[study]
name = "weights"
rounds = 3
seed = 5
[algorithm]
name = "tests.algorithms.dro_case:WeightsOnly"
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
sites = 5
[protection]
name = "{protection}"
threshold = 4
"""


@pytest.mark.parametrize("protection", ["plain", "masked", "encrypted"])
def test_a_study_gives_the_plain_weights_though_a_site_drops_out(protection):
    study = Study.parse(STUDY.format(protection=protection))
    simulate(study, out=None, drops=[Dropout.parse("hospital-2@mask:2")], observer=SilentObserver())
    ran = WeightsOnly.last
    rule, sites = ran.rule, ran.rule.sites
    expected = [0.2] * 5
    for number in (1, 2, 3):
        there = [i for i, site in enumerate(sites) if not (number == 2 and site == "hospital-2")]
        losses = [rule.loss(losses_of(i, number)) for i in there]
        new = plain(rule, [expected[i] for i in there], losses)
        for place, weight in zip(there, new.tolist(), strict=True):
            expected[place] = weight
    found = torch.tensor([ran.weights[site].weight for site in sites], dtype=torch.float64)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0)


def test_the_server_program_is_given_sums_and_nothing_finer():
    simulate(Study.parse(STUDY.format(protection="masked")), out=None, drops=[], observer=SilentObserver())
    ran = WeightsOnly.last
    assert len(ran.seen) == 4
    own = {ran.rule.own(0.2, ran.rule.loss(losses_of(i, 1))) for i in range(5)}
    for seen in ran.seen:
        shapes = {name: tuple(value.shape) for name, value in seen.items()}
        assert shapes == {"dro/a": (), "dro/a2": (), "dro/a2_rest": ()}
    first = ran.seen[0]
    assert first.scalar("dro/a") == pytest.approx(math.fsum(own), abs=1e-12)
    assert not own & {first.scalar(name) for name in first}


def test_the_worked_example_of_the_document_is_what_the_code_gives():
    table = [
        [float(cell) for cell in line.strip("| ").split("|")[1:]]
        for line in DOC.splitlines()
        if re.match(r"\| [A-E] \|", line)
    ]
    assert len(table) == 5
    rule = a_rule(5, cap=6.0, rho=0.1)
    losses = [row[0] for row in table]
    answer = rule.answer(1, totals(rule, [0.2] * 5, losses))
    assert answer is not None
    first, second = answer.sums
    for (loss, own, share, weight, scale), site in zip(table, rule.sites, strict=True):
        assert rule.own(0.2, loss) == pytest.approx(own, abs=5e-6)
        assert rule.own(0.2, loss) / first == pytest.approx(share, abs=5e-5)
        new = rule.weight(site, 0.2, loss, answer)
        assert new == pytest.approx(weight, abs=5e-5)
        assert rule.step_scale(new, 5) == pytest.approx(scale, abs=5e-4)
    said = {name: float(value) for name, value in re.findall(r"(\w+) = ([\d.]+\d)", DOC)}
    spread = 5 * second / first**2 - 1
    assert said["p1"] == pytest.approx(first, abs=5e-6)
    assert said["p2"] == pytest.approx(second, abs=5e-7)
    assert said["c"] == pytest.approx(spread, abs=5e-5)
    assert said["s"] == pytest.approx(math.sqrt(rule.radius / spread), abs=5e-5)
    assert said["centre"] == pytest.approx(6.0 + math.log(first / 5), abs=5e-4)
    assert said["effective"] == pytest.approx(first**2 / second, abs=5e-3)
    moved = torch.softmax(torch.tensor(losses).double(), dim=0)
    low, high = second / first**2, (1 + math.sqrt(4 * (5 * second / first**2 - 1))) / 5
    assert low <= float(moved.max()) <= high
    assert (said["low"], said["high"]) == (pytest.approx(low, abs=5e-4), pytest.approx(high, abs=5e-4))
