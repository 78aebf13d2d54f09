"""Tables under noise in the sum: what one record adds, what the interval covers, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.data.bundled import diabetes
from secfed.algorithms.statistics.algorithm import Statistics
from secfed.algorithms.statistics.report import report_of
from secfed.errors import ConfigError
from secfed.simulation.simulate import simulate
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.frames import decode_state
from tests.secfed.run_case import secfed

STUDY = """
[study]
name = "noisy"
rounds = 1
[algorithm]
name = "statistics"
max_records = 1000
[algorithm.analyses.ages]
kind = "histogram"
column = "age"
bins = 1000
[algorithm.analyses.sexes]
kind = "counts"
columns = ["sex"]
[model]
name = "none"
[data]
name = "diabetes-table"
[protection]
name = "masked"
[privacy]
unit = "record"
noise = "sum"
epsilon = 1.0
delta = 1e-4
"""


def study(**changes: Any) -> Study:
    found = Study.parse(STUDY)
    for key, value in changes.items():
        found = found.replace(key.replace("__", "."), value)
    return found


def summed(algorithm: Statistics, weights: torch.Tensor | None = None, without: int = -1) -> torch.Tensor:
    """All that one site adds, one record left out."""
    table = algorithm.site_data("hospital-1")
    algorithm.site_data = lambda _: table.take(np.arange(table.records) != without)  # type: ignore[method-assign]
    program, exchange = algorithm.site("hospital-1"), algorithm.exchanges(1)[0]
    del algorithm.site_data
    if weights is not None:
        rest = weights[torch.arange(len(weights)) != without]
        program.use_unit_sums(SimpleNamespace(weights=lambda *_: rest))  # type: ignore[arg-type]
    found = program.contribute(1, exchange, {})
    return torch.cat([torch.as_tensor(one).flatten() for one in found.values()])


def test_a_record_adds_one_to_one_cell_of_each_table() -> None:
    algorithm = build(study())
    assert isinstance(algorithm, Statistics)
    bound = algorithm.unit_bound(algorithm.exchanges(1)[0])
    assert bound is not None
    for record in range(5):
        difference = summed(algorithm) - summed(algorithm, without=record)
        assert float(difference.norm()) == pytest.approx(math.sqrt(2))
    assert math.sqrt(2) < bound.norm < math.sqrt(2) * 1.001


def test_the_records_of_a_unit_share_a_weight() -> None:
    algorithm = build(study())
    assert isinstance(algorithm, Statistics)
    records = algorithm.site_data("hospital-1").records
    found = summed(algorithm, torch.full((records,), 0.25))
    assert float(found.sum()) == pytest.approx(2 * records / 4)


def test_intervals_cover_what_they_say(tmp_path: Path) -> None:
    """Of 1001 cells: 93 to 97 % at 95 %, and their spread is the deviation that the result tells."""
    (tmp_path / "s.toml").write_text(STUDY)
    found = json.loads(secfed("analyse", tmp_path / "s.toml", "--json").stdout)["ages"]
    true = np.histogram(diabetes()[:, 0], bins=1000, range=(18, 100))[0]
    errors = np.array(found["counts"][0][:-1]) - true
    assert 0.93 <= (np.abs(errors) <= found["error_95"]).mean() <= 0.97
    assert errors.std() == pytest.approx(found["noise_deviation"], rel=0.1)
    assert abs(errors.mean()) < 4 * found["noise_deviation"] / math.sqrt(1000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "algorithm__analyses__c": {
                    "kind": "cox",
                    "formula": "age",
                    "time": "bp",
                    "event": "sex",
                    "interval": 10,
                }
            },
            "c.kind: cox has no",
        ),
        ({"privacy__noise": "site"}, 'set privacy.noise = "sum"'),
        ({"privacy__clip_norm": 2.0}, "clip_norm: has no effect"),
    ],
)
def test_what_has_no_mechanism_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(study(**changes))
    assert message in str(refused.value)


def test_steps_of_a_regression_carry_their_noise_through_closed_sums(tmp_path: Path) -> None:
    """Every hospital repeats the server's steps; each of the four sums is paid for."""
    pytest.importorskip("formulaic", reason="formulas need the extra analyse")
    fit = {"kind": "glm", "formula": "sex ~ bp", "family": "binomial", "max_steps": 3}
    chosen = study(algorithm__analyses={"fit": fit, "auc": {"kind": "roc", "of": "fit", "bins": 10}})
    chosen = chosen.replace("protection.reveal", "sites").replace("privacy.epsilon", 300.0)
    simulate(chosen, out=tmp_path / "run")
    algorithm = build(chosen)
    assert isinstance(algorithm, Statistics)
    model = decode_state((tmp_path / "run" / "model.safetensors").read_bytes())
    found = {one.name: one for one in report_of(algorithm.analyses, model, algorithm.setting.sites)}
    values = found["fit"].result.values
    assert values["coefficients"][1] == pytest.approx(0.0366, abs=4 * values["noise_errors"][1])
    assert 0 < values["noise_errors"][1] < values["standard_errors"][1]
    assert found["auc"].result.values["low"] < 0.65 < found["auc"].result.values["high"]
    ledgers = [path.read_text() for path in (tmp_path / "run").rglob("*ledger*.jsonl")]
    assert len(ledgers) == 4
    assert all(ledger.count("step-0") >= 4 for ledger in ledgers)
