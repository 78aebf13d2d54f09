"""A bound that is too small is not silent: a simulation says which share of an update it clipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from secfed.pipeline.clip import ClippedShare
from secfed.runs.run_report import CLIPPED, RunReport, SilentObserver
from secfed.simulation.simulate import simulate
from secfed.study.study import Study
from secfed.wire.layout import Exchange, Field, Layout
from tests.algorithms.loop import BREAST_CANCER


def run(bound: float, out: Path | None = None, protection: str = "plain", more: str = "") -> RunReport:
    text = BREAST_CANCER.replace('name = "plain"', f'name = "{protection}"\nbound = {bound}') + more
    return simulate(Study.parse(text), out=out, drops=(), observer=SilentObserver())


def exchange(*fields: Field) -> Exchange:
    return Exchange("train", "all", Layout(fields, sites=3))


def test_numbers_beyond_the_bound_are_counted_where_it_is_the_bound():
    clipping, here = ClippedShare(1.0), exchange(Field("a", (4,), 1.0), Field("b", (), 10.0, 64))
    clipping.at_site(here, {"a": torch.tensor([0.5, -1.0, 1.5, -2.0]), "b": 11.0})
    assert clipping.share == 2 / 4


def test_the_largest_share_is_kept():
    clipping, here = ClippedShare(1.0), exchange(Field("a", (2,), 1.0))
    for value in (0.0, 3.0, 0.5):
        clipping.at_site(here, {"a": torch.tensor([value, 0.0])})
    assert clipping.share == 0.5


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_a_simulation_reports_a_bound_that_is_too_small(tmp_path, protection):
    report = run(1e-3, tmp_path, protection)
    assert report.oracle is not None
    assert 0.1 < report.oracle[CLIPPED] <= 1
    assert json.loads((tmp_path / "run.json").read_text())["oracle"][CLIPPED] == report.oracle[CLIPPED]


def test_a_bound_that_is_large_enough_is_not_mentioned():
    report = run(100.0)
    assert report.oracle is not None
    assert CLIPPED not in report.oracle


def test_sums_with_noise_have_bounds_of_their_own():
    privacy = '\n[privacy]\nunit = "site"\nepsilon = 8.0\ndelta = 1e-2\n'
    weighting = 'name = "fedavg"\nweighting = "equal"'
    text = BREAST_CANCER.replace('name = "fedavg"', weighting).replace(
        'name = "plain"', 'name = "plain"\nbound = 1e-3'
    )
    report = simulate(Study.parse(text + privacy), out=None, drops=(), observer=SilentObserver())
    assert CLIPPED not in (report.oracle or {})
