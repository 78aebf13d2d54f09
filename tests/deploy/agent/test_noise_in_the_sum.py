"""Noise in the sum between machines: children clip, agents pay and add shares; a policy may refuse it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save

from secfed.dp.accounting.events import from_value
from secfed.dp.accounting.interface import statement
from secfed.runs.run_folder import ledger_file
from tests.deploy.agent_case import BUDGETED, NAMES, TOML, Centre
from tests.deploy.link_case import wait_until
from tests.deploy.simulated import simulated

STUDY = (
    TOML[: TOML.index("[algorithm]")]
    + """
[algorithm]
name = "fedsgd"
weighting = "equal"
records = 400
"""
    + TOML[TOML.index("[model]") :].replace(
        "test_fraction = 0.25", "test_fraction = 0.25\nstandardize = false"
    )
    + """
[privacy]
unit = "record"
noise = "sum"
epsilon = 8.0
delta = 1e-4
"""
)
POLICY = BUDGETED.replace("max_epsilon", 'noise = ["site", "sum"]\nmax_epsilon').replace(
    "[models.", '[algorithms.fedsgd]\nweighting = "any"\nrecords = "any"\n[models.'
)


@pytest.fixture
def centre(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Centre]:
    made = Centre(tmp_path, STUDY, policy=getattr(request, "param", POLICY))
    yield made
    made.close()


def test_agents_give_the_bytes_of_a_simulation_and_pay_for_every_sum(centre: Centre, tmp_path: Path) -> None:
    for name in NAMES:
        centre.start(name, simulated_randomness=True)
    outcomes = centre.complete()
    assert not centre.watched.refusals
    assert outcomes[0].survivors == NAMES
    expected = simulated(centre.study, tmp_path / "simulated")
    assert save({name: value.contiguous() for name, value in centre.model.items()}) == expected
    for folder in centre.folders.values():
        lines = ledger_file(folder.state, "wards").read_text().splitlines()
        paid = [json.loads(line)["body"] for line in lines if '"kind":"spent"' in line]
        assert len(paid) == 1
        assert 7.9 < statement([from_value(body["event"]) for body in paid], 1e-4).epsilon <= 8.0


@pytest.mark.parametrize("centre", [POLICY.replace('["site", "sum"]', '["site"]')], indirect=True)
def test_a_hospital_that_wants_all_of_the_noise_of_its_own_refuses(centre: Centre) -> None:
    centre.start(NAMES[0])
    wait_until(centre.declined)
    assert "privacy.noise" in centre.declined()
