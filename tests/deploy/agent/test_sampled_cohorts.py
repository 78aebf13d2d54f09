"""``protection.sites_per_round`` between machines: agents that a round does not draw only wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save

from tests.deploy.agent_case import TOML, Centre
from tests.deploy.simulated import simulated

NAMES = tuple(f"hospital-{number}" for number in range(1, 5))
STUDY = (
    TOML.replace("sites = 3", "sites = 4").replace("[model]", 'weighting = "equal"\n[model]')
    + "sites_per_round = 3\n"
)


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, STUDY, names=NAMES)
    yield made
    made.close()


@pytest.mark.slow
def test_agents_and_a_simulation_draw_alike(centre: Centre, tmp_path: Path) -> None:
    algorithm = centre.terms.algorithm
    planned = [
        (number, tuple(algorithm.members(number, exchange, NAMES)))
        for number in (1, 2)
        for exchange in algorithm.exchanges(number)
    ]
    assert {len(cohort) for _, cohort in planned} == {3}
    assert len(planned) == 3  # evaluation of its own, training; the closing evaluation
    for name in NAMES:
        centre.start(name, simulated_randomness=True)
    outcomes = centre.complete()
    assert not centre.watched.refusals
    assert [(o.round, one.result.survivors) for o in outcomes for one in o.sums] == planned
    expected = simulated(centre.study, tmp_path / "simulated")
    assert save({name: value.contiguous() for name, value in centre.model.items()}) == expected
    for name, folder in centre.folders.items():
        (path,) = folder.state.glob("studies/*/transcript.jsonl")
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        took = [entry["body"]["round"] for entry in entries if entry["kind"] == "summed"]
        assert took == [number for number, cohort in planned if name in cohort]
