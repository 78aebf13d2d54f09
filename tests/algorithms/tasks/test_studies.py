"""Whole studies of every task, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from secfed.algorithms.data.memory import SiteTables
from secfed.algorithms.framework.targets import Targets
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.errors import ConfigError, DataError
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.whole import run

HERE = "tests.algorithms.tasks.test_studies"
SITES = ("a", "b", "c")
EXPECTED = {
    "regression": ("r2", 0.5),
    "multi-label": ("f1_micro", 0.7),
    "survival": ("concordance", 0.7),
    "segmentation": ("dice", 0.6),
}


def clinics(task: str) -> SiteTables:
    rng, tables = np.random.default_rng(3), {}
    targets = {
        "regression": Targets.of_outcomes(-20, 60),
        "multi-label": Targets.of_labels(2),
        "survival": Targets.of_times([1, 2, 4]),
        "segmentation": Targets.of_voxels(2, (6, 6)),
    }[task]
    for site in SITES:
        x = rng.normal(size=(60, 3))
        y: Any = {
            "regression": lambda x=x: np.clip(20 + 10 * x[:, 0] + rng.normal(size=60), -20, 60),
            "multi-label": lambda x=x: (x[:, :2] > 0).astype(int),
            "survival": lambda x=x: np.stack(
                [rng.exponential(2 * np.exp(-1.5 * x[:, 0])), rng.random(60) < 0.8], axis=1
            ),
            "segmentation": lambda: None,
        }[task]()
        if task == "segmentation":
            x = rng.normal(size=(30, 1, 6, 6))
            y = (x[:, 0] > 0.3).astype(int)
        tables[site] = (x, y)
    return SiteTables(tables, targets=targets, standardize=False)


def voxels(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Conv2d(input_shape[0], classes, 1)


def study(task: str, *, privacy: str = "", said: str | None = None) -> Study:
    model = f"{HERE}:voxels" if task == "segmentation" else "logistic-regression"
    return Study.parse(f"""
        study = {{ name = "task", rounds = 4, seed = 2 }}
        protection = {{ name = "masked", min_cohort = 3 }}
        {privacy}
        [algorithm]
        name = "fedavg"
        task = "{said or task}"
        weighting = "equal"
        batch_size = 16
        local_epochs = 8
        learning_rate = 0.5
        [model]
        name = "{model}"
        [data]
        name = "{HERE}:clinics"
        task = "{task}"
    """)


@pytest.mark.parametrize("task", EXPECTED)
def test_a_study_learns_what_it_is_for(task: str):
    report = run(study(task))
    metric, least = EXPECTED[task]
    assert report.final[metric] > least
    assert report.initial is not None
    assert report.final["loss"] < report.initial["loss"]
    assert report.oracle is not None
    assert f"worst_site_{metric}" in report.oracle


@pytest.mark.parametrize("task", EXPECTED)
def test_a_study_under_privacy_with_metrics_withheld(task: str):
    budget = 'privacy = { unit = "record", epsilon = 8, delta = 1e-5, clip_norm = 1.0, metrics = "%s" }'
    built = build(study(task, privacy=budget % "withheld"))
    assert [exchange.name for exchange in built.exchanges(1)] == ["update"]
    with pytest.raises(ConfigError, match='"private" has no noisy form'):
        build(study(task, privacy=budget % "private"))


def test_another_task_than_the_records_is_refused():
    with pytest.raises(ConfigError, match='are for "regression", not for "classification"'):
        build(study("regression", said="classification"))


def test_the_best_round_is_told_by_a_metric_of_the_task():
    with pytest.raises(ConfigError, match="is no metric of"):
        study("regression").replace("algorithm.keep", "best")


def test_a_model_of_another_output_is_refused():
    with pytest.raises(ConfigError, match=r"gives \(2, 2\), not scores of shape \(2, 2, 6, 6\)"):
        build(study("segmentation").replace("model.name", "logistic-regression"))


def test_an_outcome_outside_its_bounds_is_an_error_here_and_clipped_at_a_hospital():
    x, y = np.zeros((6, 1)), np.array([0, 1, 2, 99, np.nan, 1])
    data = SiteTables({"a": (x, y)}, targets=Targets.of_outcomes(0, 10), test_fraction=0)
    with pytest.raises(DataError, match="outcome outside 0 to 10"):
        data.site("a")
    heard: list[DataError] = []
    with counted_as_defaults(heard.append):
        assert data.site("a").train_y.tolist() == [0, 1, 2, 10, 0, 1]
    assert heard
    assert "99" not in str(heard)


def test_times_and_events_of_a_table(tmp_path: Path):
    rows = ["site,age,months,dead"]
    rows += [f"{site},{age},{age / 10},{age % 2}" for site in "ab" for age in range(40, 60)]
    (tmp_path / "table.csv").write_text("\n".join(rows))
    text = f"""
        study = {{ name = "table", rounds = 1, seed = 2 }}
        algorithm = {{ name = "fedavg", task = "survival" }}
        model = {{ name = "logistic-regression" }}
        protection = {{ name = "plain", min_cohort = 2 }}
        [data]
        name = "csv"
        path = "{tmp_path}/table.csv"
        site_column = "site"
        sites = ["a", "b"]
        label_column = "months"
        event_column = "dead"
        time_grid = [4.5, 5.5]
        feature_columns = ["age"]
        test_fraction = 0
    """
    setting = build(Study.parse(text)).setting  # type: ignore[attr-defined]
    codes = setting.data.site("a").train_y
    assert codes.tolist() == [
        age % 2 if age <= 45 else 2 + age % 2 if age <= 55 else 4 for age in range(40, 60)
    ]
    assert setting.data.classes == 2
    for wrong, what in (
        ('event_column = "dead"', "needs both event_column and time_grid"),
        ("time_grid = [4.5, 5.5]", "set either label_above or labels"),
    ):
        with pytest.raises(ConfigError, match=what):
            Study.parse(text.replace(wrong, ""))
    with pytest.raises(ConfigError, match="ascending"):
        Study.parse(text.replace("[4.5, 5.5]", "[5.5, 4.5]"))


def test_outcomes_of_a_table(tmp_path: Path):
    (tmp_path / "table.csv").write_text("age,cost\n" + "\n".join(f"{age},{age / 2}" for age in range(40, 80)))
    text = f"""
        study = {{ name = "table", rounds = 1, seed = 2 }}
        algorithm = {{ name = "fedavg", task = "regression" }}
        model = {{ name = "logistic-regression" }}
        protection = {{ name = "plain", min_cohort = 2 }}
        [data]
        name = "csv"
        path = "{tmp_path}/table.csv"
        sites = 2
        partition = "iid"
        label_column = "cost"
        outcome = [0, 35]
        feature_columns = ["age"]
    """
    study = Study.parse(text)
    with pytest.raises(DataError, match=r"line 33: column 'cost' is no number within data.outcome"):
        build(study).site("hospital-1")
    data = build(study.replace("data.outcome", (0.0, 40.0))).setting.data  # type: ignore[attr-defined]
    assert data.site("hospital-1").train_y.dtype == torch.float32
    with pytest.raises(ConfigError, match="divides records by their classes"):
        Study.parse(text.replace('"iid"', '"dirichlet"'))
