"""A study of statistics between agents finds what its simulation finds, and every hospital can read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save, save_file

from secfed.deploy.agent import agent
from tests.deploy.agent_case import Centre
from tests.deploy.simulated import simulated
from tests.deploy.training_here import TrainingHere
from tests.secfed.run_case import secfed

NAMES = tuple(f"hospital-{number}" for number in range(1, 5))
STUDY = """
[study]
name = "tables"
rounds = 1
[algorithm]
name = "statistics"
max_records = 1000
[algorithm.analyses.ages]
kind = "describe"
columns = ["age", "bp"]
by = "sex"
[algorithm.analyses.glm]
kind = "glm"
formula = "progression ~ age + bmi"
max_steps = 4
[model]
name = "none"
[data]
name = "diabetes-table"
[protection]
name = "masked"
"""
POLICY = """
approve = "{approve}"
[studies]
names = ["tables"]
[protection]
names = ["masked"]
[privacy]
require = false
max_epsilon = 1.0
max_delta = 1e-5
[algorithms.statistics]
analyses = "any"
max_records = {{ max = 1000 }}
[models.none]
[[data]]
name = "diabetes"
source = "diabetes-table"
options = "any"
"""


@pytest.fixture
def centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Centre]:
    pytest.importorskip("formulaic", reason="formulas need the extra analyse")
    monkeypatch.setattr(agent, "TrainingProcess", TrainingHere)
    made = Centre(tmp_path, STUDY, policy=POLICY, names=NAMES)
    yield made
    made.close()


def test_four_agents_give_the_bytes_of_a_simulation(centre: Centre, tmp_path: Path) -> None:
    for name in NAMES:
        centre.start(name, simulated_randomness=True)
    centre.complete()
    assert not centre.watched.refusals
    model = {name: value.contiguous() for name, value in centre.model.items()}
    assert save(model) == simulated(centre.study, tmp_path / "simulated")
    save_file(model, tmp_path / "model.safetensors")
    (tmp_path / "s.toml").write_text(STUDY)
    shown = secfed("analyse", tmp_path / "s.toml", "--json", "--model", tmp_path / "model.safetensors")
    found = json.loads(shown.stdout)
    again = ("--out", tmp_path, "--overwrite", "--model", tmp_path / "model.safetensors")
    refused = secfed("analyse", tmp_path / "s.toml", *again)
    assert (refused.exit_code, (tmp_path / "model.safetensors").exists()) == (2, True)
    assert "holds the run whose model is analysed" in refused.stderr
    assert found["ages"]["n"] == [235, 207, 442]
    assert found["glm"]["hospitals"] == list(NAMES)
